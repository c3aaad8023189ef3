#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FORWARD_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FORWARD_KERNEL_CUH_

#include <cuda.h>

#include <cstdint>

#include "attention_backends/flash_cuda/hopper/forward_producer.cuh"
#include "attention_backends/flash_cuda/hopper/forward_tile.cuh"
#include "attention_backends/flash_cuda/hopper/fragments.cuh"
#include "attention_backends/flash_cuda/hopper/online_softmax.cuh"
#include "attention_backends/flash_cuda/instructions.cuh"
#include "framework/cuda/hopper/panels.cuh"
#include "framework/cuda/hopper/ptx.cuh"
#include "framework/cuda/hopper/ring.cuh"
#include "framework/cuda/hopper/wgmma.cuh"

// O = softmax(scale Q K^T + M) V and its log-sum-exp on Hopper.
//
// One block per multiprocessor goes through (block of query rows, head) pairs.
// Its first warpgroup only fetches: one thread of it feeds Q, K and V tiles to
// shared memory through the copy engine. The others compute, 64 query rows
// each: S of the next key tile runs on the tensor cores while P V of the last
// one does, and while one warpgroup exponentiates another multiplies (Shah et
// al., "FlashAttention-3", 2024, sections 3.1 and 3.2).

namespace tessera {
namespace flash {
namespace hopper {

// One warpgroup's 64 query rows.
template <typename Traits>
class ForwardConsumer {
 public:
  using Element = typename Traits::Element;
  using Shared = ForwardShared<Traits>;
  using QTile = typename Traits::QTile;
  using KTile = typename Traits::KTile;
  using Scores = float[Traits::kScores];
  using Sums = float[Traits::kSums];
  // S as the next product's operand: 16 keys in 4 registers.
  using Weights = uint32_t[Traits::kKeys / 16][4];

  __device__ ForwardConsumer(const ForwardMaps& maps, const ForwardArgs& args,
                             Shared& shared, int warpgroup)
      : maps_(maps), args_(args), shared_(shared), warpgroup_(warpgroup) {
    // The first turn is warpgroup 0's.
    if (warpgroup_ == Traits::kConsumers - 1) PassTurn();
  }

  __device__ __forceinline__ void Run() {
    for (int i = NextTile(); i < args_.scheduler.count(); i = NextTile()) {
      Compute(ForwardTile<Traits>::At(args_, i));
    }
    // Shared memory ends with the block.
    if (threadIdx.x % 128 == 0) TmaWaitRead();
  }

 private:
  __device__ __forceinline__ int NextTile() {
    shared_.tile_full.Wait(tile_parity_);
    tile_parity_ ^= 1;
    const int i = shared_.tile;
    shared_.tile_empty.Arrive();
    return i;
  }

  __device__ __forceinline__ void Compute(const ForwardTile<Traits>& held) {
    Sums o;
    OnlineSoftmax softmax(args_.scale_log2);
    if constexpr (Traits::kAnyMask) FindKeys(held);
    shared_.q_full.Wait(q_parity_);
    q_parity_ ^= 1;
    if (held.key_tiles == 0) {
      ReleaseQ();
#pragma unroll
      for (float& sum : o) sum = 0;
    } else {
      Attend(held, softmax, o);
    }
    Store(held, softmax, o);
  }

  static constexpr int kTurnBarrier = 1;  // and one more per warpgroup
  static constexpr int kStoreBarrier = 1 + Traits::kConsumers;

  __device__ __forceinline__ void TakeTurn() {
    BarrierSync(kTurnBarrier + warpgroup_, 256);
  }
  __device__ __forceinline__ void PassTurn() {
    BarrierArrive(kTurnBarrier + (warpgroup_ + 1) % Traits::kConsumers, 256);
  }

  __device__ __forceinline__ void Attend(const ForwardTile<Traits>& held,
                                         OnlineSoftmax& softmax, Sums& o) {
    Weights p;
    float rescale[2];
    {
      Scores s;
      TakeTurn();
      IssueScores(s);
      PassTurn();
      WgmmaWait<0>();
      PinRegisters(s);
      Release(shared_.k_empty, &k_);
      if (held.key_tiles == (Traits::kAnyMask ? held.first_tile + 1 : 1))
        ReleaseQ();
      ApplyMask(held, held.key_tiles - 1, s);
      softmax.Update(s, rescale);
      ToOperand<Element>(s, p);
    }
    int add = 0;  // P V of the first tile overwrites O
    int tile = held.key_tiles - 2;
    for (; tile >= held.unmasked_tiles; --tile) {
      Step<true>(held, tile, softmax, p, o, add);
      add = 1;
    }
    for (; tile >= (Traits::kAnyMask ? held.first_unmasked : 0); --tile) {
      Step<false>(held, tile, softmax, p, o, add);
      add = 1;
    }
    if constexpr (Traits::kAnyMask) {
      for (; tile >= held.first_tile; --tile) {
        Step<true>(held, tile, softmax, p, o, add);
        add = 1;
      }
    }
    IssuePV(p, o, add);
    WgmmaWait<0>();
    PinRegisters(o);
    Release(shared_.v_empty, &v_);
  }

  // Adds the previous tile's P V to O while this tile's S and P are made.
  template <bool kMasked>
  __device__ __forceinline__ void Step(const ForwardTile<Traits>& held,
                                       int tile, OnlineSoftmax& softmax,
                                       Weights& p, Sums& o, int add) {
    Scores s;
    float rescale[2];
    TakeTurn();
    IssueScores(s);
    IssuePV(p, o, add);
    PassTurn();
    WgmmaWait<1>();
    PinRegisters(s);
    Release(shared_.k_empty, &k_);
    if (tile == (Traits::kAnyMask ? held.first_tile : 0)) ReleaseQ();
    if constexpr (kMasked) ApplyMask(held, tile, s);
    softmax.Update(s, rescale);
    WgmmaWait<0>();
    PinRegisters(o);
    PinRegisters(p);
    Release(shared_.v_empty, &v_);
    ToOperand<Element>(s, p);
#pragma unroll
    for (int i = 0; i < Traits::kSums; ++i) o[i] *= rescale[i / 2 % 2];
  }

  // S = Q K^T of the next K tile.
  __device__ __forceinline__ void IssueScores(Scores& s) {
    shared_.k_full[k_.stage].Wait(k_.parity);
    const uint32_t q = SharedAddress(shared_.q);
    const uint32_t k = SharedAddress(shared_.k[k_.stage]);
    WgmmaFence();
#pragma unroll
    for (int column = 0; column < Traits::kHeadDim; column += 16) {
      Wgmma<Traits::kKeys>::template Shared<Element, Major::kK, Major::kK>(
          s, QTile::KMajor(q, 64 * warpgroup_, column),
          KTile::KMajor(k, 0, column), column > 0);
    }
    WgmmaCommit();
  }

  // O (+)= P V of the next V tile.
  __device__ __forceinline__ void IssuePV(const Weights& p, Sums& o, int add) {
    shared_.v_full[v_.stage].Wait(v_.parity);
    const uint32_t v = SharedAddress(shared_.v[v_.stage]);
    PinRegisters(o);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < Traits::kKeys / 16; ++i) {
      Wgmma<Traits::kHeadDim>::template Registers<Element, Major::kMn>(
          o, p[i], KTile::MnMajor(v, 16 * i), i > 0 ? 1 : add);
    }
    WgmmaCommit();
  }

  __device__ __forceinline__ void Release(Mbarrier* empty,
                                          RingIndex<Traits::kStages>* ring) {
    if (threadIdx.x % 128 == 0) empty[ring->stage].Arrive();
    ring->Advance();
  }

  __device__ __forceinline__ void ReleaseQ() {
    if (threadIdx.x % 128 == 0) shared_.q_empty.Arrive();
  }

  // The first of a thread's two rows, within the block's rows; the other is 8
  // further.
  __device__ __forceinline__ int Row() const {
    return 64 * warpgroup_ + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  }

  // The keys of this thread's rows, which are read from memory if there are
  // documents: not in every tile.
  __device__ __forceinline__ void FindKeys(const ForwardTile<Traits>& held) {
    const AttentionMask<int> mask = MaskOf<Traits>(args_, held.batch);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      seen_[r] = mask.KeysOfRow(held.first_row + Row() + 8 * r);
    }
  }

  __device__ __forceinline__ void ApplyMask(const ForwardTile<Traits>& held,
                                            int tile, Scores& s) const {
    const int first = tile * Traits::kKeys + FragmentColumn();
    const int row = held.first_row + Row();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int begin = 0;
      int end = args_.t - first;  // keys from here on do not exist
      if constexpr (Traits::kAnyMask) {
        begin = seen_[r].begin - first;
        end = seen_[r].end - first;
      } else if (Traits::kCausal) {
        end = min(end, MaskOf<Traits>(args_, held.batch).Keys(row + 8 * r).end -
                           first);
      }
#pragma unroll
      for (int i = 0; i < Traits::kScores; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const bool hidden =
              2 * i + j >= end || (Traits::kAnyMask && 2 * i + j < begin);
          if (hidden) s[i + 2 * r + j] = -INFINITY;
        }
      }
    }
  }

  // O goes through shared memory to the copy engine.
  __device__ __forceinline__ void Store(const ForwardTile<Traits>& held,
                                        OnlineSoftmax& softmax, Sums& o) {
    float factors[2], lse[2];
    softmax.Finish(factors, lse);
    StoreLse(held, lse);
    // The copy engine may still read the previous O.
    if (threadIdx.x % 128 == 0) TmaWaitRead();
    BarrierSync(kStoreBarrier + warpgroup_, 128);
    const uint32_t tile = SharedAddress(shared_.o);
#pragma unroll
    for (int i = 0; i < Traits::kHeadDim / 16; ++i) {
      uint32_t packed[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        packed[j] = Pack<Element>(o[8 * i + 2 * j] * factors[j % 2],
                                  o[8 * i + 2 * j + 1] * factors[j % 2]);
      }
      StoreFragment<QTile>(tile, 64 * warpgroup_, 16 * i, packed);
    }
    FenceProxyAsync();
    BarrierSync(kStoreBarrier + warpgroup_, 128);
    if (threadIdx.x % 128 != 0) return;
    TmaStoreRows<QTile>(
        maps_.o, shared_.o, 64 * warpgroup_,
        {0, held.first_row + 64 * warpgroup_, held.head, held.batch});
  }

  __device__ __forceinline__ void StoreLse(const ForwardTile<Traits>& held,
                                           const float (&lse)[2]) const {
    if (FragmentColumn() != 0) return;
    float* const rows =
        args_.lse +
        (static_cast<int64_t>(held.batch) * args_.heads + held.head) * args_.s;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = held.first_row + Row() + 8 * r;
      if (row < args_.s) rows[row] = lse[r];
    }
  }

  const ForwardMaps& maps_;
  const ForwardArgs& args_;
  Shared& shared_;
  const int warpgroup_;
  uint32_t tile_parity_ = 0, q_parity_ = 0;
  RingIndex<Traits::kStages> k_, v_;
  KeyRange<int> seen_[2];  // with kAnyMask: FindKeys()
};

template <typename Traits>
__device__ void InitBarriers(ForwardShared<Traits>& shared) {
  if (threadIdx.x == 0) {
    shared.tile_full.Init(1);
    shared.tile_empty.Init(128 * Traits::kConsumers);
    shared.q_full.Init(1);
    shared.q_empty.Init(Traits::kConsumers);
    for (int stage = 0; stage < Traits::kStages; ++stage) {
      shared.k_full[stage].Init(1);
      shared.v_full[stage].Init(1);
      shared.k_empty[stage].Init(Traits::kConsumers);
      shared.v_empty[stage].Init(Traits::kConsumers);
    }
    FenceBarrierInit();
  }
  __syncthreads();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    ForwardKernel(const __grid_constant__ ForwardMaps maps,
                  const __grid_constant__ ForwardArgs args) {
  auto& shared = *reinterpret_cast<ForwardShared<Traits>*>(SharedMemory());
  InitBarriers(shared);
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) {
    ShrinkRegisters<Traits::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    ForwardProducer<Traits>(maps, shared).Run(args);
  } else {
    GrowRegisters<Traits::kConsumerRegisters>();
    ForwardConsumer<Traits>(maps, args, shared, warpgroup - 1).Run();
  }
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FORWARD_KERNEL_CUH_
