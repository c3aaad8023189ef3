#include "framework/base/json.h"

#include "absl/strings/match.h"

namespace tessera {

using Json = nlohmann::json;

Json ParseJson(absl::string_view text) {
  if (absl::StrContains(text, '\0')) return Json(Json::value_t::discarded);
  bool too_deep = false;
  // `depth` is the number of enclosing arrays and objects.
  const auto check_depth = [&](int depth, Json::parse_event_t event, Json&) {
    const bool begins = event == Json::parse_event_t::array_start ||
                        event == Json::parse_event_t::object_start;
    too_deep = too_deep || (begins && depth >= kMaxJsonDepth);
    return !too_deep;
  };
  Json json = Json::parse(text.begin(), text.end(), check_depth,
                          /*allow_exceptions=*/false);
  return too_deep ? Json(Json::value_t::discarded) : json;
}

}  // namespace tessera
