#include "framework/program/verify.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/program/memory.h"

namespace tessera {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int kNothing = -1;

// A stretch of pieces_, the memory between two ends of any range.
struct Pieces {
  int begin = 0, end = 0;
};

class Verifier {
 public:
  Verifier(const Schedule& schedule, const Lifetimes& lifetimes,
           absl::Span<const GradientRange> gradients)
      : schedule_(schedule),
        lifetimes_(lifetimes),
        gradients_(gradients.begin(), gradients.end()),
        num_values_(static_cast<int>(schedule.values.size())),
        freed_(schedule.values.size(), false),
        written_(schedule.program->parameters().size(), false) {}

  absl::Status Verify() && {
    RETURN_IF_ERROR(CheckPlaces());
    CutMemory();
    const int runs = static_cast<int>(schedule_.runs.size());
    for (int run = 0; run < runs; ++run) {
      RETURN_IF_ERROR(EndRunsBeside(run));
      RETURN_IF_ERROR(CheckReads(run));
      RETURN_IF_ERROR(Write(run));
      // The pass ends before what the last run leaves is freed.
      if (run + 1 == runs) RETURN_IF_ERROR(EndRunsBeside(runs));
      Free(run);
    }
    return CheckEnd();
  }

 private:
  // The content of a piece is a value, a gradient (numbered after the values)
  // or kNothing.
  int GradientOf(int parameter) const { return num_values_ + parameter; }

  std::string NameOf(int content) const {
    if (content == kNothing) return "nothing";
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

  absl::Status CheckPlaces() const {
    int64_t gradient_bytes = 0;
    for (const GradientRange& range : gradients_) {
      gradient_bytes = std::max(gradient_bytes, range.end);
    }
    for (const Buffer& buffer : lifetimes_.buffers) {
      const bool fixed = buffer.storage == Storage::kGradients ||
                         buffer.storage == Storage::kArena;
      const int64_t limit = buffer.storage == Storage::kGradients
                                ? gradient_bytes
                                : lifetimes_.arena_bytes;
      if (fixed && (buffer.offset < 0 || buffer.offset % kAlignment != 0 ||
                    buffer.offset + buffer.bytes > limit)) {
        return Fault(NameOf(buffer.values.front()), " lies at byte ",
                     buffer.offset, " of ", limit);
      }
      for (const int value : buffer.values) {
        if (schedule_.values[value].type.bytes() != buffer.bytes) {
          return Fault(NameOf(value), " does not fit its buffer");
        }
      }
    }
    return absl::OkStatus();
  }

  // Lines up the gradient buffer, the arena and each other buffer in one space
  // of addresses, which the ends of all ranges cut into pieces.
  void CutMemory() {
    if (gradients_.empty()) {
      // A range of one byte each, to see how often each is written.
      for (size_t p = 0; p < schedule_.program->parameters().size(); ++p) {
        const int64_t begin = static_cast<int64_t>(p);
        gradients_.push_back({begin, begin + 1});
      }
    }
    int64_t end = 0;
    for (const GradientRange& range : gradients_) {
      end = std::max(end, range.end);
    }
    const int64_t arena = end;
    end += lifetimes_.arena_bytes;
    std::vector<GradientRange> places;  // of gradients, then of buffers
    places.insert(places.end(), gradients_.begin(), gradients_.end());
    for (const Buffer& buffer : lifetimes_.buffers) {
      int64_t begin = buffer.offset;
      if (buffer.storage == Storage::kArena) begin += arena;
      if (buffer.storage == Storage::kAllocator ||
          buffer.storage == Storage::kOp) {
        begin = end;
        end += buffer.bytes;
      }
      places.push_back({begin, begin + buffer.bytes});
    }
    std::vector<int64_t> cuts;
    for (const GradientRange& place : places) {
      cuts.push_back(place.begin);
      cuts.push_back(place.end);
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    const auto piece_at = [&cuts](int64_t address) {
      return static_cast<int>(
          std::lower_bound(cuts.begin(), cuts.end(), address) - cuts.begin());
    };
    for (const GradientRange& place : places) {
      places_.push_back({piece_at(place.begin), piece_at(place.end)});
    }
    pieces_.assign(cuts.size(), kNothing);
  }

  // Returns where a value in a buffer, or a gradient, lies.
  Pieces PlaceOf(int content) const {
    return content >= num_values_
               ? places_[content - num_values_]
               : places_[gradients_.size() + lifetimes_.buffer_of[content]];
  }
  bool HasBuffer(int value) const { return lifetimes_.buffer_of[value] >= 0; }

  // What lies in the place of `content` instead of it; `content` if all of it
  // is there.
  int InPlaceOf(int content) const {
    const Pieces place = PlaceOf(content);
    for (int i = place.begin; i < place.end; ++i) {
      if (pieces_[i] != content) return pieces_[i];
    }
    return content;
  }

  absl::Status CheckIntact(int content, const std::string& reader) const {
    const bool freed = content < num_values_ && freed_[content];
    const int found = freed ? kNothing : InPlaceOf(content);
    if (found == content) return absl::OkStatus();
    return Fault(reader, " reads ", NameOf(content), ", but ", NameOf(found),
                 " lies there");
  }

  // The values in buffers that a run reads.
  std::vector<int> ReadsOf(int run) const {
    const OpRun& r = schedule_.runs[run];
    std::vector<int> reads = r.operands;
    reads.insert(reads.end(), r.d_results.begin(), r.d_results.end());
    if (r.kind == OpRun::Kind::kBackward) {
      reads.insert(reads.end(), r.results.begin(), r.results.end());
    }
    reads.erase(std::remove_if(reads.begin(), reads.end(),
                               [this](int value) {
                                 return value < 0 || !HasBuffer(value);
                               }),
                reads.end());
    return reads;
  }

  absl::Status CheckReads(int run) const {
    const OpRun& r = schedule_.runs[run];
    for (const std::vector<int>* values : {&r.operands, &r.d_results}) {
      for (const int value : *values) {
        if (value < 0 || HasBuffer(value)) continue;
        const Role role = schedule_.values[value].role;
        if (role != Role::kInput && role != Role::kParameter) {
          return Fault(DescribeRun(schedule_, run), " reads ", NameOf(value),
                       ", which no run writes");
        }
      }
    }
    for (const int value : ReadsOf(run)) {
      RETURN_IF_ERROR(CheckIntact(value, DescribeRun(schedule_, run)));
    }
    return absl::OkStatus();
  }

  // Whether the op of a run allows `output` to be written over `value`.
  bool MayOverwrite(const OpRun& run, int output, int value) const {
    if (run.kind == OpRun::Kind::kAdd) {
      return absl::c_linear_search(run.operands, value);
    }
    const Op& op = *schedule_.program->ops()[run.op].op;
    if (run.kind == OpRun::Kind::kForward) {
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

  absl::Status Write(int run_index) {
    const OpRun& run = schedule_.runs[run_index];
    const std::vector<int> reads = ReadsOf(run_index);
    std::vector<int> written;
    if (run.kind != OpRun::Kind::kBackward) {
      written = run.results;
    }
    for (const GradientWrite& write : run.d_operands) {
      if (write.value >= 0) written.push_back(write.value);
      if (write.parameter < 0) continue;
      const int gradient = GradientOf(write.parameter);
      const bool before = written_[write.parameter];
      if (write.accumulate != before) {
        return Fault(DescribeRun(schedule_, run_index),
                     before ? " overwrites " : " adds to nothing in ",
                     NameOf(gradient));
      }
      if (before) {
        RETURN_IF_ERROR(
            CheckIntact(gradient, DescribeRun(schedule_, run_index)));
      }
      written_[write.parameter] = true;
      written.push_back(gradient);
    }
    for (const int content : written) {
      if (content < num_values_ && !HasBuffer(content)) {
        return Fault(NameOf(content), " has no place");
      }
      const Pieces place = PlaceOf(content);
      for (int i = place.begin; i < place.end; ++i) {
        const int old = pieces_[i];
        if (old >= num_values_ && old != content) {
          return Fault(DescribeRun(schedule_, run_index), " writes ",
                       NameOf(content), " over ", NameOf(old));
        }
        if (absl::c_linear_search(reads, old) &&
            !(content < num_values_ &&
              lifetimes_.buffer_of[old] == lifetimes_.buffer_of[content] &&
              MayOverwrite(run, content, old))) {
          return Fault(DescribeRun(schedule_, run_index), " writes ",
                       NameOf(content), " over ", NameOf(old),
                       ", which it reads");
        }
        pieces_[i] = content;
      }
    }
    for (const int content : written) {
      const int found = InPlaceOf(content);
      if (found != content) {
        return Fault(DescribeRun(schedule_, run_index), " writes ",
                     NameOf(content), " and ", NameOf(found),
                     " to the same place");
      }
    }
    if (run.beside_until > run_index) beside_.push_back(run_index);
    return absl::OkStatus();
  }

  // The runs beside others that must have ended before `run` begins: until now
  // they may have read and written.
  absl::Status EndRunsBeside(int run) {
    for (const int beside : beside_) {
      const OpRun& r = schedule_.runs[beside];
      if (r.beside_until != run) continue;
      const std::string name = DescribeRun(schedule_, beside);
      for (const int value : ReadsOf(beside)) {
        RETURN_IF_ERROR(CheckIntact(value, name));
      }
      for (const GradientWrite& write : r.d_operands) {
        if (write.value >= 0) {
          return Fault(name, " writes ", NameOf(write.value),
                       " beside runs that do not wait for it");
        }
        if (write.parameter >= 0) {
          RETURN_IF_ERROR(CheckIntact(GradientOf(write.parameter), name));
        }
      }
    }
    return absl::OkStatus();
  }

  void Free(int run) {
    for (const int value : lifetimes_.dead_after[run]) {
      freed_[value] = true;
      const Pieces place = PlaceOf(value);
      for (int i = place.begin; i < place.end; ++i) {
        if (pieces_[i] == value) pieces_[i] = kNothing;
      }
    }
  }

  absl::Status CheckEnd() const {
    for (const int output : schedule_.outputs) {
      if (HasBuffer(output)) {
        RETURN_IF_ERROR(CheckIntact(output, "the caller"));
      }
    }
    for (int value = 0; value < num_values_; ++value) {
      if (HasBuffer(value) && !freed_[value] &&
          !absl::c_linear_search(schedule_.outputs, value)) {
        return Fault(NameOf(value), " is never freed");
      }
    }
    const auto& parameters = schedule_.program->parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const int parameter = static_cast<int>(p);
      const bool trained =
          parameters[p].trainable && schedule_.loss_gradient >= 0;
      const bool written = written_[p];
      if (written) {
        RETURN_IF_ERROR(CheckIntact(GradientOf(parameter), "the optimizer"));
      }
      const bool zero =
          absl::c_linear_search(schedule_.without_gradient, parameter);
      if (trained != (written || zero) || (written && zero)) {
        return Fault(NameOf(GradientOf(parameter)),
                     written ? " should not be written" : " is not written");
      }
    }
    return absl::OkStatus();
  }

  const Schedule& schedule_;
  const Lifetimes& lifetimes_;
  std::vector<GradientRange> gradients_;  // by parameter
  const int num_values_;
  std::vector<Pieces> places_;  // of gradients, then of buffers
  std::vector<int> pieces_;     // the content of each
  std::vector<bool> freed_;     // by value
  std::vector<bool> written_;   // by parameter: its gradient
  std::vector<int> beside_;     // runs
};

}  // namespace

absl::Status VerifyLifetimes(const Schedule& schedule,
                             const Lifetimes& lifetimes,
                             absl::Span<const GradientRange> gradients) {
  return Verifier(schedule, lifetimes, gradients).Verify();
}

}  // namespace tessera
