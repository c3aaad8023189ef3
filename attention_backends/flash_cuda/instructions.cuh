#ifndef ATTENTION_BACKENDS_FLASH_CUDA_INSTRUCTIONS_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_INSTRUCTIONS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "framework/cuda/float_type.h"
#include "framework/cuda/instructions.cuh"

namespace tessera {
namespace flash {

template <FloatType kType>
using Element = std::conditional_t<
    kType == FloatType::kFloat, float,
    std::conditional_t<kType == FloatType::kHalf, __half, __nv_bfloat16>>;

}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_INSTRUCTIONS_CUH_
