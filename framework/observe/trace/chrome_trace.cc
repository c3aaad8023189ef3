#include "framework/observe/trace/chrome_trace.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "framework/base/json.h"
#include "framework/base/status_macros.h"
#include "framework/observe/trace/gzip_file.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using absl::string_view;

std::string Quoted(string_view text) {
  return DumpJson(nlohmann::json(std::string(text)));
}

// A duration or time in microseconds, exactly.
std::string Micros(int64_t ns) {
  return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000);
}

// CUPTI's "cudaLaunchKernel_v7000" as "cudaLaunchKernel".
string_view WithoutVersion(string_view call) {
  const size_t version = call.rfind("_v");
  if (version == string_view::npos || version + 2 == call.size()) return call;
  for (const char c : call.substr(version + 2)) {
    if (!absl::ascii_isdigit(c)) return call;
  }
  // "cuMemcpyDtoH_v2" is the function's name.
  return absl::StartsWith(call, "cuda") ? call.substr(0, version) : call;
}

// "copy H2D" as "Memcpy HtoD".
std::string ActivityName(const DeviceActivity& activity, string_view name) {
  switch (activity.kind) {
    case DeviceActivity::Kind::kKernel:
      return std::string(name);
    case DeviceActivity::Kind::kCopy: {
      absl::ConsumePrefix(&name, "copy");
      std::string direction(absl::StripLeadingAsciiWhitespace(name));
      const size_t to = direction.find('2');
      if (to != std::string::npos) direction.replace(to, 1, "to");
      return absl::StrCat("Memcpy", direction.empty() ? "" : " ", direction);
    }
    case DeviceActivity::Kind::kFill:
      return "Memset (Device)";
  }
  return "";
}

string_view CategoryOf(DeviceActivity::Kind kind) {
  constexpr string_view kNames[] = {"kernel", "gpu_memcpy", "gpu_memset"};
  return kNames[static_cast<int>(kind)];
}

// Where an event is drawn.
struct Track {
  int64_t process = 0;
  int64_t thread = 0;
};

class ChromeTraceWriter {
 public:
  ChromeTraceWriter(const Trace& trace, GzipFile& file)
      : trace_(trace), file_(file), host_process_(::getpid()) {
    base_ns_ = std::numeric_limits<int64_t>::max();
    for (const HostRange& r : trace.ranges) Include(r.begin_ns);
    for (const HostCall& c : trace.calls) Include(c.begin_ns);
    for (const DeviceActivity& a : trace.activities) Include(a.begin_ns);
    if (base_ns_ == std::numeric_limits<int64_t>::max()) base_ns_ = 0;
    for (const std::string& name : trace.names) {
      quoted_.push_back(Quoted(name));
    }
  }

  absl::Status Write() {
    RETURN_IF_ERROR(WriteHeader());
    RETURN_IF_ERROR(WriteTrackNames());
    RETURN_IF_ERROR(WriteRanges());
    RETURN_IF_ERROR(WriteCalls());
    RETURN_IF_ERROR(WriteActivities());
    RETURN_IF_ERROR(WriteDevicePhases());
    return file_.Write("\n]}\n");
  }

 private:
  void Include(int64_t ns) { base_ns_ = std::min(base_ns_, ns); }

  absl::Status WriteHeader() {
    std::set<int> devices;
    for (const DeviceActivity& a : trace_.activities) devices.insert(a.device);
    std::string properties;
    for (const int device : devices) {
      absl::StrAppendFormat(&properties, "%s{\"id\": %d, \"name\": %s}",
                            properties.empty() ? "" : ", ", device,
                            Quoted(trace_.device));
    }
    // HolisticTraceAnalysis looks for "rank" followed by a space.
    return file_.Write(absl::StrFormat(
        "{\n\"schemaVersion\": 1,\n\"deviceProperties\": [%s],\n"
        "\"distributedInfo\": {\"backend\": \"nccl\", \"rank\": %d, "
        "\"world_size\": %d},\n\"displayTimeUnit\": \"ms\",\n"
        "\"baseTimeNanoseconds\": %d,\n\"droppedRecords\": %d,\n"
        "\"traceEvents\": [",
        properties, trace_.rank, trace_.world_size, base_ns_, trace_.dropped));
  }

  absl::Status WriteEvent(string_view event) {
    const string_view separator = first_ ? "\n" : ",\n";
    first_ = false;
    RETURN_IF_ERROR(file_.Write(separator));
    return file_.Write(event);
  }

  // `args` are members of a JSON object, or empty.
  absl::Status WriteSlice(string_view category, string_view quoted_name,
                          const Track& track, int64_t begin_ns, int64_t end_ns,
                          string_view args) {
    return WriteEvent(absl::StrCat(
        "{\"ph\": \"X\", \"cat\": \"", category, "\", \"name\": ", quoted_name,
        ", \"pid\": ", track.process, ", \"tid\": ", track.thread,
        ", \"ts\": ", Micros(begin_ns - base_ns_),
        ", \"dur\": ", Micros(std::max<int64_t>(0, end_ns - begin_ns)),
        ", \"args\": {", args, "}}"));
  }

  absl::Status WriteFlow(string_view phase, uint32_t id, const Track& track,
                         int64_t ns) {
    return WriteEvent(absl::StrCat(
        "{\"ph\": \"", phase, "\", \"id\": ", id, ", \"pid\": ", track.process,
        ", \"tid\": ", track.thread, ", \"ts\": ", Micros(ns - base_ns_),
        ", \"cat\": \"ac2g\", \"name\": \"ac2g\"",
        phase == "f" ? ", \"bp\": \"e\"}" : "}"));
  }

  absl::Status WriteName(string_view kind, const Track& track, string_view name,
                         int64_t order) {
    RETURN_IF_ERROR(WriteEvent(absl::StrFormat(
        "{\"name\": \"%s_name\", \"ph\": \"M\", \"ts\": 0, \"pid\": %d, "
        "\"tid\": %d, \"args\": {\"name\": %s}}",
        kind, track.process, track.thread, Quoted(name))));
    return WriteEvent(absl::StrFormat(
        "{\"name\": \"%s_sort_index\", \"ph\": \"M\", \"ts\": 0, \"pid\": %d, "
        "\"tid\": %d, \"args\": {\"sort_index\": %d}}",
        kind, track.process, track.thread, order));
  }

  absl::Status WriteTrackNames() {
    const Track host{host_process_, 0};
    RETURN_IF_ERROR(
        WriteName("process", host, absl::StrCat("rank ", trace_.rank), -1));
    std::set<uint32_t> threads = {trace_.thread};
    for (const HostCall& call : trace_.calls) threads.insert(call.thread);
    for (const uint32_t thread : threads) {
      const bool trains = thread == trace_.thread;
      RETURN_IF_ERROR(
          WriteName("thread", {host_process_, thread},
                    absl::StrCat(trains ? "trainer " : "thread ", thread),
                    trains ? 0 : 1));
    }
    std::set<std::pair<int, int64_t>> streams;
    for (const DeviceActivity& a : trace_.activities) {
      streams.insert({a.device, a.stream});
    }
    int named = -1;
    for (const auto& [device, stream] : streams) {
      if (device != named) {
        named = device;
        RETURN_IF_ERROR(WriteName(
            "process", {device, 0},
            absl::StrCat("GPU ", device, " ", trace_.device), device));
      }
      RETURN_IF_ERROR(WriteName("thread", {device, stream},
                                absl::StrCat("stream ", stream), stream));
    }
    return absl::OkStatus();
  }

  // The innermost op around a range, as an "External id"; 0 for none.
  int ExternalId(int range) const {
    for (; range >= 0; range = trace_.ranges[range].parent) {
      if (trace_.ranges[range].level == HostRange::Level::kOp) return range + 1;
    }
    return 0;
  }
  std::string ExternalIdArgs(int range) const {
    const int id = ExternalId(range);
    return id == 0 ? "" : absl::StrCat("\"External id\": ", id, ", ");
  }

  absl::Status WriteRanges() {
    const Track trainer{host_process_, trace_.thread};
    for (size_t i = 0; i < trace_.ranges.size(); ++i) {
      const HostRange& range = trace_.ranges[i];
      if (range.in_graph) continue;
      std::string name = quoted_[range.name];
      string_view category = "user_annotation";
      std::string args;
      if (range.level == HostRange::Level::kStep) {
        string_view number = trace_.name(range.name);
        absl::ConsumePrefix(&number, "step_");
        name = Quoted(absl::StrCat("ProfilerStep#", number));
      } else if (range.level == HostRange::Level::kOp) {
        category = "cpu_op";
        args = absl::StrCat("\"External id\": ", i + 1);
      }
      RETURN_IF_ERROR(WriteSlice(category, name, trainer, range.begin_ns,
                                 range.end_ns, args));
    }
    return absl::OkStatus();
  }

  absl::Status WriteCalls() {
    std::unordered_set<uint32_t> launched;
    for (const DeviceActivity& a : trace_.activities) {
      launched.insert(a.correlation);
    }
    for (const HostCall& call : trace_.calls) {
      const string_view name = WithoutVersion(trace_.name(call.name));
      const bool driver =
          absl::StartsWith(name, "cu") && !absl::StartsWith(name, "cuda");
      const Track track{host_process_, call.thread};
      // The driver's call within one of the runtime has its correlation: an
      // activity is to have one call.
      std::string args;
      if (correlated_.insert(call.correlation).second) {
        args = absl::StrCat(ExternalIdArgs(call.range),
                            "\"correlation\": ", call.correlation);
        if (launched.contains(call.correlation)) {
          RETURN_IF_ERROR(
              WriteFlow("s", call.correlation, track, call.begin_ns));
        }
      }
      RETURN_IF_ERROR(WriteSlice(driver ? "cuda_driver" : "cuda_runtime",
                                 Quoted(name), track, call.begin_ns,
                                 call.end_ns, args));
    }
    return absl::OkStatus();
  }

  std::string ArgsOf(const DeviceActivity& a) const {
    std::string args = absl::StrCat(
        ExternalIdArgs(a.range), "\"device\": ", a.device,
        ", \"stream\": ", a.stream, ", \"correlation\": ", a.correlation);
    if (a.graph_node != 0) {
      absl::StrAppend(&args, ", \"graph node id\": ", a.graph_node);
    }
    if (a.kind == DeviceActivity::Kind::kKernel) {
      absl::StrAppendFormat(&args,
                            ", \"registers per thread\": %d, \"shared memory\":"
                            " %d, \"grid\": [%d, %d, %d], \"block\": [%d, %d, "
                            "%d]",
                            a.registers, a.shared_bytes, a.grid[0], a.grid[1],
                            a.grid[2], a.block[0], a.block[1], a.block[2]);
      return args;
    }
    absl::StrAppend(&args, ", \"bytes\": ", a.bytes);
    if (const int64_t ns = a.end_ns - a.begin_ns; ns > 0) {
      absl::StrAppendFormat(
          &args, ", \"memory bandwidth (GB/s)\": %.6g",
          static_cast<double>(a.bytes) / static_cast<double>(ns));
    }
    return args;
  }

  absl::Status WriteActivities() {
    for (const DeviceActivity& a : trace_.activities) {
      const Track track{a.device, a.stream};
      const std::string name =
          a.kind == DeviceActivity::Kind::kKernel
              ? quoted_[a.name]
              : Quoted(ActivityName(a, trace_.name(a.name)));
      RETURN_IF_ERROR(WriteSlice(CategoryOf(a.kind), name, track, a.begin_ns,
                                 a.end_ns, ArgsOf(a)));
      if (correlated_.contains(a.correlation)) {
        RETURN_IF_ERROR(WriteFlow("f", a.correlation, track, a.begin_ns));
      }
    }
    return absl::OkStatus();
  }

  // A phase takes from the begin of its first activity on a stream to the end
  // of its last.
  absl::Status WriteDevicePhases() {
    struct Span {
      int64_t begin_ns = std::numeric_limits<int64_t>::max();
      int64_t end_ns = std::numeric_limits<int64_t>::min();
    };
    std::map<std::tuple<int, int, int64_t>, Span> spans;
    for (const DeviceActivity& a : trace_.activities) {
      for (int r = a.range; r >= 0; r = trace_.ranges[r].parent) {
        if (trace_.ranges[r].level != HostRange::Level::kPhase) continue;
        Span& span = spans[{r, a.device, a.stream}];
        span.begin_ns = std::min(span.begin_ns, a.begin_ns);
        span.end_ns = std::max(span.end_ns, a.end_ns);
      }
    }
    for (const auto& [key, span] : spans) {
      const auto& [range, device, stream] = key;
      RETURN_IF_ERROR(
          WriteSlice("gpu_user_annotation", quoted_[trace_.ranges[range].name],
                     {device, stream}, span.begin_ns, span.end_ns, ""));
    }
    return absl::OkStatus();
  }

  const Trace& trace_;
  GzipFile& file_;
  const int64_t host_process_;
  int64_t base_ns_ = 0;
  std::vector<std::string> quoted_;          // Trace::names as JSON
  std::unordered_set<uint32_t> correlated_;  // calls that were written
  bool first_ = true;
};

}  // namespace

absl::Status WriteChromeTrace(const Trace& trace, const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<GzipFile> file,
                   GzipFile::Create(path));
  RETURN_IF_ERROR(ChromeTraceWriter(trace, *file).Write());
  return file->Close();
}

}  // namespace tessera
