#include "framework/program/verify.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/program/memory.h"
#include "framework/program/stream_order.h"

namespace tessera {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int kNothing = -1;

// A stretch of pieces_.
struct Pieces {
  int begin = 0, end = 0;
};

// The memory between two ends of any range; or a value that the caller holds.
struct Piece {
  int content = kNothing;  // see ContentOf() and NameOf()
  int written = -1;        // the run that wrote it last
  // By stream: the last run that has read it since; -1 if there is none.
  std::array<int, kStepStreams> read = [] {
    std::array<int, kStepStreams> none;
    none.fill(-1);
    return none;
  }();
  bool summed = false;  // over the ranks
};

// A hash of `parts` in order; the same in every process.
uint64_t HashOf(std::initializer_list<uint64_t> parts) {
  uint64_t hash = 0x9e3779b97f4a7c15;
  for (const uint64_t part : parts) {
    hash ^= part + 0x9e3779b97f4a7c15 + (hash << 12) + (hash >> 4);
    hash *= 0xff51afd7ed558ccd;
    hash ^= hash >> 33;
  }
  return hash;
}

enum HashKind : uint64_t {
  kInputHash = 1,
  kForwardHash,
  kBackwardHash,
  kAddHash,
  kReduceHash,
  kZeroHash,
  kTaskHash,
  kCarriedHash,  // a gradient of the step before
};

class Verifier {
 public:
  Verifier(const Schedule& schedule, const Lifetimes& lifetimes)
      : schedule_(schedule),
        lifetimes_(lifetimes),
        order_(schedule),
        num_values_(static_cast<int>(schedule.values.size())),
        gaps_(num_values_ +
              static_cast<int>(schedule.program->parameters().size())),
        hashes_(gaps_ + 1, 0),
        freed_(schedule.values.size(), false),
        reduced_(schedule.program->parameters().size(), false),
        summands_(schedule.program->parameters().size(), 0),
        replaced_(schedule.values.size(), false),
        partial_(schedule.values.size(), false),
        sums_(absl::c_any_of(schedule.tasks, [](const Task& task) {
          return task.kind == Task::Kind::kReduce;
        })) {
    // Lists of one step have the same inputs in the same order, but number
    // those after the program's values differently.
    const int of_program = static_cast<int>(schedule.program->values().size());
    int inputs = 0;
    for (int v = 0; v < num_values_; ++v) {
      const bool counts =
          v >= of_program && schedule.values[v].role == Role::kInput;
      const int number = counts ? of_program + inputs++ : v;
      hashes_[v] = HashOf({kInputHash, static_cast<uint64_t>(number)});
    }
    hashes_[gaps_] = kZeroHash;
  }

  absl::StatusOr<StepContents> Verify() && {
    CutMemory();
    if (schedule_.starts_pending) CarryGradients();
    RETURN_IF_ERROR(CheckPlaces());
    const int runs = static_cast<int>(schedule_.runs.size());
    int communicates = -1;  // the last run that does
    for (int run = 0; run < runs; ++run) {
      accesses_ = AccessesOf(schedule_, schedule_.runs[run]);
      RETURN_IF_ERROR(Read(run));
      RETURN_IF_ERROR(Write(run));
      for (const int value : lifetimes_.dead_after[run]) freed_[value] = true;
      if (IsCollective(schedule_, schedule_.runs[run])) {
        if (communicates >= 0 && !order_.IsBefore(communicates, run)) {
          return Fault(Describe(run), " communicates without waiting for ",
                       Describe(communicates));
        }
        communicates = run;
      }
    }
    return AtEnd();
  }

 private:
  // The content of a piece is a value, a gradient (numbered after the values),
  // the zeros in the gaps between gradients, or kNothing.
  int GradientOf(int parameter) const { return num_values_ + parameter; }
  int ContentOf(const Access& access) const {
    return access.value >= 0 ? access.value : GradientOf(access.parameter);
  }

  std::string NameOf(int content) const {
    if (content == kNothing) return "nothing";
    if (content == gaps_) return "a gap between gradients";
    if (content < num_values_) {
      return absl::StrCat("value ", content, " (",
                          schedule_.values[content].name, ")");
    }
    return absl::StrCat(
        "the gradient of ",
        schedule_.program->parameters()[content - num_values_].name);
  }

  template <typename... Parts>
  static absl::Status Fault(const Parts&... parts) {
    return absl::InternalError(
        absl::StrCat("the memory plan of the step is wrong: ", parts...));
  }

  // Lines up the gradient buffer, the arena, each other buffer, and a byte for
  // each value of the caller in one space of addresses, which the ends of all
  // ranges cut into pieces.
  void CutMemory() {
    std::vector<GradientRange> places = PlacesOfGradients();
    for (const GradientRange& range : places) {
      gradient_bytes_ = std::max(gradient_bytes_, range.end);
    }
    for (const Task& task : schedule_.tasks) {
      gradient_bytes_ = std::max(gradient_bytes_, task.range.end);
    }
    for (const GradientRange& place : PlacesOfValues()) places.push_back(place);
    const std::vector<int64_t> cuts = CutsOf(places);
    const auto pieces_of = [&cuts](const GradientRange& range) {
      const auto at = [&cuts](int64_t address) {
        return static_cast<int>(absl::c_lower_bound(cuts, address) -
                                cuts.begin());
      };
      return Pieces{at(range.begin), at(range.end)};
    };
    for (const GradientRange& place : places) {
      places_.push_back(pieces_of(place));
    }
    for (const Task& task : schedule_.tasks) {
      task_places_.push_back(pieces_of(task.range));
    }
    pieces_.resize(cuts.size());
    for (int v = 0; v < num_values_; ++v) {
      if (!HasBuffer(v)) pieces_[PlaceOf(v).begin].content = v;
    }
    is_gap_.assign(cuts.size(), false);
    is_held_.assign(cuts.size(), false);
    for (const GradientRange& part :
         schedule_.shards.HeldOf({0, gradient_bytes_})) {
      const Pieces held = pieces_of(part);
      std::fill(is_held_.begin() + held.begin, is_held_.begin() + held.end,
                true);
    }
    if (!schedule_.gradients.empty()) MarkGaps(pieces_of({0, gradient_bytes_}));
  }

  std::vector<GradientRange> PlacesOfGradients() const {
    if (!schedule_.gradients.empty()) return schedule_.gradients;
    // A range of one byte each, to see how often each is written.
    std::vector<GradientRange> places;
    for (size_t p = 0; p < schedule_.program->parameters().size(); ++p) {
      const int64_t begin = static_cast<int64_t>(p);
      places.push_back({begin, begin + 1});
    }
    return places;
  }

  // The places of all values, after the gradient buffer.
  std::vector<GradientRange> PlacesOfValues() const {
    int64_t end = gradient_bytes_ + lifetimes_.arena_bytes;
    std::vector<GradientRange> buffers;
    for (const Buffer& buffer : lifetimes_.buffers) {
      int64_t begin = buffer.offset;
      if (buffer.storage == Storage::kArena) begin += gradient_bytes_;
      if (buffer.storage == Storage::kAllocator ||
          buffer.storage == Storage::kOp) {
        begin = end;
        end += buffer.bytes;
      }
      buffers.push_back({begin, begin + buffer.bytes});
    }
    std::vector<GradientRange> places;
    for (int v = 0; v < num_values_; ++v, ++end) {
      if (!HasBuffer(v)) {
        places.push_back({end, end + 1});
        continue;
      }
      const int64_t begin = buffers[lifetimes_.buffer_of[v]].begin +
                            lifetimes_.offset_in_buffer[v];
      places.push_back({begin, begin + schedule_.values[v].type.bytes()});
    }
    return places;
  }

  // The ends of `places` and of the tasks' ranges, in order.
  std::vector<int64_t> CutsOf(const std::vector<GradientRange>& places) const {
    std::vector<int64_t> cuts = {0, gradient_bytes_};
    for (const GradientRange& place : places) {
      cuts.push_back(place.begin);
      cuts.push_back(place.end);
    }
    for (const Task& task : schedule_.tasks) {
      cuts.push_back(task.range.begin);
      cuts.push_back(task.range.end);
    }
    for (const GradientRange& part :
         schedule_.shards.HeldOf({0, gradient_bytes_})) {
      cuts.push_back(part.begin);
      cuts.push_back(part.end);
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    return cuts;
  }

  // Marks the pieces of the gradient buffer in which no gradient lies.
  void MarkGaps(const Pieces& buffer) {
    std::fill(is_gap_.begin() + buffer.begin, is_gap_.begin() + buffer.end,
              true);
    for (size_t p = 0; p < schedule_.gradients.size(); ++p) {
      std::fill(is_gap_.begin() + places_[p].begin,
                is_gap_.begin() + places_[p].end, false);
    }
  }

  absl::Status CheckPlaces() const {
    for (const Buffer& buffer : lifetimes_.buffers) {
      const bool fixed = buffer.storage == Storage::kGradients ||
                         buffer.storage == Storage::kArena;
      const int64_t limit = buffer.storage == Storage::kGradients
                                ? gradient_bytes_
                                : lifetimes_.arena_bytes;
      if (fixed && (buffer.offset < 0 || buffer.offset % kAlignment != 0 ||
                    buffer.offset + buffer.bytes > limit)) {
        return Fault(NameOf(buffer.values.front()), " lies at byte ",
                     buffer.offset, " of ", limit);
      }
      for (const int value : buffer.values) {
        const int64_t bytes = schedule_.values[value].type.bytes();
        const int64_t offset = lifetimes_.offset_in_buffer[value];
        if (buffer.joint ? offset < 0 || offset + bytes > buffer.bytes
                         : offset != 0 || bytes != buffer.bytes) {
          return Fault(NameOf(value), " does not fit its buffer");
        }
      }
    }
    return absl::OkStatus();
  }

  // The gradients of the step before lie in the buffer.
  void CarryGradients() {
    for (size_t p = 0; p < schedule_.gradients.size(); ++p) {
      if (schedule_.gradients[p].empty()) continue;
      const int gradient = GradientOf(static_cast<int>(p));
      hashes_[gradient] = kCarriedHash;
      const Pieces place = PlaceOf(gradient);
      for (int i = place.begin; i < place.end; ++i) {
        if (!IsKept(i)) continue;
        pieces_[i].content = gradient;
        pieces_[i].summed = sums_;
      }
    }
    for (int i = 0; i < static_cast<int>(pieces_.size()); ++i) {
      if (is_gap_[i] && IsKept(i)) pieces_[i].content = gaps_;
    }
  }

  // Whether a piece of the gradient buffer is of use after the sums over the
  // ranks.
  bool IsKept(int piece) const {
    return !schedule_.shards.divided() || is_held_[piece];
  }
  // The task of a run; null if it is an op's.
  const Task* TaskOf(int run) const {
    if (run >= static_cast<int>(schedule_.runs.size())) return nullptr;
    const StepRun& r = schedule_.runs[run];
    return r.kind == StepRun::Kind::kTask ? &schedule_.tasks[r.task] : nullptr;
  }
  // Whether a run, or the caller at the end, has no use for a piece of a
  // gradient that it reads.
  bool IsSkipped(int run, int piece) const {
    if (IsKept(piece)) return false;
    const Task* const task = TaskOf(run);
    return run == static_cast<int>(schedule_.runs.size()) ||
           (task != nullptr && task->own_part &&
            (task->kind != Task::Kind::kReduce || task->adds));
  }

  // Where a value or a gradient lies.
  Pieces PlaceOf(int content) const {
    return content >= num_values_ ? places_[content - num_values_]
                                  : places_[gaps_ - num_values_ + content];
  }
  bool HasBuffer(int value) const { return lifetimes_.buffer_of[value] >= 0; }
  bool IsJoint(int value) const {
    return HasBuffer(value) &&
           lifetimes_.buffers[lifetimes_.buffer_of[value]].joint;
  }
  std::string Describe(int run) const { return DescribeRun(schedule_, run); }

  // A fault unless `content` lies in `place`, written by a run that has ended
  // when `run` begins; else notes that `run` reads it. `run` is the number of
  // runs for the caller, who waits for all.
  absl::Status ReadPieces(int run, int content, const Pieces& place) {
    const bool at_end = run == static_cast<int>(schedule_.runs.size());
    const auto reader = [&] { return at_end ? "the caller" : Describe(run); };
    const bool freed = content < num_values_ && freed_[content];
    for (int i = place.begin; i < place.end; ++i) {
      if (content >= num_values_ && IsSkipped(run, i)) continue;
      Piece& piece = pieces_[i];
      const int found = freed ? kNothing : piece.content;
      if (found != content) {
        return Fault(reader(), " reads ", NameOf(content), ", but ",
                     NameOf(found), " lies there");
      }
      if (at_end) continue;
      if (piece.written >= 0 && !order_.IsBefore(piece.written, run)) {
        return Fault(reader(), " reads ", NameOf(content),
                     " without waiting for ", Describe(piece.written));
      }
      piece.read[static_cast<int>(schedule_.runs[run].stream)] = run;
    }
    return absl::OkStatus();
  }

  absl::Status ReadPieces(int run, int content) {
    return ReadPieces(run, content, PlaceOf(content));
  }

  // A fault if a task that is no sum over the ranks reads a gradient before all
  // of it was summed, in a step that sums.
  absl::Status CheckSummed(int run, int parameter) const {
    const StepRun& r = schedule_.runs[run];
    if (r.kind != StepRun::Kind::kTask ||
        absl::c_linear_search(schedule_.without_gradient, parameter) ||
        schedule_.IsTask(r, Task::Kind::kReduce)) {
      return absl::OkStatus();
    }
    const Pieces place = PlaceOf(GradientOf(parameter));
    for (int i = place.begin; i < place.end; ++i) {
      if (pieces_[i].summed == sums_ || IsSkipped(run, i)) continue;
      return Fault(Describe(run), " reads ", NameOf(GradientOf(parameter)),
                   " before all of it was summed over the ranks");
    }
    return absl::OkStatus();
  }

  // A fault if a run reads weights, or what fixes an update, of another step
  // than in the plain list: weights before their update, if the step before
  // left it to this one, and otherwise after it.
  absl::Status CheckVersion(int run, int value) const {
    const Task* const task = TaskOf(run);
    const bool gathers =
        task != nullptr && (task->kind == Task::Kind::kGather ||
                            task->kind == Task::Kind::kReduceSquares);
    if (gathers != partial_[value]) {
      return Fault(Describe(run), gathers ? " gathers " : " reads ",
                   NameOf(value), ", of which this rank has ",
                   gathers ? "no part" : "its part only");
    }
    if (gathers) return absl::OkStatus();
    const bool factors = value == schedule_.update_factors;
    if (!factors && schedule_.values[value].role != Role::kParameter) {
      return absl::OkStatus();
    }
    const bool wanted = factors ? !schedule_.starts_pending
                                : schedule_.starts_pending && IsTrained(value);
    if (replaced_[value] == wanted) return absl::OkStatus();
    return Fault(Describe(run), " reads ", NameOf(value),
                 wanted ? " of the step before" : " of the step after");
  }
  bool IsTrained(int value) const {
    const int parameter = schedule_.values[value].parameter;
    return !schedule_.gradients.empty() &&
           !schedule_.gradients[parameter].empty();
  }

  absl::Status Read(int run) {
    const StepRun& r = schedule_.runs[run];
    for (const Access& access : accesses_) {
      if (!access.reads) continue;
      const int value = access.value;
      if (value < 0) {
        const int gradient = GradientOf(access.parameter);
        if (hashes_[gradient] == 0) {
          return Fault(Describe(run),
                       access.writes && r.is_backward() ? " adds to nothing in "
                                                        : " reads nothing of ",
                       NameOf(gradient));
        }
        RETURN_IF_ERROR(ReadPieces(run, gradient));
        RETURN_IF_ERROR(CheckSummed(run, access.parameter));
        continue;
      }
      const Role role = schedule_.values[value].role;
      if (!HasBuffer(value) && role != Role::kInput &&
          role != Role::kParameter) {
        return Fault(Describe(run), " reads ", NameOf(value),
                     ", which no run writes");
      }
      RETURN_IF_ERROR(CheckVersion(run, value));
      RETURN_IF_ERROR(ReadPieces(run, value));
    }
    if (r.kind != StepRun::Kind::kTask) return absl::OkStatus();
    if (schedule_.tasks[r.task].kind != Task::Kind::kUpdate) {
      return absl::OkStatus();
    }
    const Pieces range = task_places_[r.task];
    for (int i = range.begin; i < range.end; ++i) {
      if (is_gap_[i]) RETURN_IF_ERROR(ReadPieces(run, gaps_, {i, i + 1}));
    }
    return absl::OkStatus();
  }

  // Whether the op of a run allows `output` to be written over `value`.
  bool MayOverwrite(const StepRun& run, int output, int value) const {
    if (run.kind == StepRun::Kind::kAdd) {
      return absl::c_linear_search(run.operands, value);
    }
    if (run.kind == StepRun::Kind::kTask) return false;
    const Op& op = *schedule_.program->ops()[run.op].op;
    if (run.kind == StepRun::Kind::kForward) {
      for (size_t i = 0; i < run.results.size(); ++i) {
        if (run.results[i] != output) continue;
        const auto operand = op.ResultMayOverwrite(static_cast<int>(i));
        return operand.has_value() && run.operands[*operand] == value;
      }
      return false;
    }
    for (size_t i = 0; i < run.d_operands.size(); ++i) {
      if (run.d_operands[i].value != output) continue;
      for (const auto& [what, position] :
           op.GradientMayOverwrite(static_cast<int>(i))) {
        const std::vector<int>& of =
            what == Overwritable::What::kOperand  ? run.operands
            : what == Overwritable::What::kResult ? run.results
                                                  : run.d_results;
        if (of[position] == value) return true;
      }
    }
    return false;
  }

  // What `run` computes for its result or, if `is_gradient`, operand `i`. It
  // depends on neither the other gradients that the run computes nor, if it
  // recomputes, its place in the list.
  uint64_t HashOfResult(const StepRun& run, int i, bool is_gradient) const {
    const HashKind kind = is_gradient                       ? kBackwardHash
                          : run.kind == StepRun::Kind::kAdd ? kAddHash
                                                            : kForwardHash;
    uint64_t hash = HashOf({kind, static_cast<uint64_t>(run.op),
                            static_cast<uint64_t>(run.micro_batch),
                            static_cast<uint64_t>(i)});
    const auto mix = [&](const std::vector<int>& values, Positions read) {
      for (size_t j = 0; j < values.size(); ++j) {
        if (!read.Has(static_cast<int>(j))) continue;
        hash = HashOf({hash, values[j] < 0 ? 0 : hashes_[values[j]]});
      }
    };
    const Positions all = Positions::All(64);
    if (run.kind == StepRun::Kind::kBackward) {
      const BackwardReads reads =
          schedule_.program->ops()[run.op].op->ReadsInBackward({i});
      mix(run.operands, reads.operands);
      mix(run.results, reads.results);
    } else {
      mix(run.operands, all);
    }
    mix(run.d_results, all);
    return hash;
  }

  // Writes `content` to `place` in `run`, which has read `reads`.
  absl::Status WritePieces(int run, int content, const Pieces& place,
                           const std::vector<int>& reads) {
    const StepRun& r = schedule_.runs[run];
    for (int i = place.begin; i < place.end; ++i) {
      Piece& piece = pieces_[i];
      const int old = piece.content;
      if (old >= num_values_ && old < gaps_ && old != content) {
        return Fault(Describe(run), " writes ", NameOf(content), " over ",
                     NameOf(old));
      }
      if (old != content && absl::c_linear_search(reads, old) &&
          !(content < num_values_ &&
            lifetimes_.buffer_of[old] == lifetimes_.buffer_of[content] &&
            MayOverwrite(r, content, old))) {
        return Fault(Describe(run), " writes ", NameOf(content), " over ",
                     NameOf(old), ", which it reads");
      }
      for (const int earlier : piece.read) {
        if (earlier >= 0 && earlier != run && !order_.IsBefore(earlier, run)) {
          return Fault(Describe(run), " writes ", NameOf(content),
                       " without waiting for ", Describe(earlier),
                       ", which reads ", NameOf(old));
        }
      }
      if (piece.written >= 0 && piece.written != run &&
          !order_.IsBefore(piece.written, run)) {
        return Fault(Describe(run), " writes ", NameOf(content),
                     " without waiting for ", Describe(piece.written),
                     ", which writes ", NameOf(old));
      }
      piece = {.content = content, .written = run};
    }
    return absl::OkStatus();
  }

  // What a run writes.
  struct Written {
    int content;
    uint64_t hash;
  };

  absl::Status Write(int run) {
    const StepRun& r = schedule_.runs[run];
    if (r.kind == StepRun::Kind::kTask) return WriteTask(run);
    ASSIGN_OR_RETURN(const std::vector<Written> written, WrittenBy(run));
    std::vector<int> reads;
    for (const Access& access : accesses_) {
      if (access.reads && access.value >= 0) reads.push_back(access.value);
    }
    for (const auto& [content, hash] : written) {
      if (content < num_values_ && !HasBuffer(content)) {
        return Fault(NameOf(content), " has no place");
      }
      if (content < num_values_ && r.stream != StepStream::kMain &&
          !IsJoint(content)) {
        return Fault(Describe(run), " writes ", NameOf(content),
                     ", which has a place on the main stream only");
      }
      RETURN_IF_ERROR(WritePieces(run, content, PlaceOf(content), reads));
    }
    for (const auto& [content, hash] : written) {
      const Pieces place = PlaceOf(content);
      for (int i = place.begin; i < place.end; ++i) {
        if (pieces_[i].content == content) continue;
        return Fault(Describe(run), " writes ", NameOf(content), " and ",
                     NameOf(pieces_[i].content), " to the same place");
      }
    }
    for (const auto& [content, hash] : written) {
      hashes_[content] = hash;
      if (content < num_values_) replaced_[content] = true;
    }
    return absl::OkStatus();
  }

  // The results and gradients that a run of an op writes. A fault if it may not
  // write one of the gradients.
  absl::StatusOr<std::vector<Written>> WrittenBy(int run) const {
    const StepRun& r = schedule_.runs[run];
    std::vector<Written> written;
    if (r.kind != StepRun::Kind::kBackward) {
      for (size_t i = 0; i < r.results.size(); ++i) {
        written.push_back(
            {r.results[i], HashOfResult(r, static_cast<int>(i), false)});
      }
    }
    for (size_t i = 0; i < r.d_operands.size(); ++i) {
      const GradientWrite& write = r.d_operands[i];
      if (!write.wanted()) continue;
      const uint64_t hash = HashOfResult(r, static_cast<int>(i), true);
      if (write.value >= 0) {
        ASSIGN_OR_RETURN(const uint64_t whole, HashInValue(run, write, hash));
        written.push_back({write.value, whole});
        continue;
      }
      const int gradient = GradientOf(write.parameter);
      if (reduced_[write.parameter]) {
        return Fault(Describe(run), " writes ", NameOf(gradient),
                     ", which was summed over the ranks");
      }
      if (!write.accumulate && hashes_[gradient] != 0) {
        return Fault(Describe(run), " overwrites ", NameOf(gradient));
      }
      written.push_back({gradient, write.accumulate
                                       ? HashOf({hash, hashes_[gradient]})
                                       : hash});
    }
    return written;
  }

  // The hash of what lies in write.value after a run adds `hash` to it, or
  // writes it there. Of a parameter's gradient it stands for the sum over the
  // micro-batches so far, of which the value holds the last summand.
  absl::StatusOr<uint64_t> HashInValue(int run, const GradientWrite& write,
                                       uint64_t hash) const {
    if (write.parameter < 0) return hash;
    if (write.accumulate) return HashOf({hash, hashes_[write.value]});
    if (replaced_[write.value]) {
      return Fault(Describe(run), " overwrites ", NameOf(write.value));
    }
    const uint64_t before = summands_[write.parameter];
    return before == 0 ? hash : HashOf({hash, before});
  }

  absl::Status WriteTask(int run) {
    const StepRun& r = schedule_.runs[run];
    const Task& task = schedule_.tasks[r.task];
    if (task.kind == Task::Kind::kUpdate) return Update(run, task);
    if (task.kind == Task::Kind::kUnshard) return Unshard(run);
    uint64_t hash = HashOf({kTaskHash, static_cast<uint64_t>(task.kind)});
    for (const Access& access : accesses_) {
      if (access.value >= 0 && access.writes) {
        RETURN_IF_ERROR(ReplaceValue(run, access.value));
      }
      if (access.reads) hash = HashOf({hash, hashes_[ContentOf(access)]});
      if (access.parameter >= 0 && access.writes) {
        RETURN_IF_ERROR(WriteGradient(run, access));
      }
    }
    if (task.kind == Task::Kind::kZero) {
      return WriteGaps(run, gaps_, {0, static_cast<int>(pieces_.size())});
    }
    if (task.kind == Task::Kind::kReduce) {
      // Whatever lies in the gaps is summed, too, and lost.
      return WriteGaps(run, kNothing, task_places_[r.task]);
    }
    // These two only complete what the plain list computes at once.
    if (task.kind == Task::Kind::kGather ||
        task.kind == Task::Kind::kReduceSquares) {
      return absl::OkStatus();
    }
    tasks_ = HashOf({tasks_, hash});
    return absl::OkStatus();
  }

  // Values get the weights that the run has read.
  absl::Status Unshard(int run) {
    for (const int result : schedule_.runs[run].results) {
      if (!IsJoint(result)) return Fault(NameOf(result), " has no place");
      const ValueInfo& info = schedule_.values[result];
      const auto source = absl::c_find_if(accesses_, [&](const Access& access) {
        const ValueInfo& read = schedule_.values[access.value];
        return access.reads && read.parameter == info.parameter &&
               read.type == info.type;
      });
      if (source == accesses_.end()) {
        return Fault(Describe(run), " does not fetch ", NameOf(result));
      }
      RETURN_IF_ERROR(WritePieces(run, result, PlaceOf(result), {}));
      hashes_[result] = hashes_[source->value];
    }
    return absl::OkStatus();
  }

  // A task writes a value of the caller.
  absl::Status ReplaceValue(int run, int value) {
    if (HasBuffer(value)) {
      return Fault(Describe(run), " writes ", NameOf(value));
    }
    RETURN_IF_ERROR(WritePieces(run, value, PlaceOf(value), {}));
    const Task& task = *TaskOf(run);
    partial_[value] = task.own_part && task.kind == Task::Kind::kSumOfSquares;
    replaced_[value] = true;
    return absl::OkStatus();
  }

  // A task clears a gradient, sums its slice of it, or leaves nothing of use in
  // the slice.
  absl::Status WriteGradient(int run, const Access& access) {
    const int task = schedule_.runs[run].task;
    const int gradient = GradientOf(access.parameter);
    const Pieces whole = PlaceOf(gradient), range = task_places_[task];
    if (schedule_.tasks[task].kind == Task::Kind::kZero) {
      RETURN_IF_ERROR(WritePieces(run, gradient, whole, {}));
      hashes_[gradient] = kZeroHash;
      return absl::OkStatus();
    }
    const Pieces slice = {std::max(whole.begin, range.begin),
                          std::min(whole.end, range.end)};
    const StepRun& r = schedule_.runs[run];
    const auto summand = absl::c_find_if(r.operands, [&](int value) {
      return schedule_.values[value].parameter == access.parameter;
    });
    const bool of_values = !r.operands.empty();
    if (of_values ? summand == r.operands.end() : !access.reads) {
      return WritePieces(run, kNothing, slice, {});
    }
    const bool adds = schedule_.tasks[task].adds;
    for (int i = slice.begin; i < slice.end; ++i) {
      if (!pieces_[i].summed || adds) continue;
      return Fault(Describe(run), " sums ", NameOf(gradient), " twice");
    }
    RETURN_IF_ERROR(WritePieces(run, gradient, slice, {}));
    for (int i = slice.begin; i < slice.end; ++i) {
      pieces_[i].summed = true;
      if (schedule_.tasks[task].own_part && !IsKept(i)) {
        pieces_[i].content = kNothing;
      }
    }
    if (of_values) {
      summands_[access.parameter] = hashes_[*summand];
    } else if (!reduced_[access.parameter]) {  // else another slice of it was
      summands_[access.parameter] = hashes_[gradient];
    }
    reduced_[access.parameter] = true;
    hashes_[gradient] = HashOf({kReduceHash, summands_[access.parameter]});
    return absl::OkStatus();
  }

  absl::Status WriteGaps(int run, int content, const Pieces& range) {
    for (int i = range.begin; i < range.end; ++i) {
      if (!is_gap_[i]) continue;
      RETURN_IF_ERROR(WritePieces(run, content, {i, i + 1}, {}));
    }
    return absl::OkStatus();
  }

  // Weights change once, from all of their gradient. A gradient of the step
  // before is not needed any more.
  absl::Status Update(int run, const Task& task) {
    // Unless ranks divide the weights, this one still lacks the parts that the
    // others have updated.
    const bool part =
        task.own_part && !schedule_.shards.DividesWeights(task.range);
    for (const Access& access : accesses_) {
      if (access.parameter >= 0) {
        const int gradient = GradientOf(access.parameter);
        const GradientRange& range = schedule_.gradients[access.parameter];
        if (range.begin < task.range.begin || range.end > task.range.end) {
          return Fault(Describe(run), " reads a part of ", NameOf(gradient));
        }
        if (!schedule_.starts_pending) continue;
        hashes_[gradient] = 0;
        const Pieces place = PlaceOf(gradient);
        for (int i = place.begin; i < place.end; ++i) {
          pieces_[i].content = kNothing;
          pieces_[i].summed = false;
        }
      } else if (access.writes) {
        if (replaced_[access.value] || partial_[access.value]) {
          return Fault(Describe(run), " updates ", NameOf(access.value),
                       " again");
        }
        RETURN_IF_ERROR(
            WritePieces(run, access.value, PlaceOf(access.value), {}));
        (part ? partial_ : replaced_)[access.value] = true;
      }
    }
    return absl::OkStatus();
  }

  // In a step with updates, all trained weights have changed.
  absl::Status CheckUpdates() const {
    if (schedule_.update_factors < 0) return absl::OkStatus();
    const int values = static_cast<int>(schedule_.program->values().size());
    for (int v = 0; v < values; ++v) {
      if (schedule_.values[v].role == Role::kParameter && IsTrained(v) &&
          !replaced_[v]) {
        return Fault(NameOf(v), " is not updated");
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StepContents> AtEnd() {
    RETURN_IF_ERROR(CheckUpdates());
    const int end = static_cast<int>(schedule_.runs.size());
    StepContents contents = {.tasks = tasks_};
    for (const int output : schedule_.outputs) {
      if (HasBuffer(output)) RETURN_IF_ERROR(ReadPieces(end, output));
      contents.outputs.push_back(hashes_[output]);
    }
    for (int value = 0; value < num_values_; ++value) {
      if (HasBuffer(value) && !freed_[value] &&
          !absl::c_linear_search(schedule_.outputs, value)) {
        return Fault(NameOf(value), " is never freed");
      }
    }
    const auto& parameters = schedule_.program->parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const int gradient = GradientOf(static_cast<int>(p));
      const bool trained =
          parameters[p].trainable && schedule_.loss_gradient >= 0;
      const bool written = hashes_[gradient] != 0;
      const bool zero = absl::c_linear_search(schedule_.without_gradient,
                                              static_cast<int>(p));
      if (written) RETURN_IF_ERROR(ReadPieces(end, gradient));
      if (trained != (written || zero)) {
        return Fault(NameOf(gradient),
                     written ? " should not be written" : " is not written");
      }
      contents.gradients.push_back(hashes_[gradient]);
    }
    return contents;
  }

  const Schedule& schedule_;
  const Lifetimes& lifetimes_;
  const StreamOrder order_;
  const int num_values_, gaps_;
  std::vector<uint64_t> hashes_;  // by content; gradients: 0 if not written
  int64_t gradient_bytes_ = 0;
  std::vector<Pieces> places_;       // of gradients, then of values
  std::vector<Pieces> task_places_;  // by task: its range
  std::vector<Piece> pieces_;
  std::vector<bool> is_gap_;   // by piece: between gradients
  std::vector<bool> is_held_;  // by piece: in this rank's part of a section
  std::vector<bool> freed_;    // by value
  std::vector<bool> reduced_;  // by parameter: its gradient
  // By parameter: a hash of what its gradient is the sum of over the ranks; 0
  // before the sum.
  std::vector<uint64_t> summands_;
  // By value: weights that were updated, other values of the caller that a task
  // has written, and what ops have written.
  std::vector<bool> replaced_;
  // By value: of weights that were updated, or a sum over segments, this rank
  // has its part only.
  std::vector<bool> partial_;
  const bool sums_;               // over the ranks
  std::vector<Access> accesses_;  // of the run that is replayed
  uint64_t tasks_ = 0;
};

}  // namespace

uint64_t CollectiveOrder(const Schedule& schedule) {
  uint64_t hash = 0;
  for (const StepRun& run : schedule.runs) {
    if (!IsCollective(schedule, run)) continue;
    const Task& task = schedule.tasks[run.task];
    hash = HashOf({hash, static_cast<uint64_t>(task.kind),
                   static_cast<uint64_t>(task.range.begin),
                   static_cast<uint64_t>(task.range.end),
                   static_cast<uint64_t>(task.own_part),
                   static_cast<uint64_t>(task.output.dtype)});
  }
  return hash;
}

absl::StatusOr<StepContents> VerifyLifetimes(const Schedule& schedule,
                                             const Lifetimes& lifetimes) {
  return Verifier(schedule, lifetimes).Verify();
}

}  // namespace tessera
