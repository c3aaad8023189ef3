#ifndef FRAMEWORK_CUDA_CUDA_BUILD_H_
#define FRAMEWORK_CUDA_CUDA_BUILD_H_

namespace tessera {

// True if this program was built with --config=cuda. This is the only switch
// between CUDA code and CPU code. Code that needs CUDA's headers is in a source
// that only CUDA builds compile (`if_cuda` in BUILD.bazel), has a header that
// every build can read, and is called under
//   if constexpr (kCudaBuild)
// so that a build without CUDA needs no definition of it.
#ifdef TESSERA_CUDA
inline constexpr bool kCudaBuild = true;
#else
inline constexpr bool kCudaBuild = false;
#endif

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_CUDA_BUILD_H_
