#include "framework/observe/trace/op_place.h"

#include "absl/strings/str_cat.h"
#include "framework/observe/block_path.h"

namespace tessera {
namespace {

// The place of a range within that of the range around it.
OpPlace Inside(const OpPlace& parent, bool parent_is_phase, bool is_op,
               absl::string_view name) {
  OpPlace place = parent;
  const auto append = [name](std::string* path) {
    absl::StrAppend(path, path->empty() ? "" : "/", name);
  };
  if (is_op) {
    place.op = std::string(name);
  } else if (!place.op.empty()) {
    append(&place.part);
  } else if (!parent_is_phase || name == "recompute") {
    place.phase = std::string(name);
  } else {
    append(&place.group);
  }
  return place;
}

}  // namespace

std::string OpPlace::block() const {
  const std::string top = group.substr(0, group.find('/'));
  return IsBlock(top) ? top : "outside";
}

std::vector<OpPlace> PlacesOf(const Trace& trace) {
  std::vector<OpPlace> places;
  for (size_t i = 0; i < trace.ranges.size(); ++i) {
    const HostRange& range = trace.ranges[i];
    const OpPlace parent = range.parent < 0 ? OpPlace() : places[range.parent];
    if (range.level == HostRange::Level::kStep) {
      places.push_back({.step = static_cast<int>(i)});
      continue;
    }
    const bool parent_is_phase =
        range.parent >= 0 &&
        trace.ranges[range.parent].level != HostRange::Level::kStep;
    places.push_back(Inside(parent, parent_is_phase,
                            range.level == HostRange::Level::kOp,
                            trace.name(range.name)));
  }
  return places;
}

}  // namespace tessera
