#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FLASH_PARAMS_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_FLASH_PARAMS_H_

#include <cstdint>

#include "attention_backends/key_range.h"
#include "framework/cuda/float_type.h"
#include "framework/cuda/head_view.h"
#include "framework/cuda/host_device.h"

// Arguments of the attention kernels. Plain structs: no LibTorch headers in .cu
// files.

namespace tessera {
namespace flash {

// Shapes as in attention_backend.h: Q [B, H, S, D], K and V [B, G, T, D].
struct ForwardParams {
  FloatType type = FloatType::kBFloat16;
  // AttentionProblem::soft_cap; 0 if scores have no cap. It takes the place of
  // padding, so that kernels without a cap find the other members where they
  // were.
  float soft_cap = 0;
  int64_t b = 0, h = 0, g = 0, s = 0, t = 0, d = 0;
  int before = kAllKeys, after = kAllKeys;  // MaskSpec
  // [B, S], as in AttentionMask; null if each sequence is one document.
  const int* document_begin = nullptr;
  const int* document_end = nullptr;
  // FP32 only: tensor cores multiply, with operands rounded to TF32.
  bool tf32 = false;
  float scale = 1;
  HeadView q, k, v;
  HeadView o;              // written
  float* lse = nullptr;    // [B, H, S], natural logarithm; written
  int* counter = nullptr;  // scratch of one int

  bool causal() const { return whole_before() && after == 0; }
  bool full() const { return whole_before() && after == kAllKeys; }

 private:
  bool whole_before() const {
    return before == kAllKeys && document_begin == nullptr;
  }
};

// The mask of one sequence, by the arguments of any kernel.
template <typename Params>
TESSERA_HOST_DEVICE AttentionMask<int> SequenceMask(const Params& p,
                                                    int batch) {
  const int t = static_cast<int>(p.t), s = static_cast<int>(p.s);
  return {s, t, p.before, p.after, p.document_begin, p.document_end, batch * s};
}

struct BackwardParams {
  ForwardParams forward;  // o and lse as the forward pass wrote them
  HeadView d_o;
  HeadView dq, dk, dv;  // written
  bool deterministic = false;
  // Scratch of BackwardWorkspaceBytes() bytes, 256-byte aligned.
  void* workspace = nullptr;
};

}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FLASH_PARAMS_H_
