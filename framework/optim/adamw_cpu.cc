#include "framework/optim/adamw_cpu.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

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

}  // namespace

bool UpdateAdamWChunks(const AdamWBuffers& buffers, const AdamWOptions& options,
                       const AdamWStep& step, int64_t begin, int64_t end) {
  AdamWCoefficients coefficients[kMaxAdamWGroups];
  for (int i = 0; i < kMaxAdamWGroups; ++i) {
    coefficients[i] = MakeAdamWCoefficients(options, step, options.groups[i]);
  }
  const auto update = [&]<typename State, typename Grad, typename Shadow>() {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t at = chunk * kAdamWChunk;
      const int group =
          buffers.chunk_groups == nullptr ? 0 : buffers.chunk_groups[chunk];
      State* master = static_cast<State*>(buffers.master) + at;
      UpdateChunk(master, static_cast<State*>(buffers.exp_avg) + at,
                  static_cast<State*>(buffers.exp_avg_sq) + at,
                  static_cast<const Grad*>(buffers.grad) + at,
                  coefficients[group]);
      if (buffers.shadow == nullptr) continue;
      Shadow* shadow = static_cast<Shadow*>(buffers.shadow) + at;
      for (int64_t i = 0; i < kAdamWChunk; ++i) {
        shadow[i] = static_cast<Shadow>(static_cast<float>(master[i]));
      }
    }
  };
  return VisitAdamWDtypes<float, c10::BFloat16, c10::Half>(buffers, update);
}

}  // namespace tessera
