#ifndef FRAMEWORK_OBSERVE_MEMORY_RECORD_JSON_H_
#define FRAMEWORK_OBSERVE_MEMORY_RECORD_JSON_H_

#include "framework/observe/memory_record.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The fields of the run log's "memory" record:
//   step
//   phases    {"forward": {"allocated", "peak", "reserved"}, ...}
//   peak      {"in", "allocated", "reserved", bytes of each category, "slack",
//             "fragmentation", "activations_of": {"block_0": {"ffn/w2":
//             bytes}}}
//   end       the same without "in"
//   saved     {"bytes", "of": as "activations_of"}
//   largest   [{"bytes", "category", "from", "to", "at_ms", "ms"}]
//   timeline  {"columns": ["us", "parameters", ...], "points": [[...], ...]}
nlohmann::ordered_json ToJson(const MemoryRecord& record);
// Its "timeline".
nlohmann::ordered_json ToJson(const MemoryTimeline& timeline);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_MEMORY_RECORD_JSON_H_
