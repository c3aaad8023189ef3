#ifndef FRAMEWORK_BASE_JSON_H_
#define FRAMEWORK_BASE_JSON_H_

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Json below is nlohmann::json or nlohmann::ordered_json.

// Deeper than any of our files. nlohmann's dump() is recursive: a hundred
// thousand levels overflow the stack.
inline constexpr int kMaxJsonDepth = 64;

// Parses `text`, which may come from a damaged or hostile file. The result is
// discarded (is_discarded()) if `text` is not JSON, nests deeper than
// kMaxJsonDepth, or contains a NUL, which nlohmann takes for the end of the
// text.
template <typename Json = nlohmann::json>
Json ParseJson(absl::string_view text) {
  if (absl::StrContains(text, '\0')) return Json(Json::value_t::discarded);
  bool too_deep = false;
  // `depth` is the number of enclosing arrays and objects.
  const auto check_depth = [&](int depth, typename Json::parse_event_t event,
                               Json&) {
    const bool begins = event == Json::parse_event_t::array_start ||
                        event == Json::parse_event_t::object_start;
    too_deep = too_deep || (begins && depth >= kMaxJsonDepth);
    return !too_deep;
  };
  Json json = Json::parse(text.begin(), text.end(), check_depth,
                          /*allow_exceptions=*/false);
  return too_deep ? Json(Json::value_t::discarded) : json;
}

// As text on one line, or indented by `indent` >= 0. Replaces bytes that are
// not UTF-8; dump() alone throws.
template <typename Json>
std::string DumpJson(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace);
}

}  // namespace tessera

#endif  // FRAMEWORK_BASE_JSON_H_
