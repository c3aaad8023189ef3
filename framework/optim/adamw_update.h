#ifndef FRAMEWORK_OPTIM_ADAMW_UPDATE_H_
#define FRAMEWORK_OPTIM_ADAMW_UPDATE_H_

#include <cstdint>

#include "framework/cuda/float_type.h"
#include "framework/cuda/host_device.h"
#include "framework/optim/adamw_math.h"

namespace tessera {

// The flat buffers that an AdamW step reads and writes, for the CPU loop and
// the kernel. nvcc compiles this header, so it must not include LibTorch.

// Number of elements that share a group: the store's alignment, and what a warp
// updates at once. The table of groups takes 1/128 byte per parameter.
inline constexpr int64_t kAdamWChunk = 128;

// How and where consecutive chunks' weights are kept (WeightBuffers in
// parameter_store.h). A range begins where the one before it ends.
struct AdamWRange {
  enum class Form : int32_t {
    kMaster,           // chunk c is at c + shift of `master`
    kMasterAndShadow,  // and at c + shadow_shift of `shadow`
    kSplit,            // at c + shift of `high` and of `low`
  };

  int32_t end;  // chunks
  Form form;
  int32_t shift, shadow_shift;  // chunks
};

// The place, in a buffer of weights, of vector `i` of the flat order. A vector
// is what one thread updates; a chunk has `vectors`, and the buffer keeps this
// one `shift` chunks from its place in the flat order. The result is below
// 2^32, although the product alone may be negative, or, from 8.6 G weights on,
// beyond 31 bits.
TESSERA_HOST_DEVICE constexpr uint32_t ShiftedVector(uint32_t i, int32_t shift,
                                                     uint32_t vectors) {
  return i + static_cast<uint32_t>(shift) * vectors;
}

// Device pointers, 16-byte aligned.
struct AdamWBuffers {
  FloatType state;  // type of master, exp_avg and exp_avg_sq
  FloatType grad_dtype;
  FloatType rounded_dtype;  // of shadow and high; unused if ranges is null

  // A value per element of the flat order.
  void* exp_avg;
  void* exp_avg_sq;
  const void* grad;

  // Null if no chunk is in them.
  void* master;
  void* shadow;
  uint16_t* high;
  int16_t* low;

  const uint8_t* chunk_groups;  // by chunk; null: all in group 0
  // Null: all chunks are in `master`, in order, without a shadow.
  const AdamWRange* ranges;
  int num_ranges;
};

// The inputs that change from step to step, on the device.
struct AdamWScalars {
  const float* lr;
  const float* grad_scale;  // null: 1
  const bool* skip;         // null: never
  int64_t* step;            // steps taken; advances unless skipped
  bool* skips;              // written: whether the update changes nothing
};

// Calls visit.template operator()<State, Grad, Rounded>() for the dtypes of
// `buffers`, using the caller's type for each format. Without ranges, Rounded
// is State. Returns false for a combination that no precision policy has.
template <typename Float, typename BFloat16, typename Half, typename Visitor>
bool VisitAdamWDtypes(const AdamWBuffers& buffers, Visitor visit) {
  const auto with_state_and_rounded = [&]<typename State, typename Rounded>() {
    switch (buffers.grad_dtype) {
      case FloatType::kFloat:
        visit.template operator()<State, Float, Rounded>();
        break;
      case FloatType::kBFloat16:
        visit.template operator()<State, BFloat16, Rounded>();
        break;
      case FloatType::kHalf:
        visit.template operator()<State, Half, Rounded>();
        break;
    }
    return true;
  };
  const bool placed = buffers.ranges != nullptr;
  if (buffers.state == FloatType::kBFloat16 && !placed) {
    return with_state_and_rounded.template operator()<BFloat16, BFloat16>();
  }
  if (buffers.state != FloatType::kFloat) return false;
  if (!placed) {
    return with_state_and_rounded.template operator()<Float, Float>();
  }
  if (buffers.rounded_dtype == FloatType::kBFloat16) {
    return with_state_and_rounded.template operator()<Float, BFloat16>();
  }
  if (buffers.rounded_dtype == FloatType::kHalf) {
    return with_state_and_rounded.template operator()<Float, Half>();
  }
  return false;
}

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_ADAMW_UPDATE_H_
