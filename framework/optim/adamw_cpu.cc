#include "framework/optim/adamw_cpu.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "framework/params/split_float.h"

namespace tessera {
namespace {

// Updates one chunk. The buffers never overlap; __restrict__ lets the loop
// vectorise.
template <typename State, typename Grad>
void UpdateChunk(State* __restrict__ master, State* __restrict__ exp_avg,
                 State* __restrict__ exp_avg_sq, const Grad* __restrict__ grad,
                 const AdamWCoefficients c) {
  for (int64_t i = 0; i < kAdamWChunk; ++i) {
    const AdamWElement x = UpdateAdamW(
        {static_cast<float>(master[i]), static_cast<float>(exp_avg[i]),
         static_cast<float>(exp_avg_sq[i])},
        static_cast<float>(grad[i]), c);
    master[i] = static_cast<State>(x.param);
    exp_avg[i] = static_cast<State>(x.exp_avg);
    exp_avg_sq[i] = static_cast<State>(x.exp_avg_sq);
  }
}

// Updates the weights of one chunk wherever they are. `update` does so for
// numbers of type State.
template <typename State, typename Rounded, typename Update>
void UpdateWeights(const AdamWBuffers& buffers, const AdamWRange& range,
                   int64_t chunk, const Update& update) {
  const int64_t at = (chunk + range.shift) * kAdamWChunk;
  if (range.form == AdamWRange::Form::kSplit) {
    uint16_t* const high = buffers.high + at;
    int16_t* const low = buffers.low + at;
    State joined[kAdamWChunk];
    for (int64_t i = 0; i < kAdamWChunk; ++i) {
      joined[i] = JoinHalves({high[i], low[i]});
    }
    update(joined);
    for (int64_t i = 0; i < kAdamWChunk; ++i) {
      const SplitFloat x = SplitInHalves(joined[i]);
      high[i] = x.high;
      low[i] = x.low;
    }
    return;
  }
  State* const master = static_cast<State*>(buffers.master) + at;
  update(master);
  if (range.form == AdamWRange::Form::kMaster) return;
  Rounded* const shadow = static_cast<Rounded*>(buffers.shadow) +
                          (chunk + range.shadow_shift) * kAdamWChunk;
  for (int64_t i = 0; i < kAdamWChunk; ++i) {
    shadow[i] = static_cast<Rounded>(static_cast<float>(master[i]));
  }
}

// Calls fn(range, chunk) for each of the chunks [begin, end).
template <typename Fn>
void ForEachChunk(const AdamWBuffers& buffers, int64_t begin, int64_t end,
                  const Fn& fn) {
  const AdamWRange whole = {static_cast<int32_t>(end),
                            AdamWRange::Form::kMaster, 0, 0};
  const AdamWRange* range = buffers.ranges == nullptr ? &whole : buffers.ranges;
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    while (chunk >= range->end) ++range;
    fn(*range, chunk);
  }
}

}  // namespace

bool UpdateAdamWChunks(const AdamWBuffers& buffers,
                       const AdamWCoefficients* coefficients, int64_t begin,
                       int64_t end) {
  const auto update = [&]<typename State, typename Grad, typename Rounded>() {
    ForEachChunk(
        buffers, begin, end, [&](const AdamWRange& range, int64_t chunk) {
          const int64_t at = chunk * kAdamWChunk;
          const int group =
              buffers.chunk_groups == nullptr ? 0 : buffers.chunk_groups[chunk];
          UpdateWeights<State, Rounded>(
              buffers, range, chunk, [&](State* weights) {
                UpdateChunk(weights, static_cast<State*>(buffers.exp_avg) + at,
                            static_cast<State*>(buffers.exp_avg_sq) + at,
                            static_cast<const Grad*>(buffers.grad) + at,
                            coefficients[group]);
              });
        });
  };
  return VisitAdamWDtypes<float, c10::BFloat16, c10::Half>(buffers, update);
}

bool PassEmaChunks(const AdamWBuffers& buffers, const EmaBuffers& ema,
                   EmaPass pass, int64_t begin, int64_t end) {
  const float weight = EmaWeight(ema.options, *ema.step);
  const auto apply = [&]<typename State, typename Grad, typename Rounded>() {
    ForEachChunk(
        buffers, begin, end, [&](const AdamWRange& range, int64_t chunk) {
          float* const average = ema.average + chunk * kAdamWChunk;
          // Weights that do not change are written back with the same bits.
          UpdateWeights<State, Rounded>(
              buffers, range, chunk, [&](State* weights) {
                for (int64_t i = 0; i < kAdamWChunk; ++i) {
                  const EmaElement x = ApplyEma<sizeof(State) == 2>(
                      pass, {static_cast<float>(weights[i]), average[i]},
                      weight);
                  weights[i] = static_cast<State>(x.param);
                  average[i] = x.average;
                }
              });
        });
  };
  return VisitAdamWDtypes<float, c10::BFloat16, c10::Half>(buffers, apply);
}

}  // namespace tessera
