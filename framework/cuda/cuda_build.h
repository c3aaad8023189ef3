#ifndef FRAMEWORK_CUDA_CUDA_BUILD_H_
#define FRAMEWORK_CUDA_CUDA_BUILD_H_

namespace tessera {

// Whether this program was built with --config=cuda. The one way to choose
// between CUDA's code and the CPU's: what needs CUDA's headers stands in a
// source that only CUDA builds compile (`if_cuda` in BUILD.bazel), behind a
// header that every build can read, and is called under
//   if constexpr (kCudaBuild)
// so that a build without CUDA needs no definition of it.
#ifdef TESSERA_CUDA
inline constexpr bool kCudaBuild = true;
#else
inline constexpr bool kCudaBuild = false;
#endif

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_CUDA_BUILD_H_
