#ifndef FRAMEWORK_OBSERVE_REPORT_FIGURES_H_
#define FRAMEWORK_OBSERVE_REPORT_FIGURES_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Reads figures of JSON records with any contents; nothing throws.

// The value at `path` ("step_ms.mean") of `figures`; null if there is none.
const nlohmann::ordered_json* FigureAt(const nlohmann::ordered_json& figures,
                                       absl::string_view path);

// The number at `path`; absent if there is none.
std::optional<double> NumberAt(const nlohmann::ordered_json& figures,
                               absl::string_view path);

// The string at `path`; empty if there is none.
std::string TextAt(const nlohmann::ordered_json& figures,
                   absl::string_view path);

// The array at `path`; an empty one if there is none.
const nlohmann::ordered_json& ListAt(const nlohmann::ordered_json& figures,
                                     absl::string_view path);

// The object at `path`; an empty one if there is none.
const nlohmann::ordered_json& ObjectAt(const nlohmann::ordered_json& figures,
                                       absl::string_view path);

// A number for people: four significant digits, "n/a" if absent.
std::string FormatFigure(std::optional<double> value);

// FormatFigure(), but a whole number without a decimal point: for counts.
std::string FormatWhole(std::optional<double> value);

// "12.3 %" of a share of 1, "n/a" if absent.
std::string FormatShare(std::optional<double> share);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_REPORT_FIGURES_H_
