#include "framework/observe/memory/allocation_log.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

int64_t& At(BytesByCategory& bytes, MemoryCategory category) {
  return bytes[static_cast<size_t>(category)];
}

// The row with this name, which is added to the end if there is none.
template <typename Row>
Row& RowNamed(const std::string& name, std::string Row::*member,
              std::vector<Row>* rows) {
  for (Row& row : *rows) {
    if (row.*member == name) return row;
  }
  rows->emplace_back().*member = name;
  return rows->back();
}

}  // namespace

void AllocationLog::Allocate(uint64_t address, int64_t bytes) {
  if (live_.contains(address)) Free(address);
  const int index = static_cast<int>(allocations_.size());
  live_[address] = index;
  allocated_ += bytes;
  allocations_.push_back({.address = address,
                          .bytes = bytes,
                          .born = Now(static_cast<int>(events_.size())),
                          .died = {.event = kAfterStep}});
  if (in_step_) {
    events_.push_back({.kind = Event::Kind::kAllocate, .index = index});
  }
}

void AllocationLog::Free(uint64_t address) {
  const auto found = live_.find(address);
  if (found == live_.end()) return;
  const int index = found->second;
  live_.erase(found);
  allocated_ -= allocations_[index].bytes;
  if (!in_step_) return;
  allocations_[index].died = Now(static_cast<int>(events_.size()));
  events_.push_back({.kind = Event::Kind::kFree, .index = index});
}

void AllocationLog::Sample(int64_t allocated, int64_t reserved) {
  last_sample_ = {.allocated = allocated, .reserved = reserved};
  if (in_step_) events_.push_back(last_sample_);
}

void AllocationLog::Own(MemoryCategory category, uint64_t address) {
  owners_.push_back({category, address});
}

void AllocationLog::BeginStep(int64_t step) noexcept {
  std::vector<Allocation> kept;
  kept.reserve(live_.size());
  for (auto& [address, index] : live_) {
    kept.push_back(allocations_[index]);
    kept.back().born.event = kBeforeStep;
    index = static_cast<int>(kept.size()) - 1;
  }
  allocations_ = std::move(kept);
  events_ = {last_sample_};
  step_ = step;
  step_begin_ = clock_();
  in_step_ = true;
}

void AllocationLog::Begin(absl::string_view segment) noexcept {
  Enter(segment, /*is_op=*/false, OpResults::kOther);
  if (in_step_ && nodes_[open_].parent == 0) {
    events_.push_back({.kind = Event::Kind::kBeginPhase, .index = open_});
  }
}

void AllocationLog::End() noexcept {
  if (in_step_ && nodes_[open_].parent == 0) {
    events_.push_back({.kind = Event::Kind::kEndPhase, .index = open_});
  }
  open_ = nodes_[open_].parent;
}

void AllocationLog::BeginOp(absl::string_view name,
                            OpResults results) noexcept {
  Enter(name, /*is_op=*/true, results);
  open_op_run_ = ++op_runs_;
}

void AllocationLog::EndOp() noexcept {
  open_ = nodes_[open_].parent;
  open_op_run_ = 0;
}

void AllocationLog::Enter(absl::string_view name, bool is_op,
                          OpResults results) {
  for (const int child : nodes_[open_].children) {
    const Node& node = nodes_[child];
    if (node.name == name && node.is_op == is_op && node.results == results) {
      open_ = child;
      return;
    }
  }
  const int child = static_cast<int>(nodes_.size());
  nodes_[open_].children.push_back(child);
  nodes_.push_back({.name = std::string(name),
                    .is_op = is_op,
                    .results = results,
                    .parent = open_});
  open_ = child;
}

AllocationLog::Moment AllocationLog::Now(int event) const {
  return {
      .event = event, .node = open_, .op_run = open_op_run_, .time = clock_()};
}

std::vector<int> AllocationLog::Chain(int node) const {
  std::vector<int> chain;
  for (; node > 0; node = nodes_[node].parent) chain.push_back(node);
  std::reverse(chain.begin(), chain.end());
  return chain;
}

std::string AllocationLog::PathOf(int node) const {
  std::string path;
  for (const int n : Chain(node)) {
    absl::StrAppend(&path, path.empty() ? "" : "/", nodes_[n].name);
  }
  return path;
}

MemoryCategory AllocationLog::Classify(const Allocation& allocation) const {
  for (const Owner& owner : owners_) {
    if (owner.address >= allocation.address &&
        owner.address <
            allocation.address + std::max<int64_t>(1, allocation.bytes)) {
      return owner.category;
    }
  }
  const Moment& born = allocation.born;
  if (born.op_run == 0) return MemoryCategory::kOther;
  int op = born.node;
  while (!nodes_[op].is_op) op = nodes_[op].parent;
  if (nodes_[op].results == OpResults::kCommunication) {
    return MemoryCategory::kCommunication;
  }
  // Values of a step do not outlive it: what does is a library's.
  if (born.event == kBeforeStep || allocation.died.event == kAfterStep ||
      allocation.died.op_run == born.op_run) {
    return MemoryCategory::kWorkspace;
  }
  switch (nodes_[op].results) {
    case OpResults::kActivations:
      return MemoryCategory::kActivations;
    case OpResults::kGradients:
      return MemoryCategory::kActivationGradients;
    default:
      return MemoryCategory::kOther;
  }
}

MemoryRecord AllocationLog::Report(const ReportOptions& options) const {
  MemoryRecord record{.step = step_};
  const std::vector<Count> counts = Replay();
  if (counts.empty()) return record;
  size_t peak = 0;
  std::optional<int> forward_end;
  for (size_t i = 0; i < events_.size(); ++i) {
    if (counts[i].allocated > counts[peak].allocated) peak = i;
    if (events_[i].kind == Event::Kind::kEndPhase &&
        nodes_[events_[i].index].name == "forward") {
      forward_end = static_cast<int>(i);
    }
  }
  record.phases = Phases(counts);
  record.peak = BreakDown(static_cast<int>(peak), counts[peak]);
  // The allocator's rounding is counted only by the sample that follows an
  // allocation; a free in between would have lowered the count.
  size_t cause = peak;
  while (cause > 0 && events_[cause].kind != Event::Kind::kAllocate) --cause;
  if (events_[cause].kind == Event::Kind::kAllocate) {
    record.peak_in = PathOf(allocations_[events_[cause].index].born.node);
  }
  record.end = BreakDown(static_cast<int>(counts.size()) - 1, counts.back());
  if (forward_end.has_value()) {
    record.saved = BreakDown(*forward_end, counts[*forward_end]).activations;
  }
  record.largest = Largest(options.most_largest);
  if (options.with_timeline) record.timeline = Timeline();
  return record;
}

std::vector<AllocationLog::Count> AllocationLog::Replay() const {
  int64_t total = 0;
  for (const Allocation& allocation : allocations_) {
    if (allocation.born.event == kBeforeStep) total += allocation.bytes;
  }
  std::vector<Count> counts;
  int64_t slack = 0, reserved = 0;
  for (const Event& event : events_) {
    switch (event.kind) {
      case Event::Kind::kAllocate:
        total += allocations_[event.index].bytes;
        break;
      case Event::Kind::kFree:
        total -= allocations_[event.index].bytes;
        break;
      case Event::Kind::kSample:
        slack = event.allocated - total;
        reserved = event.reserved;
        break;
      case Event::Kind::kBeginPhase:
      case Event::Kind::kEndPhase:
        break;
    }
    // The allocator may take memory from the device for an allocation, which
    // the next sample shows.
    counts.push_back({.allocated = total + slack,
                      .reserved = std::max(reserved, total + slack)});
  }
  for (size_t i = counts.size(); i-- > 1;) {
    if (events_[i - 1].kind == Event::Kind::kAllocate) {
      counts[i - 1].reserved =
          std::max(counts[i - 1].reserved, counts[i].reserved);
    }
  }
  return counts;
}

MemoryBreakdown AllocationLog::BreakDown(int event, const Count& count) const {
  MemoryBreakdown result{.allocated = count.allocated,
                         .reserved = count.reserved};
  for (const Allocation& allocation : allocations_) {
    if (allocation.born.event > event || allocation.died.event <= event) {
      continue;
    }
    const MemoryCategory category = Classify(allocation);
    At(result.bytes, category) += allocation.bytes;
    if (category != MemoryCategory::kActivations) continue;
    // "forward/block_3/attention/sdpa/scores" -> "block_3", "attention/sdpa".
    std::string block, op;
    for (const int node : Chain(allocation.born.node)) {
      const Node& n = nodes_[node];
      if (n.parent == 0 || n.name == "recompute") continue;
      if (block.empty()) {
        block = n.name;
        if (n.is_op) op = n.name;
      } else {
        absl::StrAppend(&op, op.empty() ? "" : "/", n.name);
      }
      if (n.is_op) break;
    }
    // The one buffer of execution.storage: ARENA is older than any step.
    if (block.empty()) block = op = "arena";
    BlockBytes& of_block =
        RowNamed(block, &BlockBytes::block, &result.activations);
    RowNamed(op, &BlockBytes::OpBytes::op, &of_block.ops).bytes +=
        allocation.bytes;
  }
  return result;
}

std::vector<PhaseMemory> AllocationLog::Phases(
    const std::vector<Count>& counts) const {
  std::vector<PhaseMemory> phases;
  PhaseMemory* open = nullptr;
  for (size_t i = 0; i < events_.size(); ++i) {
    const Event& event = events_[i];
    if (event.kind == Event::Kind::kBeginPhase) {
      open = &RowNamed(nodes_[event.index].name, &PhaseMemory::phase, &phases);
    }
    if (open == nullptr) continue;
    open->peak = std::max(open->peak, counts[i].allocated);
    open->allocated = counts[i].allocated;
    open->reserved = counts[i].reserved;
    if (event.kind == Event::Kind::kEndPhase) open = nullptr;
  }
  return phases;
}

std::vector<LargeAllocation> AllocationLog::Largest(size_t most) const {
  std::vector<const Allocation*> largest;
  for (const Allocation& allocation : allocations_) {
    // What follows the step's end is numbered after its events.
    if (allocation.born.event != kBeforeStep &&
        allocation.born.event < static_cast<int>(events_.size())) {
      largest.push_back(&allocation);
    }
  }
  std::stable_sort(
      largest.begin(), largest.end(),
      [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  largest.resize(std::min(largest.size(), most));
  std::vector<LargeAllocation> result;
  for (const Allocation* allocation : largest) {
    const bool freed = allocation->died.event != kAfterStep;
    result.push_back(
        {.bytes = allocation->bytes,
         .category = Classify(*allocation),
         .from = PathOf(allocation->born.node),
         .to = freed ? PathOf(allocation->died.node) : "",
         .at_ms =
             absl::ToDoubleMilliseconds(allocation->born.time - step_begin_),
         .ms = freed ? absl::ToDoubleMilliseconds(allocation->died.time -
                                                  allocation->born.time)
                     : 0});
  }
  return result;
}

MemoryTimeline AllocationLog::Timeline() const {
  MemoryTimeline::Point now;
  for (const Allocation& allocation : allocations_) {
    if (allocation.born.event == kBeforeStep) {
      At(now.bytes, Classify(allocation)) += allocation.bytes;
    }
  }
  std::vector<MemoryTimeline::Point> all = {now};
  for (const Event& event : events_) {
    const bool allocates = event.kind == Event::Kind::kAllocate;
    if (!allocates && event.kind != Event::Kind::kFree) continue;
    const Allocation& allocation = allocations_[event.index];
    At(now.bytes, Classify(allocation)) +=
        allocates ? allocation.bytes : -allocation.bytes;
    const Moment& moment = allocates ? allocation.born : allocation.died;
    now.us = absl::ToInt64Microseconds(moment.time - step_begin_);
    all.push_back(now);
  }
  const auto total = [](const MemoryTimeline::Point& point) {
    return std::accumulate(point.bytes.begin(), point.bytes.end(), int64_t{0});
  };
  const size_t stride = (all.size() + MemoryTimeline::kMaxPoints - 1) /
                        MemoryTimeline::kMaxPoints;
  MemoryTimeline timeline;
  for (size_t i = 0; i < all.size(); i += stride) {
    const auto end = all.begin() + std::min(i + stride, all.size());
    timeline.points.push_back(*std::max_element(
        all.begin() + i, end,
        [&](const auto& a, const auto& b) { return total(a) < total(b); }));
  }
  return timeline;
}

}  // namespace tessera
