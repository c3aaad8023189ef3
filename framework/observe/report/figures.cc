#include "framework/observe/report/figures.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "framework/observe/format.h"

namespace tessera {

using Json = nlohmann::ordered_json;

const Json* FigureAt(const Json& figures, absl::string_view path) {
  const Json* at = &figures;
  for (const absl::string_view part : absl::StrSplit(path, '.')) {
    if (!at->is_object()) return nullptr;
    const auto found = at->find(std::string(part));
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at;
}

std::optional<double> NumberAt(const Json& figures, absl::string_view path) {
  const Json* const figure = FigureAt(figures, path);
  if (figure == nullptr || !figure->is_number()) return std::nullopt;
  return figure->get<double>();
}

std::string TextAt(const Json& figures, absl::string_view path) {
  const Json* const figure = FigureAt(figures, path);
  if (figure == nullptr || !figure->is_string()) return "";
  return figure->get<std::string>();
}

const Json& ListAt(const Json& figures, absl::string_view path) {
  static const Json* const kEmpty = new Json(Json::array());
  const Json* const figure = FigureAt(figures, path);
  return figure != nullptr && figure->is_array() ? *figure : *kEmpty;
}

const Json& ObjectAt(const Json& figures, absl::string_view path) {
  static const Json* const kEmpty = new Json(Json::object());
  const Json* const figure = FigureAt(figures, path);
  return figure != nullptr && figure->is_object() ? *figure : *kEmpty;
}

std::string FormatFigure(std::optional<double> value) {
  if (!value.has_value() || !std::isfinite(*value)) return "n/a";
  const double size = std::abs(*value);
  if (size >= 1e4 && size < 1e15) {
    return FormatCount(static_cast<int64_t>(std::round(*value)));
  }
  if (size == 0 || size >= 1e15 || size < 1e-4) {
    return absl::StrFormat("%.4g", *value);
  }
  const int before_point = static_cast<int>(std::floor(std::log10(size))) + 1;
  return absl::StrFormat("%.*f", 4 - std::min(before_point, 4), *value);
}

std::string FormatWhole(std::optional<double> value) {
  if (!value.has_value() || *value != std::round(*value) ||
      std::abs(*value) >= 1e15) {
    return FormatFigure(value);
  }
  return FormatCount(static_cast<int64_t>(*value));
}

std::string FormatShare(std::optional<double> share) {
  if (!share.has_value() || !std::isfinite(*share)) return "n/a";
  return absl::StrFormat("%.1f %%", 100 * *share);
}

}  // namespace tessera
