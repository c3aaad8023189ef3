#include "bench/measure/start_up.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/match.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/device.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

enum Class { kLoading, kAllocation, kGraph, kWaiting, kLaunching, kNumClasses };
constexpr const char* kNames[kNumClasses] = {"kernel_loading_ms",
                                             "allocation_ms", "graph_ms",
                                             "waiting_ms", "launching_ms"};

// The class of a call by its name: "cudaMalloc_v3020", "cuLibraryLoadData".
Class ClassOf(absl::string_view call) {
  static constexpr struct {
    absl::string_view part;
    Class type;
  } kParts[] = {
      {"Graph", kGraph},          {"Capture", kGraph},
      {"Module", kLoading},       {"Library", kLoading},
      {"cuKernel", kLoading},     {"Func", kLoading},
      {"Occupancy", kLoading},    {"Malloc", kAllocation},
      {"Alloc", kAllocation},     {"Free", kAllocation},
      {"MemCreate", kAllocation}, {"Synchronize", kWaiting},
  };
  for (const auto& [part, type] : kParts) {
    if (absl::StrContains(call, part)) return type;
  }
  return kLaunching;
}

// Calls that no other call made, in order, each with its class; while a graph
// is recorded also the time between them.
struct Outermost {
  int64_t begin_ns, end_ns;
  Class type;
};

std::vector<Outermost> OutermostCalls(const Trace& trace) {
  std::vector<const HostCall*> calls;
  for (const HostCall& call : trace.calls) {
    if (call.thread == trace.thread) calls.push_back(&call);
  }
  // If two calls begin at the same time, the outer one comes first.
  std::sort(calls.begin(), calls.end(), [](const auto* a, const auto* b) {
    return a->begin_ns != b->begin_ns ? a->begin_ns < b->begin_ns
                                      : a->end_ns > b->end_ns;
  });
  std::unordered_map<uint32_t, int> kernels;
  for (const DeviceActivity& activity : trace.activities) {
    if (activity.kind == DeviceActivity::Kind::kKernel) {
      kernels[activity.correlation] = activity.name;
    }
  }
  std::unordered_set<int> loaded;
  std::vector<Outermost> outermost;
  bool recording = false;  // a graph
  for (const HostCall* call : calls) {
    const absl::string_view name = trace.name(call->name);
    if (outermost.empty() || call->begin_ns >= outermost.back().end_ns) {
      if (recording) {
        outermost.push_back({outermost.back().end_ns, call->begin_ns, kGraph});
      }
      const Class type = ClassOf(name);
      outermost.push_back({call->begin_ns, call->end_ns,
                           recording && type > kGraph ? kGraph : type});
    }
    const auto kernel = kernels.find(call->correlation);
    if (kernel != kernels.end() && loaded.insert(kernel->second).second) {
      outermost.back().type = kLoading;
    }
    if (absl::StrContains(name, "BeginCapture")) recording = true;
    if (absl::StrContains(name, "EndCapture")) recording = false;
  }
  return outermost;
}

}  // namespace

Json StartUpFigures(const Trace& trace, const std::vector<StartUpPart>& parts) {
  const std::vector<Outermost> calls = OutermostCalls(trace);
  Json rows = Json::array();
  for (const StartUpPart& part : parts) {
    double ms[kNumClasses] = {};
    double calls_ms = 0;
    for (const Outermost& call : calls) {
      const int64_t begin = std::max(call.begin_ns, part.begin_ns);
      const int64_t end = std::min(call.end_ns, part.end_ns);
      if (begin >= end) continue;
      ms[call.type] += (end - begin) * 1e-6;
      calls_ms += (end - begin) * 1e-6;
    }
    const double all_ms = (part.end_ns - part.begin_ns) * 1e-6;
    Json row = {{"part", part.name}, {"ms", all_ms}};
    for (int i = 0; i < kNumClasses; ++i) row[kNames[i]] = ms[i];
    row["host_ms"] = all_ms - calls_ms;
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::Status StartUp::Begin() {
  trace_.thread = CurrentThreadId();
  return source_->Start();
}

absl::Status StartUp::Do(absl::string_view name, c10::Device device,
                         absl::FunctionRef<absl::Status()> call) {
  const int64_t begin_ns = source_->NowNs();
  RETURN_IF_ERROR(call());
  Synchronize(device);
  parts_.push_back({std::string(name), begin_ns, source_->NowNs()});
  return absl::OkStatus();
}

absl::StatusOr<Json> StartUp::End() {
  RETURN_IF_ERROR(source_->Stop(&trace_));
  return StartUpFigures(trace_, parts_);
}

}  // namespace tessera
