#ifndef FRAMEWORK_CUDA_HOPPER_PTX_CUH_
#define FRAMEWORK_CUDA_HOPPER_PTX_CUH_

#include <cuda.h>

#include <cstdint>

#include "framework/cuda/instructions.cuh"

// The instructions of sm_90a that our kernels use, one wrapper each
// (PTX ISA, sections "mbarrier", "cp.async.bulk.tensor", "setmaxnreg").

namespace tessera {

// A barrier in shared memory that counts arrivals and bytes in flight.
class Mbarrier {
 public:
  __device__ __forceinline__ void Init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(Address()),
                 "r"(arrivals));
  }
  __device__ __forceinline__ void Arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(Address())
                 : "memory");
  }
  // Arrives, and makes the phase also wait for `bytes` of bulk copies.
  __device__ __forceinline__ void ArriveExpecting(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     Address()),
                 "r"(bytes)
                 : "memory");
  }
  // Returns when the phase with this parity has completed.
  __device__ __forceinline__ void Wait(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra finished;\n"
        "bra again;\n"
        "finished:\n"
        "}" ::"r"(Address()),
        "r"(parity)
        : "memory");
  }
  __device__ __forceinline__ uint32_t Address() const {
    return SharedAddress(this);
  }

 private:
  uint64_t state_;
};

// Call after Mbarrier::Init(), before the copy engine uses the barriers.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Orders ordinary writes to shared memory before reads by the tensor cores and
// the copy engine.
__device__ __forceinline__ void FenceProxyAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A [B, heads, rows, D] tensor as the copy engine sees it, innermost first.
struct TileCoordinate {
  int column, row, head, batch;
};

// Copies a box to shared memory and completes its bytes on `barrier`. Elements
// outside the tensor arrive as zeros and count as bytes.
__device__ __forceinline__ void TmaLoad(const CUtensorMap& map,
                                        const TileCoordinate& at,
                                        Mbarrier* barrier, void* shared) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::"
      "bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(SharedAddress(shared)),
      "l"(&map), "r"(barrier->Address()), "r"(at.column), "r"(at.row),
      "r"(at.head), "r"(at.batch)
      : "memory");
}

// Copies contiguous bytes; their number and both addresses are multiples of 16.
__device__ __forceinline__ void BulkLoad(const void* global, int bytes,
                                         Mbarrier* barrier, void* shared) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(barrier->Address())
      : "memory");
}

// Copies a box from shared memory; elements outside the tensor are not written.
__device__ __forceinline__ void TmaStore(const CUtensorMap& map,
                                         const TileCoordinate& at,
                                         const void* shared) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
      "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(SharedAddress(shared)), "r"(at.column), "r"(at.row), "r"(at.head),
      "r"(at.batch)
      : "memory");
}

__device__ __forceinline__ void TmaCommit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until the committed stores have read shared memory.
__device__ __forceinline__ void TmaWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Named barriers of the CUDA block; `threads` is a multiple of 32.
__device__ __forceinline__ void BarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void BarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void ShrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void GrowRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ int LoadAcquire(const int* address) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
               : "=r"(value)
               : "l"(address)
               : "memory");
  return value;
}
__device__ __forceinline__ void AddRelease(int* address, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(address),
               "r"(value)
               : "memory");
}

// Adds to four consecutive floats in global memory.
__device__ __forceinline__ void AddGlobal(float* address, float a, float b,
                                          float c, float d) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address),
               "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

// The opposite of LoadMatrices(); ...Transposed stores each matrix transposed.
__device__ __forceinline__ void StoreMatrices(uint32_t address,
                                              const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
          address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

__device__ __forceinline__ void StoreMatricesTransposed(
    uint32_t address, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, "
      "%4};" ::"r"(address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_HOPPER_PTX_CUH_
