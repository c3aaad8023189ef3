#ifndef FRAMEWORK_CUDA_HOPPER_WGMMA_CUH_
#define FRAMEWORK_CUDA_HOPPER_WGMMA_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

// Warpgroup matrix products: D[64, N] += A[64, 16] B[16, N], FP32 sums,
// BF16 or FP16 operands (PTX ISA, section "wgmma").
//
// Thread t of the warpgroup holds parts of two rows of D, r = t / 32 * 16 + t %
// 32 / 4 and r + 8: columns 8 i + t % 4 * 2 and the next, in d[4 i], d[4 i + 1]
// for row r and in d[4 i + 2], d[4 i + 3] for row r + 8.

namespace tessera {

// Call before the first product after registers or shared memory were written.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups still run.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accesses to these registers across this call.
template <int kCount>
__device__ __forceinline__ void PinRegisters(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" : "+f"(registers[i])::"memory");
}
__device__ __forceinline__ void PinRegister(float*& pointer) {
  asm volatile("" : "+l"(pointer)::"memory");
}
template <int kRows, int kCount>
__device__ __forceinline__ void PinRegisters(
    uint32_t (&registers)[kRows][kCount]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      asm volatile("" : "+r"(registers[i][j])::"memory");
    }
  }
}

// Which dimension of an operand in shared memory is contiguous: K, or M (N).
enum class Major { kK = 0, kMn = 1 };

// Products with kN columns; specialised below for the kN that the kernels use.
template <int kN>
struct Wgmma;

#define TESSERA_R8(d, i)                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
      "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TESSERA_R32(d) \
  TESSERA_R8(d, 0), TESSERA_R8(d, 8), TESSERA_R8(d, 16), TESSERA_R8(d, 24)
#define TESSERA_R40(d) TESSERA_R32(d), TESSERA_R8(d, 32)
#define TESSERA_R48(d) TESSERA_R40(d), TESSERA_R8(d, 40)
#define TESSERA_R56(d) TESSERA_R48(d), TESSERA_R8(d, 48)
#define TESSERA_R64(d) TESSERA_R56(d), TESSERA_R8(d, 56)
#define TESSERA_R72(d) TESSERA_R64(d), TESSERA_R8(d, 64)
#define TESSERA_R80(d) TESSERA_R72(d), TESSERA_R8(d, 72)
#define TESSERA_R88(d) TESSERA_R80(d), TESSERA_R8(d, 80)
#define TESSERA_R96(d) TESSERA_R88(d), TESSERA_R8(d, 88)
#define TESSERA_R128(d)                                                      \
  TESSERA_R96(d), TESSERA_R8(d, 96), TESSERA_R8(d, 104), TESSERA_R8(d, 112), \
      TESSERA_R8(d, 120)

#define TESSERA_P32                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
  "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, " \
  "%26, %27, %28, %29, %30, %31"
#define TESSERA_P40 TESSERA_P32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TESSERA_P48 TESSERA_P40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TESSERA_P56 TESSERA_P48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TESSERA_P64 TESSERA_P56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TESSERA_P72 TESSERA_P64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TESSERA_P80 TESSERA_P72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TESSERA_P88 TESSERA_P80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TESSERA_P96 TESSERA_P88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TESSERA_P128                                                   \
  TESSERA_P96                                                          \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, "   \
  "%107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, " \
  "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// Operands: the sums, A, B, whether to add to the sums, and how A and B are
// transposed. Their numbers follow those of the sums.
#define TESSERA_WGMMA_SS(SIZE, TYPE, SUMS, A, B, ADD, TA, TB)                  \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD                     \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" SIZE "k16.f32." TYPE  \
               "." TYPE " {" TESSERA_P##SUMS "}, " A ", " B ", add, 1, 1, " TA \
                                             ", " TB ";\n}"                    \
               : TESSERA_R##SUMS(d)                                            \
               : "l"(a), "l"(b), "r"(add), "n"(int(kA)), "n"(int(kB)))
#define TESSERA_WGMMA_RS(SIZE, TYPE, SUMS, A0, A1, A2, A3, B, ADD, TB)         \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD                     \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" SIZE "k16.f32." TYPE  \
               "." TYPE " {" TESSERA_P##SUMS "}, {" A0 ", " A1 ", " A2 ", " A3 \
                                             "}, " B ", add, 1, 1, " TB ";\n}" \
               : TESSERA_R##SUMS(d)                                            \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), \
                 "n"(int(kB)))

#define TESSERA_WGMMA(N, SUMS, I0, I1, I2, I3, I4, I5, I6)                   \
  template <>                                                                \
  struct Wgmma<N> {                                                          \
    /* A and B by descriptor. */                                             \
    template <typename T, Major kA, Major kB>                                \
    __device__ __forceinline__ static void Shared(float (&d)[SUMS],          \
                                                  uint64_t a, uint64_t b,    \
                                                  int add) {                 \
      if constexpr (std::is_same_v<T, __half>) {                             \
        TESSERA_WGMMA_SS(#N, "f16", SUMS, I0, I1, I2, I3, I4);               \
      } else {                                                               \
        TESSERA_WGMMA_SS(#N, "bf16", SUMS, I0, I1, I2, I3, I4);              \
      }                                                                      \
    }                                                                        \
    /* A in registers, laid out as the sums of a product are. */             \
    template <typename T, Major kB>                                          \
    __device__ __forceinline__ static void Registers(float (&d)[SUMS],       \
                                                     const uint32_t (&a)[4], \
                                                     uint64_t b, int add) {  \
      if constexpr (std::is_same_v<T, __half>) {                             \
        TESSERA_WGMMA_RS(#N, "f16", SUMS, I0, I1, I2, I3, I4, I5, I6);       \
      } else {                                                               \
        TESSERA_WGMMA_RS(#N, "bf16", SUMS, I0, I1, I2, I3, I4, I5, I6);      \
      }                                                                      \
    }                                                                        \
  };

TESSERA_WGMMA(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
TESSERA_WGMMA(80, 40, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
TESSERA_WGMMA(96, 48, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
TESSERA_WGMMA(112, 56, "%56", "%57", "%58", "%59", "%60", "%61", "%62")
TESSERA_WGMMA(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
TESSERA_WGMMA(144, 72, "%72", "%73", "%74", "%75", "%76", "%77", "%78")
TESSERA_WGMMA(160, 80, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
TESSERA_WGMMA(176, 88, "%88", "%89", "%90", "%91", "%92", "%93", "%94")
TESSERA_WGMMA(192, 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
TESSERA_WGMMA(256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")

#undef TESSERA_WGMMA
#undef TESSERA_WGMMA_SS
#undef TESSERA_WGMMA_RS

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_HOPPER_WGMMA_CUH_
