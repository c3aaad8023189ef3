#include "framework/observe/memory_record_json.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

Json BlocksToJson(const std::vector<BlockBytes>& blocks) {
  Json json = Json::object();
  for (const BlockBytes& block : blocks) {
    Json& ops = json[block.block];
    for (const BlockBytes::OpBytes& op : block.ops) ops[op.op] = op.bytes;
  }
  return json;
}

void AddBreakdown(const MemoryBreakdown& breakdown, Json* json) {
  (*json)["allocated"] = breakdown.allocated;
  (*json)["reserved"] = breakdown.reserved;
  for (size_t c = 0; c < breakdown.bytes.size(); ++c) {
    (*json)[kMemoryCategoryNames[c]] = breakdown.bytes[c];
  }
  (*json)["slack"] = breakdown.slack();
  (*json)["fragmentation"] = breakdown.fragmentation();
  (*json)["activations_of"] = BlocksToJson(breakdown.activations);
}

}  // namespace

nlohmann::ordered_json ToJson(const MemoryTimeline& timeline) {
  Json columns = {"us"};
  for (const char* name : kMemoryCategoryNames) columns.push_back(name);
  Json points = Json::array();
  for (const MemoryTimeline::Point& point : timeline.points) {
    Json row = {point.us};
    for (const int64_t bytes : point.bytes) row.push_back(bytes);
    points.push_back(std::move(row));
  }
  return {{"columns", columns}, {"points", points}};
}

nlohmann::ordered_json ToJson(const MemoryRecord& record) {
  Json json = {{"step", record.step}};
  for (const PhaseMemory& phase : record.phases) {
    json["phases"][phase.phase] = {{"allocated", phase.allocated},
                                   {"peak", phase.peak},
                                   {"reserved", phase.reserved}};
  }
  json["peak"]["in"] = record.peak_in;
  AddBreakdown(record.peak, &json["peak"]);
  AddBreakdown(record.end, &json["end"]);
  int64_t saved = 0;
  for (const BlockBytes& block : record.saved) {
    for (const BlockBytes::OpBytes& op : block.ops) saved += op.bytes;
  }
  json["outside"] = record.outside;
  json["saved"] = {{"bytes", saved}, {"of", BlocksToJson(record.saved)}};
  json["largest"] = Json::array();
  for (const LargeAllocation& allocation : record.largest) {
    json["largest"].push_back({{"bytes", allocation.bytes},
                               {"category", NameOf(allocation.category)},
                               {"from", allocation.from},
                               {"to", allocation.to},
                               {"at_ms", allocation.at_ms},
                               {"ms", allocation.ms}});
  }
  if (!record.timeline.points.empty()) {
    json["timeline"] = ToJson(record.timeline);
  }
  return json;
}

}  // namespace tessera
