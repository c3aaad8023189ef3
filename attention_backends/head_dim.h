#ifndef ATTENTION_BACKENDS_HEAD_DIM_H_
#define ATTENTION_BACKENDS_HEAD_DIM_H_

namespace tessera {

// Head dims that a model may have: multiples of kHeadDimStep up to kMaxHeadDim.
// AttentionBackend::Supports() says which of them a backend supports.
inline constexpr int kHeadDimStep = 8;
inline constexpr int kMaxHeadDim = 256;

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_HEAD_DIM_H_
