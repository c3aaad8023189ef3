#include "framework/program/lifetime.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "framework/base/check.h"
#include "framework/program/offset_allocator.h"
#include "framework/program/stream_order.h"

namespace tessera {
namespace {

constexpr int kForever = std::numeric_limits<int>::max();

// Whether a value has a buffer once a run has written it.
bool IsMade(const ValueInfo& info) {
  return info.role == Role::kActivation || info.role == Role::kGradient ||
         info.role == Role::kGathered;
}

class Planner {
 public:
  Planner(const Schedule& schedule, const LifetimeOptions& options)
      : schedule_(schedule),
        options_(options),
        order_(schedule),
        last_read_(schedule.values.size(), -1),
        joint_of_(schedule.values.size(), -1),
        buffer_of_joint_(schedule.joint.size(), -1) {
    for (const StepRun& run : schedule.runs) {
      accesses_.push_back(AccessesOf(schedule, run));
    }
    plan_.buffer_of.assign(schedule.values.size(), -1);
    plan_.offset_in_buffer.assign(schedule.values.size(), 0);
    plan_.written_over.assign(schedule.values.size(), -1);
    for (size_t j = 0; j < schedule.joint.size(); ++j) {
      for (const JointBuffer::Part& part : schedule.joint[j].parts) {
        joint_of_[part.value] = static_cast<int>(j);
        plan_.offset_in_buffer[part.value] = part.offset;
      }
    }
    plan_.dead_after.resize(schedule.runs.size());
  }

  Lifetimes Plan() && {
    FindLastReads();
    for (int run = 0; run < NumRuns(); ++run) AssignBuffers(run);
    if (options_.lend_gradients) LendGradients();
    if (options_.arena || !schedule_.joint.empty()) FillArena();
    return std::move(plan_);
  }

 private:
  int NumRuns() const { return static_cast<int>(schedule_.runs.size()); }

  // Whether it is a value with a buffer.
  bool HasBuffer(const Access& access) const {
    return access.value >= 0 && IsMade(schedule_.values[access.value]);
  }

  void FindLastReads() {
    for (int run = 0; run < NumRuns(); ++run) {
      // A result that nobody reads dies immediately.
      for (const Access& access : accesses_[run]) {
        if (!HasBuffer(access)) continue;
        // The run that waits for one of another stream must not write over what
        // that one reads either.
        int& last = last_read_[access.value];
        last = std::max(last, order_.JoinedAt(run));
      }
    }
    for (const int output : schedule_.outputs) last_read_[output] = kForever;
    for (size_t v = 0; v < last_read_.size(); ++v) {
      const bool made = IsMade(schedule_.values[v]);
      if (made && last_read_[v] >= 0 && last_read_[v] != kForever) {
        // What a run of another stream reads to the end dies with the step.
        plan_.dead_after[std::min(last_read_[v], NumRuns() - 1)].push_back(
            static_cast<int>(v));
      }
    }
  }

  // The values that `value`, an output of `run`, may overwrite, best first.
  std::vector<int> Candidates(const StepRun& run, int value) const {
    if (run.kind == StepRun::Kind::kAdd) return run.operands;
    const Op& op = *schedule_.program->ops()[run.op].op;
    std::vector<int> candidates;
    if (run.kind == StepRun::Kind::kForward) {
      const auto at = std::find(run.results.begin(), run.results.end(), value);
      const auto operand =
          op.ResultMayOverwrite(static_cast<int>(at - run.results.begin()));
      if (operand.has_value()) candidates.push_back(run.operands[*operand]);
      return candidates;
    }
    for (size_t i = 0; i < run.d_operands.size(); ++i) {
      if (run.d_operands[i].value != value) continue;
      for (const Overwritable& o :
           op.GradientMayOverwrite(static_cast<int>(i))) {
        switch (o.what) {
          case Overwritable::What::kOperand:
            candidates.push_back(run.operands[o.position]);
            break;
          case Overwritable::What::kResult:
            candidates.push_back(run.results[o.position]);
            break;
          case Overwritable::What::kResultGradient:
            candidates.push_back(run.d_results[o.position]);
            break;
        }
      }
    }
    return candidates;
  }

  bool MayTake(int candidate, int value, int run) const {
    if (candidate < 0 || plan_.buffer_of[candidate] < 0 ||
        joint_of_[candidate] >= 0) {
      return false;
    }
    const TensorType& from = schedule_.values[candidate].type;
    const TensorType& to = schedule_.values[value].type;
    if (from.dtype != to.dtype || from.bytes() != to.bytes()) return false;
    const Buffer& buffer = plan_.buffers[plan_.buffer_of[candidate]];
    // The candidate is the buffer's last value: no other output of this run has
    // taken it.
    return buffer.last <= run && buffer.values.back() == candidate;
  }

  void AssignBuffers(int run_index) {
    const StepRun& run = schedule_.runs[run_index];
    const bool by_op = run.kind == StepRun::Kind::kForward &&
                       schedule_.program->ops()[run.op].op->AllocatesResults();
    for (const Access& access : accesses_[run_index]) {
      if (!access.writes || !HasBuffer(access)) continue;
      AssignBuffer(run, run_index, access.value, by_op);
    }
  }

  // The values of a joint buffer get it together.
  void AssignJoint(int run_index, int value) {
    const int joint = joint_of_[value];
    int& buffer = buffer_of_joint_[joint];
    if (buffer < 0) {
      buffer = static_cast<int>(plan_.buffers.size());
      plan_.buffers.push_back({.bytes = schedule_.joint[joint].bytes,
                               .first = run_index,
                               .joint = true});
      for (const JointBuffer::Part& part : schedule_.joint[joint].parts) {
        plan_.buffers[buffer].values.push_back(part.value);
        plan_.buffer_of[part.value] = buffer;
        int& last = plan_.buffers[buffer].last;
        last = std::max(last, last_read_[part.value]);
      }
    }
    int& first = plan_.buffers[buffer].first;
    first = std::min(first, order_.MayBeginAt(run_index));
  }

  void AssignBuffer(const StepRun& run, int run_index, int value, bool by_op) {
    if (joint_of_[value] >= 0) return AssignJoint(run_index, value);
    TESSERA_CHECK(plan_.buffer_of[value] < 0,
                  "written twice: ", schedule_.values[value].name);
    for (const int candidate : Candidates(run, value)) {
      if (!MayTake(candidate, value, run_index)) continue;
      Buffer& buffer = plan_.buffers[plan_.buffer_of[candidate]];
      buffer.values.push_back(value);
      buffer.last = last_read_[value];
      plan_.buffer_of[value] = plan_.buffer_of[candidate];
      plan_.written_over[value] = candidate;
      return;
    }
    plan_.buffer_of[value] = static_cast<int>(plan_.buffers.size());
    plan_.buffers.push_back(
        {.bytes = schedule_.values[value].type.bytes(),
         .first = run_index,
         .last = last_read_[value],
         .storage = by_op ? Storage::kOp : Storage::kAllocator,
         .values = {value}});
  }

  // Iterates over the runs in order and places every buffer for which `wants`
  // is true. Calls place(buffer) when its lifetime begins and done(buffer) when
  // it has ended.
  template <typename Place, typename Done>
  void Sweep(const Place& place, const Done& done) {
    std::vector<std::vector<int>> beginning(NumRuns()), ending(NumRuns());
    for (size_t b = 0; b < plan_.buffers.size(); ++b) {
      beginning[plan_.buffers[b].first].push_back(static_cast<int>(b));
    }
    for (int run = 0; run < NumRuns(); ++run) {
      for (const int b : beginning[run]) {
        Buffer& buffer = plan_.buffers[b];
        if (buffer.storage != Storage::kAllocator || buffer.bytes == 0)
          continue;
        if (place(&buffer) && buffer.last < NumRuns()) {
          ending[buffer.last].push_back(b);
        }
      }
      for (const int b : ending[run]) done(plan_.buffers[b]);
    }
  }

  void LendGradients();
  void FillArena();

  const Schedule& schedule_;
  const LifetimeOptions& options_;
  const StreamOrder order_;
  std::vector<std::vector<Access>> accesses_;  // by run
  std::vector<int> last_read_;                 // by value; kForever for outputs
  std::vector<int> joint_of_;  // by value: index into Schedule::joint, or -1
  std::vector<int> buffer_of_joint_;
  Lifetimes plan_;
};

// Knows until when each part of the gradient buffer is idle.
class IdleGradients {
 public:
  IdleGradients(const Schedule& schedule, const StreamOrder& order,
                absl::Span<const std::vector<Access>> accesses) {
    const std::vector<GradientRange>& ranges = schedule.gradients;
    for (size_t p = 0; p < ranges.size(); ++p) {
      if (ranges[p].end > ranges[p].begin) {
        parts_.push_back(
            {.range = ranges[p], .parameter = static_cast<int>(p)});
      }
    }
    std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) {
      return a.range.begin < b.range.begin;
    });
    // The gap behind a gradient is summed over the ranks and updated with it,
    // and that before the first of a section with the first.
    if (!parts_.empty()) parts_[0].range.begin = 0;
    for (size_t i = 0; i + 1 < parts_.size(); ++i) {
      int64_t& next = parts_[i + 1].range.begin;
      for (const GradientRange& section : schedule.shards.sections) {
        if (section.begin >= parts_[i].range.end) {
          next = std::min(next, section.begin);
        }
      }
      parts_[i].range.end = next;
    }
    std::vector<int> written(ranges.size(), kForever), updated(ranges.size());
    for (size_t run = 0; run < schedule.runs.size(); ++run) {
      const int r = static_cast<int>(run);
      const StepRun& step_run = schedule.runs[run];
      const bool pending = schedule.starts_pending &&
                           schedule.IsTask(step_run, Task::Kind::kUpdate);
      for (const Access& access : accesses[run]) {
        if (access.parameter < 0) continue;
        if (pending) {
          updated[access.parameter] = order.JoinedAt(r);
          continue;
        }
        int& first = written[access.parameter];
        first = std::min(first, order.MayBeginAt(r));
      }
    }
    for (Part& part : parts_) {
      part.written = written[part.parameter];
      part.updated = updated[part.parameter];
    }
    latest_from_.resize(parts_.size());
    int latest = -1;
    for (size_t i = parts_.size(); i-- > 0;) {
      latest = std::max(latest, parts_[i].written);
      latest_from_[i] = latest;
    }
  }

  int64_t bytes() const { return parts_.empty() ? 0 : parts_.back().range.end; }

  // The lowest offset >= `offset` at which `bytes` are idle from run `first` on
  // until run `last` has ended.
  std::optional<int64_t> Next(int64_t offset, int64_t bytes, int first,
                              int last) const {
    auto part = std::partition_point(
        parts_.begin(), parts_.end(),
        [offset](const Part& p) { return p.range.end <= offset; });
    for (; part != parts_.end(); ++part) {
      if (part->range.begin >= offset + bytes) return offset;
      if (latest_from_[part - parts_.begin()] <= last) return std::nullopt;
      if (part->written <= last || part->updated > first) {
        offset = part->range.end;
      }
    }
    return offset;
  }

 private:
  struct Part {
    GradientRange range;
    int parameter = 0;
    // The first run of the main stream that begins after the update of the
    // step before, and the first run that writes the gradient.
    int updated = 0, written = 0;
  };
  std::vector<Part> parts_;  // by offset
  // Maximum of parts_[j].written over j >= i: nothing beyond is idle longer.
  std::vector<int> latest_from_;
};

void Planner::LendGradients() {
  const IdleGradients idle(schedule_, order_, accesses_);
  const int first_backward = schedule_.FirstBackward();
  OffsetAllocator free(idle.bytes());
  Sweep(
      [&](Buffer* buffer) {
        // The caller reads outputs after the gradients are complete.
        if (buffer->last == kForever || buffer->joint) return false;
        // Buffers that die in the first forward pass go to the top, so that the
        // low offsets, which are idle longest, are left for the others.
        const bool brief = buffer->last < first_backward;
        // The top is also updated last; they would have to wait for that.
        if (brief && schedule_.starts_pending) return false;
        const std::optional<int64_t> offset =
            brief ? free.TakeHighest(buffer->bytes)
                  : free.TakeLowest(buffer->bytes, [&](int64_t from) {
                      return idle.Next(from, buffer->bytes, buffer->first,
                                       buffer->last);
                    });
        if (!offset.has_value()) return false;
        buffer->storage = Storage::kGradients;
        buffer->offset = *offset;
        return true;
      },
      [&](const Buffer& buffer) { free.Free(buffer.offset, buffer.bytes); });
}

void Planner::FillArena() {
  OffsetAllocator arena;
  Sweep(
      [&](Buffer* buffer) {
        if (!options_.arena && !buffer->joint) return false;
        buffer->storage = Storage::kArena;
        buffer->offset = *arena.TakeLowest(buffer->bytes);
        return true;
      },
      [&](const Buffer& buffer) { arena.Free(buffer.offset, buffer.bytes); });
  plan_.arena_bytes = arena.extent();
}

}  // namespace

bool IsKept(const Schedule& schedule, const Buffer& buffer) {
  const int last =
      std::min(buffer.last, static_cast<int>(schedule.runs.size()) - 1);
  return schedule.runs[buffer.first].phase == Phase::kForward &&
         schedule.runs[last].phase != Phase::kForward;
}

Lifetimes PlanLifetimes(const Schedule& schedule,
                        const LifetimeOptions& options) {
  return Planner(schedule, options).Plan();
}

}  // namespace tessera
