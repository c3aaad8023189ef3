#ifndef FRAMEWORK_CUDA_STREAM_WRITE_H_
#define FRAMEWORK_CUDA_STREAM_WRITE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "c10/core/Device.h"

namespace tessera {
namespace cuda {

struct StreamWrite {
  int64_t* word = nullptr;  // in page-locked host memory
  int64_t value = 0;
};

// Does `writes` in order once the work before them on the current stream of
// `gpu` is done, and again at each launch of a graph that records the stream.
// The GPU's front end writes, so no write waits for a multiprocessor, as a
// kernel would. Only in CUDA builds.
absl::Status WriteOnStream(c10::Device gpu,
                           absl::Span<const StreamWrite> writes);

}  // namespace cuda
}  // namespace tessera

#endif  // FRAMEWORK_CUDA_STREAM_WRITE_H_
