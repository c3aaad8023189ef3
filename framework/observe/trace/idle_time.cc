#include "framework/observe/trace/idle_time.h"

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/observe/trace/kernel_name.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;
using StreamKey = std::pair<int, int64_t>;  // device, stream

constexpr int64_t kNever = std::numeric_limits<int64_t>::min();

absl::string_view IdleClassName(IdleClass idle_class) {
  constexpr absl::string_view kNames[] = {"host wait", "kernel wait", "other"};
  return kNames[static_cast<int>(idle_class)];
}

IdleClass ClassOfGap(int64_t begin_ns, const IssuedActivity& next,
                     const IdleTimeOptions& options) {
  if (next.call != nullptr && next.call->begin_ns > begin_ns) {
    return IdleClass::kHostWait;
  }
  return next.activity->begin_ns - begin_ns < options.kernel_wait_below_ns
             ? IdleClass::kKernelWait
             : IdleClass::kOther;
}

void Add(IdleClass idle_class, int64_t ns, IdleTime* idle) {
  switch (idle_class) {
    case IdleClass::kHostWait:
      idle->host_wait_ns += ns;
      break;
    case IdleClass::kKernelWait:
      idle->kernel_wait_ns += ns;
      break;
    case IdleClass::kOther:
      idle->other_ns += ns;
      break;
  }
}

// Goes through activities in the order of their begin and finds the gaps
// between them.
class GapFinder {
 public:
  explicit GapFinder(const IdleTimeOptions& options) : options_(options) {}

  // Calls visit(gap begin, class) if there is a gap before `next`.
  template <typename Visit>
  void Add(const IssuedActivity& next, const Visit& visit) {
    const DeviceActivity& activity = *next.activity;
    if (end_ns_ != kNever && activity.begin_ns > end_ns_) {
      visit(end_ns_, ClassOfGap(end_ns_, next, options_));
    }
    busy_ns_ += std::max<int64_t>(
        0, activity.end_ns - std::max(activity.begin_ns, end_ns_));
    end_ns_ = std::max(end_ns_, activity.end_ns);
  }

  int64_t busy_ns() const { return busy_ns_; }
  int64_t end_ns() const { return end_ns_; }

 private:
  const IdleTimeOptions& options_;
  int64_t end_ns_ = kNever;
  int64_t busy_ns_ = 0;
};

std::vector<StreamIdleTime> IdleTimeOfStreams(
    const std::vector<IssuedActivity>& issued, const IdleTimeOptions& options) {
  struct Stream {
    GapFinder gaps;
    IdleTime idle;
  };
  std::map<StreamKey, Stream> streams;
  for (const IssuedActivity& next : issued) {
    const StreamKey key(next.activity->device, next.activity->stream);
    Stream& stream =
        streams.try_emplace(key, Stream{.gaps = GapFinder(options)})
            .first->second;
    stream.gaps.Add(next, [&](int64_t begin_ns, IdleClass idle_class) {
      Add(idle_class, next.activity->begin_ns - begin_ns, &stream.idle);
    });
  }
  std::vector<StreamIdleTime> result;
  for (const auto& [key, stream] : streams) {
    result.push_back({.device = key.first,
                      .stream = key.second,
                      .busy_ns = stream.gaps.busy_ns(),
                      .idle = stream.idle});
  }
  return result;
}

void AnalyzeDevice(const Trace& trace,
                   const std::vector<IssuedActivity>& issued,
                   const IdleTimeOptions& options, IdleTimeReport* report) {
  if (issued.empty()) return;
  DeviceTime& device = report->device;
  GapFinder all(options), compute(options);
  std::unordered_map<int, bool> is_communication;  // by name
  std::vector<std::pair<IdleGap, const DeviceActivity*>> gaps;
  for (const IssuedActivity& next : issued) {
    const DeviceActivity& activity = *next.activity;
    all.Add(next, [&](int64_t begin_ns, IdleClass idle_class) {
      Add(idle_class, activity.begin_ns - begin_ns, &device.idle);
      gaps.push_back({{.begin_ns = begin_ns,
                       .end_ns = activity.begin_ns,
                       .idle_class = idle_class},
                      &activity});
    });
    const auto [known, is_new] = is_communication.emplace(activity.name, false);
    if (is_new) known->second = IsCommunication(trace.name(activity.name));
    if (!known->second) compute.Add(next, [](int64_t, IdleClass) {});
  }
  device.span_ns = all.end_ns() - issued[0].activity->begin_ns;
  device.compute_ns = compute.busy_ns();
  device.communication_ns = all.busy_ns() - compute.busy_ns();
  absl::c_stable_sort(gaps, [](const auto& a, const auto& b) {
    return a.first.ns() > b.first.ns();
  });
  gaps.resize(std::min(gaps.size(), options.longest_gaps));
  for (auto& [gap, activity] : gaps) {
    gap.kernel = ReadableKernelName(trace.name(activity->name));
    gap.path = trace.PathOf(activity->range);
    report->longest.push_back(std::move(gap));
  }
}

LaunchStatistics LaunchesOf(const std::vector<IssuedActivity>& issued) {
  LaunchStatistics statistics;
  struct Event {
    int64_t ns;
    bool begins;  // else launched
  };
  std::map<StreamKey, std::vector<Event>> streams;
  int64_t delay_ns = 0, max_delay_ns = 0;
  for (const auto& [activity, call] : issued) {
    if (call == nullptr || activity->graph_node != 0) continue;
    ++statistics.launches;
    const int64_t delay =
        std::max<int64_t>(0, activity->begin_ns - call->end_ns);
    delay_ns += delay;
    max_delay_ns = std::max(max_delay_ns, delay);
    if (activity->end_ns - activity->begin_ns < call->end_ns - call->begin_ns) {
      ++statistics.shorter_than_launch;
    }
    std::vector<Event>& events = streams[{activity->device, activity->stream}];
    events.push_back({call->begin_ns, false});
    events.push_back({activity->begin_ns, true});
  }
  if (statistics.launches == 0) return statistics;
  int64_t sum = 0;
  statistics.min_queue = std::numeric_limits<int64_t>::max();
  for (auto& [key, events] : streams) {
    absl::c_stable_sort(
        events, [](const Event& a, const Event& b) { return a.ns < b.ns; });
    int64_t queue = 0;
    for (const Event& event : events) {
      queue += event.begins ? -1 : 1;
      if (!event.begins) continue;
      sum += queue;
      statistics.min_queue = std::min(statistics.min_queue, queue);
      statistics.max_queue = std::max(statistics.max_queue, queue);
    }
  }
  const auto count = static_cast<double>(statistics.launches);
  statistics.mean_queue = static_cast<double>(sum) / count;
  statistics.mean_delay_us = static_cast<double>(delay_ns) * 1e-3 / count;
  statistics.max_delay_us = static_cast<double>(max_delay_ns) * 1e-3;
  return statistics;
}

double Share(int64_t ns, int64_t span_ns) {
  return span_ns == 0 ? 0
                      : static_cast<double>(ns) / static_cast<double>(span_ns);
}

// Keeps the `most` busiest, by device and stream. Returns how many it removed.
int64_t KeepBusiest(size_t most, std::vector<StreamIdleTime>* streams) {
  if (streams->size() <= most) return 0;
  const auto removed = static_cast<int64_t>(streams->size() - most);
  absl::c_stable_sort(*streams,
                      [](const StreamIdleTime& a, const StreamIdleTime& b) {
                        return a.busy_ns > b.busy_ns;
                      });
  streams->resize(most);
  absl::c_sort(*streams, [](const StreamIdleTime& a, const StreamIdleTime& b) {
    return std::pair(a.device, a.stream) < std::pair(b.device, b.stream);
  });
  return removed;
}

Json IdleToJson(const IdleTime& idle) {
  return {{"host_wait_ms", static_cast<double>(idle.host_wait_ns) * 1e-6},
          {"kernel_wait_ms", static_cast<double>(idle.kernel_wait_ns) * 1e-6},
          {"other_ms", static_cast<double>(idle.other_ns) * 1e-6}};
}

}  // namespace

double DeviceTime::gpu_bound() const {
  return Share(compute_ns + idle.kernel_wait_ns + idle.other_ns, span_ns);
}
double DeviceTime::cpu_bound() const {
  return Share(idle.host_wait_ns, span_ns);
}
double DeviceTime::communication_bound() const {
  return Share(communication_ns, span_ns);
}

IdleTimeReport AnalyzeIdleTime(const Trace& trace,
                               const IdleTimeOptions& options) {
  const std::vector<IssuedActivity> issued = IssuedActivities(trace);
  IdleTimeReport report;
  report.streams = IdleTimeOfStreams(issued, options);
  report.other_streams = KeepBusiest(options.most_streams, &report.streams);
  AnalyzeDevice(trace, issued, options, &report);
  report.launches = LaunchesOf(issued);
  return report;
}

std::string BoundSentence(const DeviceTime& device) {
  return absl::StrFormat(
      "%.1f %% GPU-bound, %.1f %% CPU-bound, %.1f %% communication-bound",
      100 * device.gpu_bound(), 100 * device.cpu_bound(),
      100 * device.communication_bound());
}

Json IdleTimeToJson(const IdleTimeReport& report) {
  Json streams = Json::array();
  for (const StreamIdleTime& stream : report.streams) {
    Json row = {{"device", stream.device},
                {"stream", stream.stream},
                {"busy_ms", static_cast<double>(stream.busy_ns) * 1e-6}};
    row.update(IdleToJson(stream.idle));
    streams.push_back(std::move(row));
  }
  Json longest = Json::array();
  for (const IdleGap& gap : report.longest) {
    longest.push_back({{"us", static_cast<double>(gap.ns()) * 1e-3},
                       {"class", std::string(IdleClassName(gap.idle_class))},
                       {"ended_by", gap.kernel},
                       {"path", gap.path}});
  }
  const DeviceTime& device = report.device;
  Json span = {{"span_ms", static_cast<double>(device.span_ns) * 1e-6},
               {"compute_ms", static_cast<double>(device.compute_ns) * 1e-6},
               {"communication_ms",
                static_cast<double>(device.communication_ns) * 1e-6}};
  span.update(IdleToJson(device.idle));
  const LaunchStatistics& launches = report.launches;
  return {{"summary", BoundSentence(device)},
          {"gpu_bound", device.gpu_bound()},
          {"cpu_bound", device.cpu_bound()},
          {"communication_bound", device.communication_bound()},
          {"device", std::move(span)},
          {"streams", std::move(streams)},
          {"other_streams", report.other_streams},
          {"longest_gaps", std::move(longest)},
          {"launches",
           {{"count", launches.launches},
            {"shorter_than_launch", launches.shorter_than_launch},
            {"mean_delay_us", launches.mean_delay_us},
            {"max_delay_us", launches.max_delay_us},
            {"min_queue", launches.min_queue},
            {"mean_queue", launches.mean_queue},
            {"max_queue", launches.max_queue}}}};
}

std::string FormatIdleTime(const IdleTimeReport& report) {
  std::string text = absl::StrCat(BoundSentence(report.device), "\n");
  absl::StrAppendFormat(&text, "\n%-16s%12s%14s%16s%12s\n", "stream", "busy ms",
                        "host wait ms", "kernel wait ms", "other ms");
  const auto add = [&](const std::string& name, int64_t busy_ns,
                       const IdleTime& idle) {
    absl::StrAppendFormat(&text, "%-16s%12.3f%14.3f%16.3f%12.3f\n", name,
                          static_cast<double>(busy_ns) * 1e-6,
                          static_cast<double>(idle.host_wait_ns) * 1e-6,
                          static_cast<double>(idle.kernel_wait_ns) * 1e-6,
                          static_cast<double>(idle.other_ns) * 1e-6);
  };
  for (const StreamIdleTime& stream : report.streams) {
    add(absl::StrCat(stream.device, ":", stream.stream), stream.busy_ns,
        stream.idle);
  }
  if (report.other_streams > 0) {
    absl::StrAppend(&text, "and ", report.other_streams,
                    " streams that were less busy\n");
  }
  add("all streams", report.device.compute_ns + report.device.communication_ns,
      report.device.idle);
  if (!report.longest.empty()) {
    absl::StrAppendFormat(&text, "\n%10s  %-12s%s\n", "gap us", "class",
                          "ended by");
  }
  for (const IdleGap& gap : report.longest) {
    const std::string ended_by = gap.path.empty()
                                     ? gap.kernel
                                     : absl::StrCat(gap.path, ": ", gap.kernel);
    absl::StrAppendFormat(&text, "%10.1f  %-12s%.76s\n",
                          static_cast<double>(gap.ns()) * 1e-3,
                          IdleClassName(gap.idle_class), ended_by);
  }
  const LaunchStatistics& launches = report.launches;
  absl::StrAppendFormat(
      &text,
      "\n%d launches, %d of them longer than what they launched; from launch "
      "to begin %.1f us\n(at most %.1f us); queue of %.1f (%d to %d) as an "
      "activity begins\n",
      launches.launches, launches.shorter_than_launch, launches.mean_delay_us,
      launches.max_delay_us, launches.mean_queue, launches.min_queue,
      launches.max_queue);
  return text;
}

}  // namespace tessera
