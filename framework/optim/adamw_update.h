#ifndef FRAMEWORK_OPTIM_ADAMW_UPDATE_H_
#define FRAMEWORK_OPTIM_ADAMW_UPDATE_H_

#include <cstdint>

#include "framework/cuda/float_type.h"
#include "framework/optim/adamw_math.h"

namespace tessera {

// The flat buffers that an AdamW step reads and writes, for the CPU loop and
// the kernel. nvcc compiles this header, so it must not include LibTorch.

// Number of elements that share a group: the store's alignment, and what a warp
// updates at once. The table of groups takes 1/128 byte per parameter.
inline constexpr int64_t kAdamWChunk = 128;

// Device pointers, 16-byte aligned, to num_elements values each.
struct AdamWBuffers {
  FloatType state;  // type of master, exp_avg and exp_avg_sq
  FloatType grad_dtype;
  FloatType shadow_dtype;  // unused if shadow is null

  void* master;
  void* exp_avg;
  void* exp_avg_sq;
  const void* grad;
  void* shadow;  // null: no shadow

  const uint8_t* chunk_groups;  // by chunk; null: all in group 0
  int64_t num_elements;         // a multiple of kAdamWChunk
};

// The inputs that change from step to step, on the device.
struct AdamWScalars {
  const float* lr;
  const float* grad_scale;  // null: 1
  const bool* skip;         // null: never
  int64_t* step;            // steps taken; advances unless skipped
};

// Calls visit.template operator()<State, Grad, Shadow>() for the dtypes of
// `buffers`, using the caller's type for each format. Without a shadow, Shadow
// is State. Returns false for a combination that no precision policy has.
template <typename Float, typename BFloat16, typename Half, typename Visitor>
bool VisitAdamWDtypes(const AdamWBuffers& buffers, Visitor visit) {
  const auto with_state_and_shadow = [&]<typename State, typename Shadow>() {
    switch (buffers.grad_dtype) {
      case FloatType::kFloat:
        visit.template operator()<State, Float, Shadow>();
        break;
      case FloatType::kBFloat16:
        visit.template operator()<State, BFloat16, Shadow>();
        break;
      case FloatType::kHalf:
        visit.template operator()<State, Half, Shadow>();
        break;
    }
    return true;
  };
  const bool kept = buffers.shadow != nullptr;
  if (buffers.state == FloatType::kBFloat16 && !kept) {
    return with_state_and_shadow.template operator()<BFloat16, BFloat16>();
  }
  if (buffers.state != FloatType::kFloat) return false;
  if (!kept) return with_state_and_shadow.template operator()<Float, Float>();
  if (buffers.shadow_dtype == FloatType::kBFloat16) {
    return with_state_and_shadow.template operator()<Float, BFloat16>();
  }
  if (buffers.shadow_dtype == FloatType::kHalf) {
    return with_state_and_shadow.template operator()<Float, Half>();
  }
  return false;
}

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_ADAMW_UPDATE_H_
