#include "framework/observe/phase_timer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/cuda_graph.h"
#include "framework/cuda/device.h"

namespace tessera {
namespace {

// Beyond this many unread samples, those that have ended are read: a run that
// never logs must not collect events without end.
constexpr size_t kMaxUnread = 4096;

}  // namespace

PhaseTimer::PhaseTimer(const PhaseTimerOptions& options) : options_(options) {
  nodes_.emplace_back();
}

absl::Status PhaseTimer::AddTo(StepRecord* record) {
  Try([&] { record->phases = Take(); });
  if (status_.ok()) return status_;
  return absl::Status(
      status_.code(),
      absl::StrCat("phases cannot be timed: ", status_.message(),
                   "; set observe.phases: false to train without times"));
}

void PhaseTimer::Try(absl::FunctionRef<void()> work) noexcept {
  if (status_.ok()) status_ = StatusFromTorch(work);
}

void PhaseTimer::Drop() {
  for (Node& node : nodes_) {
    node.total_ms = 0;
    node.count = 0;
    node.last_step = 0;
  }
  first_counted_ = first_sample_ + static_cast<int64_t>(samples_.size());
}

void PhaseTimer::BeginStep(int64_t step) noexcept {
  if (++steps_ == 2 && !taken_) Drop();
  step_ = last_step_ = step;
  launched_ = true;
  detailed_ = options_.detail_every_steps > 0 &&
              step % options_.detail_every_steps == 0;
}

void PhaseTimer::EndStep() noexcept {
  step_ = 0;
  detailed_ = false;
  if (samples_.size() > kMaxUnread) {
    Try([this] { Resolve(/*wait=*/false); });
  }
}

void PhaseTimer::Begin(absl::string_view segment) noexcept {
  Try([&] { BeginPhase(segment); });
}

void PhaseTimer::End() noexcept {
  Try([this] { EndPhase(); });
}

void PhaseTimer::BeginPhase(absl::string_view segment) {
  const bool recording = IsCapturing(options_.device);
  const bool inside = !open_samples_.empty() || !open_recorded_.empty();
  const bool detailed = recording ? options_.detail_every_steps > 0 : detailed_;
  if (untimed_depth_ > 0 || (inside && !detailed)) {
    ++untimed_depth_;
    return;
  }
  open_ = ChildOf(open_, segment);
  if (recording) {
    Record(open_);
    return;
  }
  Node& node = nodes_[open_];
  if (step_ == 0 || node.last_step != step_) ++node.count;
  node.last_step = step_;
  open_samples_.push_back(first_sample_ +
                          static_cast<int64_t>(samples_.size()));
  samples_.push_back({.node = open_, .begin = Now()});
}

void PhaseTimer::EndPhase() {
  if (untimed_depth_ > 0) {
    --untimed_depth_;
    return;
  }
  open_ = nodes_[open_].parent;
  if constexpr (kCudaBuild) {
    if (!open_recorded_.empty()) {
      recorded_[open_recorded_.back()].end = RecordNow();
      open_recorded_.pop_back();
      return;
    }
  }
  Sample& sample = samples_[open_samples_.back() - first_sample_];
  sample.end = Now();
  sample.ended = true;
  open_samples_.pop_back();
}

void PhaseTimer::Record(int node) {
  if constexpr (kCudaBuild) {
    // A new recording replaces the old one.
    if (recorded_step_ != step_) recorded_.clear();
    recorded_step_ = step_;
    open_recorded_.push_back(recorded_.size());
    recorded_.push_back({.node = node, .begin = RecordNow()});
  }
}

std::shared_ptr<const GraphMoment> PhaseTimer::RecordNow() {
  if constexpr (kCudaBuild) {
    last_moment_ = RecordMoment(options_.device, std::move(last_moment_));
  }
  return last_moment_;
}

void PhaseTimer::ResolveRecorded() {
  if (!std::exchange(launched_, false)) return;
  for (const RecordedSample& sample : recorded_) {
    if (sample.end == nullptr) continue;  // the recording failed
    Node& node = nodes_[sample.node];
    if (node.last_step != last_step_) ++node.count;
    node.last_step = last_step_;
    node.total_ms += sample.end->MsSince(*sample.begin);
  }
}

int PhaseTimer::ChildOf(int parent, absl::string_view segment) {
  for (const int child : nodes_[parent].children) {
    if (nodes_[child].segment == segment) return child;
  }
  const int child = static_cast<int>(nodes_.size());
  nodes_[parent].children.push_back(child);
  nodes_.push_back(
      {.path = parent == 0 ? std::string(segment)
                           : absl::StrCat(nodes_[parent].path, "/", segment),
       .segment = std::string(segment),
       .parent = parent});
  return child;
}

PhaseTimer::Moment PhaseTimer::Now() {
  if (options_.device.is_cpu()) return {.time = options_.clock()};
  Moment moment;
  if (idle_events_.empty()) {
    moment.event = std::make_unique<c10::Event>(
        options_.device.type(), c10::EventFlag::BACKEND_DEFAULT);
  } else {
    moment.event = std::move(idle_events_.back());
    idle_events_.pop_back();
  }
  moment.event->record(CurrentStream(options_.device));
  return moment;
}

void PhaseTimer::Resolve(bool wait) {
  while (!samples_.empty() && samples_.front().ended) {
    Sample& sample = samples_.front();
    double ms = 0;
    if (sample.end.event == nullptr) {
      ms = absl::ToDoubleMilliseconds(sample.end.time - sample.begin.time);
    } else {
      if (wait) {
        sample.end.event->synchronize();
      } else if (!sample.end.event->query()) {
        return;
      }
      ms = sample.begin.event->elapsedTime(*sample.end.event);
      idle_events_.push_back(std::move(sample.begin.event));
      idle_events_.push_back(std::move(sample.end.event));
    }
    if (first_sample_ >= first_counted_) nodes_[sample.node].total_ms += ms;
    samples_.pop_front();
    ++first_sample_;
  }
}

std::vector<PhaseTime> PhaseTimer::Take() {
  Resolve(/*wait=*/true);
  ResolveRecorded();
  std::vector<PhaseTime> times;
  List(0, &times);
  Drop();
  taken_ = true;
  return times;
}

void PhaseTimer::List(int node, std::vector<PhaseTime>* times) const {
  const Node& phase = nodes_[node];
  if (phase.count > 0) {
    times->push_back({.path = phase.path,
                      .ms = phase.total_ms / static_cast<double>(phase.count),
                      .count = phase.count});
  }
  for (const int child : phase.children) List(child, times);
}

}  // namespace tessera
