#include "framework/observe/trace/trace.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

void Add(const std::optional<double>& value, std::optional<double>* sum) {
  if (value.has_value()) *sum = sum->value_or(0) + *value;
}

std::optional<double> Ratio(const std::optional<double>& part,
                            const std::optional<double>& whole) {
  if (!part.has_value() || whole.value_or(0) <= 0) return std::nullopt;
  return *part / *whole;
}

}  // namespace

uint32_t CurrentThreadId() {
  return static_cast<uint32_t>(syscall(SYS_gettid));
}

KernelCounters& KernelCounters::operator+=(const KernelCounters& other) {
  launches += other.launches;
  ns += other.ns;
  Add(other.tensor_ns, &tensor_ns);
  Add(other.dram_bytes, &dram_bytes);
  Add(other.l2_hits, &l2_hits);
  Add(other.l2_lookups, &l2_lookups);
  return *this;
}

std::optional<double> KernelCounters::tensor_share() const {
  return Ratio(tensor_ns, ns);
}

std::optional<double> KernelCounters::dram_bytes_per_launch() const {
  return Ratio(dram_bytes, static_cast<double>(launches));
}

std::optional<double> KernelCounters::l2_hit_share() const {
  return Ratio(l2_hits, l2_lookups);
}

std::string Trace::PathOf(int range) const {
  std::string path;
  for (; range >= 0; range = ranges[range].parent) {
    const HostRange& r = ranges[range];
    if (r.level == HostRange::Level::kStep) break;
    path =
        path.empty() ? names[r.name] : absl::StrCat(names[r.name], "/", path);
  }
  return path;
}

void AttributeToRanges(Trace* trace) {
  const auto by_begin = [](const auto& a, const auto& b) {
    return a.begin_ns < b.begin_ns;
  };
  std::stable_sort(trace->calls.begin(), trace->calls.end(), by_begin);
  std::stable_sort(trace->activities.begin(), trace->activities.end(),
                   by_begin);
  // Ranges nest, so a walk in order of time keeps the innermost open one.
  std::unordered_map<uint32_t, int> range_of_call;
  int open = -1;
  size_t next = 0;
  for (HostCall& call : trace->calls) {
    if (call.thread != trace->thread) continue;
    for (; next < trace->ranges.size() &&
           trace->ranges[next].begin_ns <= call.begin_ns;
         ++next) {
      open = static_cast<int>(next);
    }
    while (open >= 0 && trace->ranges[open].end_ns < call.begin_ns) {
      open = trace->ranges[open].parent;
    }
    call.range = open;
    // Calls nest, too: a launch by the runtime calls the driver, with the same
    // correlation.
    range_of_call.emplace(call.correlation, open);
  }
  for (DeviceActivity& activity : trace->activities) {
    const auto found = range_of_call.find(activity.correlation);
    activity.range = found == range_of_call.end() ? -1 : found->second;
  }
}

int NameTable::IndexOf(absl::string_view name) {
  const auto found = index_.find(name);
  if (found != index_.end()) return found->second;
  const int index = static_cast<int>(names_->size());
  names_->emplace_back(name);
  index_.emplace(std::string(name), index);
  return index;
}

std::vector<IssuedActivity> IssuedActivities(const Trace& trace) {
  std::unordered_map<uint32_t, const HostCall*> calls;
  for (const HostCall& call : trace.calls) {
    calls.emplace(call.correlation, &call);  // the outermost is the first
  }
  std::vector<IssuedActivity> issued;
  for (const DeviceActivity& activity : trace.activities) {
    const auto call = calls.find(activity.correlation);
    issued.push_back({&activity, call == calls.end() ? nullptr : call->second});
  }
  return issued;
}

}  // namespace tessera
