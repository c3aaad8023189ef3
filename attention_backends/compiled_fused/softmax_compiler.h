#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_COMPILER_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_COMPILER_H_

#include <string>

#include "absl/status/statusor.h"
#include "attention_backends/compiled_fused/image_cache.h"
#include "attention_backends/compiled_fused/softmax_spec.h"

namespace tessera {
namespace fused {

struct SoftmaxImage {
  std::string code;  // machine code or PTX
  bool from_cache = false;
};

// The kernels for `spec` on GPUs of a compute capability (90 for 9.0), read
// from `cache` if they are there and intact. Otherwise they are compiled, which
// takes a fraction of a second and is logged with its time, and written to
// `cache`; if that fails, a warning is logged. A null `cache` disables caching.
// Needs no GPU. For sources that only CUDA builds compile.
absl::StatusOr<SoftmaxImage> CompileSoftmax(const SoftmaxSpec& spec,
                                            int capability,
                                            const ImageCache* cache);

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_COMPILER_H_
