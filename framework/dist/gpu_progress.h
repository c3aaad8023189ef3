#ifndef FRAMEWORK_DIST_GPU_PROGRESS_H_
#define FRAMEWORK_DIST_GPU_PROGRESS_H_

#include <memory>

#include "c10/core/Device.h"
#include "framework/dist/progress.h"

namespace tessera {

// Writes on the current stream of `gpu`, also in CUDA graphs. This and the
// writer's functions throw LibTorch's exceptions. Only in CUDA builds
// (framework/cuda/cuda_build.h).
std::unique_ptr<Progress::Writer> MakeGpuWriter(c10::Device gpu);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_GPU_PROGRESS_H_
