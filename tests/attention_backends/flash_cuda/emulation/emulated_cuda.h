#ifndef TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_EMULATED_CUDA_H_
#define TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_EMULATED_CUDA_H_

// The parts of CUDA that the kernels' sources use, for a host compiler; for the
// Hopper kernels, see also emulated_hopper.h. Include it before the kernels: it
// defines the guards of their CUDA-specific headers and so replaces them. Which
// lane holds what: PTX ISA, "Matrix Fragments for mma.m16n8k16", "mma.m16n8k8"
// and "ldmatrix".

#define ATTENTION_BACKENDS_FLASH_CUDA_ASYNC_COPY_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_INSTRUCTIONS_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_INSTRUCTIONS_CUH_
#define FRAMEWORK_CUDA_INSTRUCTIONS_CUH_
// The guards of CUDA's headers.
#define __CUDA_RUNTIME_API_H__
#define __CUDA_RUNTIME_H__

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "attention_backends/flash_cuda/flash_params.h"
#include "c10/util/BFloat16.h"
#include "c10/util/Half.h"
#include "tests/attention_backends/flash_cuda/emulation/device_emulator.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace tessera::emulated {
// Grids and blocks have one dimension.
struct Extent {
  unsigned x;
};
template <unsigned (*kGet)()>
struct Index {
  struct {
    operator unsigned() const { return kGet(); }
  } x;
};
template <typename To, typename From>
To Bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
}  // namespace tessera::emulated

inline constexpr tessera::emulated::Index<tessera::emulated::ThreadIndex>
    threadIdx;
inline constexpr tessera::emulated::Index<tessera::emulated::BlockIndex>
    blockIdx;
inline constexpr tessera::emulated::Index<tessera::emulated::GridBlocks>
    gridDim;

using __nv_bfloat16 = c10::BFloat16;
using __half = c10::Half;
struct uint4 {
  uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

enum cudaError_t {
  cudaSuccess,
  cudaErrorInvalidConfiguration,
  cudaErrorInvalidValue
};
using cudaStream_t = void*;
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                                   cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

// One device with two multiprocessors: all but small problems fill it, and a
// kernel with one CUDA block per multiprocessor has two.
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 2;
  return cudaSuccess;
}

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <typename... Args>
cudaError_t cudaFuncSetAttribute(void (*)(Args...), cudaFuncAttribute, int) {
  return cudaSuccess;
}

enum cudaLaunchAttributeID {
  cudaLaunchAttributeProgrammaticStreamSerialization
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  tessera::emulated::Extent gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
template <typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config,
                               void (*kernel)(Args...), const Args&... args) {
  tessera::emulated::RunGrid(config->gridDim.x, config->blockDim.x,
                             config->dynamicSmemBytes,
                             [&] { kernel(args...); });
  return cudaSuccess;
}

inline void __syncthreads() { tessera::emulated::BlockBarrier(); }
inline void __syncwarp() { tessera::emulated::WarpBarrier(); }
inline float __uint_as_float(uint32_t x) {
  return tessera::emulated::Bits<float>(x);
}
inline uint32_t __float_as_uint(float x) {
  return tessera::emulated::Bits<uint32_t>(x);
}
inline void atomicAdd(float* to, float x) { *to += x; }
inline float __shfl_xor_sync(unsigned mask, float x, int lanes) {
  const auto* const words = tessera::emulated::Exchange(
      {.word = {tessera::emulated::Bits<uint32_t>(x)}}, mask);
  return __uint_as_float(words[threadIdx.x % 32 ^ lanes].word[0]);
}

namespace tessera {

inline unsigned char* SharedMemory() { return tessera_emulated_shared; }
inline uint32_t SharedAddress(const void* shared) {
  return static_cast<const unsigned char*>(shared) - SharedMemory();
}

// Row i of matrix m is at the address that lane 8 m + i gives.
inline void LoadMatrices(uint32_t from, uint32_t (&r)[4]) {
  const auto* const rows = emulated::Exchange({.word = {from}});
  const int lane = threadIdx.x % 32;
  for (int m = 0; m < 4; ++m) {
    const char* const row = static_cast<const char*>(
        emulated::Shared(rows[8 * m + lane / 4].word[0], 16));
    std::memcpy(&r[m], row + lane % 4 * 4, 4);
  }
}

// ex2.approx.ftz: results below the least normal number are zero.
inline float Exp2(float x) {
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0 : y;
}

template <typename T>
uint32_t Pack(float low, float high) {
  return emulated::Bits<uint16_t>(T(low)) |
         uint32_t{emulated::Bits<uint16_t>(T(high))} << 16;
}
template <typename T>
float2 Unpack(uint32_t packed) {
  return {emulated::Bits<T>(static_cast<uint16_t>(packed)),
          emulated::Bits<T>(static_cast<uint16_t>(packed >> 16))};
}

namespace flash {

template <FloatType kType>
using Element = std::conditional_t<
    kType == FloatType::kFloat, float,
    std::conditional_t<kType == FloatType::kHalf, __half, __nv_bfloat16>>;

inline void CopyOrZero16(uint32_t to, const void* from, bool copy) {
  emulated::CopyLater(to, copy ? from : nullptr, 16);
}
inline void CopyOrZero8(uint32_t to, const void* from, bool copy) {
  emulated::CopyLater(to, copy ? from : nullptr, 8);
}
inline void WaitForCopies() { emulated::WaitForCopies(); }

namespace portable {

inline void StoreShared(uint32_t to, uint32_t value) {
  std::memcpy(emulated::Shared(to, 4), &value, 4);
}
inline uint4 LoadShared16(uint32_t from) {
  uint4 value;
  std::memcpy(&value, emulated::Shared(from, 16), 16);
  return value;
}

inline uint32_t LoadShared4(uint32_t from) {
  uint32_t value;
  std::memcpy(&value, emulated::Shared(from, 4), 4);
  return value;
}

// Like LoadMatrices(), but transposed.
inline void LoadTransposed(uint32_t from, uint32_t (&r)[4]) {
  const auto* const rows = emulated::Exchange({.word = {from}});
  const int lane = threadIdx.x % 32;
  for (int m = 0; m < 4; ++m) {
    uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      const char* const row = static_cast<const char*>(
          emulated::Shared(rows[8 * m + lane % 4 * 2 + i].word[0], 16));
      std::memcpy(&pair[i], row + lane / 4 * 2, 2);
    }
    r[m] = pair[0] | uint32_t{pair[1]} << 16;
  }
}

template <typename T>
void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto* const words =
      emulated::Exchange({.word = {a[0], a[1], a[2], a[3], b0, b1}});
  const int lane = threadIdx.x % 32;
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4, column = lane % 4 * 2 + e % 2;
    for (int k = 0; k < 16; k += 2) {
      const int part = k / 8, other = k % 8 / 2;
      const float2 x = Unpack<T>(words[row * 4 + other].word[e / 2 + 2 * part]);
      const float2 y = Unpack<T>(words[column * 4 + other].word[4 + part]);
      c[e] += x.x * y.x + x.y * y.y;
    }
  }
}

// cvt.rna.tf32.f32 of a finite number: ties away from zero.
inline float ToTf32(uint32_t x) {
  return __uint_as_float((x + 0x1000) & ~uint32_t{0x1fff});
}

template <>
inline void Mma<float>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                       uint32_t b1) {
  const auto* const words =
      emulated::Exchange({.word = {a[0], a[1], a[2], a[3], b0, b1}});
  const int lane = threadIdx.x % 32;
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4, column = lane % 4 * 2 + e % 2;
    for (int k = 0; k < 8; ++k) {
      const int part = k / 4, other = k % 4;
      c[e] += ToTf32(words[row * 4 + other].word[e / 2 + 2 * part]) *
              ToTf32(words[column * 4 + other].word[4 + part]);
    }
  }
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

// These headers use the declarations above.
#include "attention_backends/flash_cuda/fp32/launch.h"
#include "attention_backends/flash_cuda/hopper/launch.h"
#include "attention_backends/flash_cuda/portable/launch.h"

#endif  // TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_EMULATED_CUDA_H_
