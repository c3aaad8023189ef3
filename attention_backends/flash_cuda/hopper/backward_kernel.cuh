#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_KERNEL_CUH_

#include <cuda.h>

#include <cstdint>

#include "attention_backends/flash_cuda/hopper/backward_producer.cuh"
#include "attention_backends/flash_cuda/hopper/backward_work.cuh"
#include "attention_backends/flash_cuda/hopper/panels.cuh"
#include "attention_backends/flash_cuda/hopper/ptx.cuh"
#include "attention_backends/flash_cuda/hopper/ring.cuh"
#include "attention_backends/flash_cuda/hopper/wgmma.cuh"

// dQ, dK and dV on Hopper (Dao, "FlashAttention-2", 2023, algorithm 2).
//
// A block owns 128 keys, 64 per computing warpgroup, and walks the tiles of
// queries that see them. Scores are held transposed, S^T = K Q^T and
// dP^T = V dO^T: so P^T and dS^T feed dV += P^T dO and dK += dS^T Q from
// registers. Only dS goes through shared memory, for dQ += dS K, whose sums
// are added to global memory in FP32.

namespace tessera {
namespace flash {
namespace hopper {

// One warpgroup's 64 keys.
template <typename Traits>
class BackwardConsumer {
 public:
  using Element = typename Traits::Element;
  using Shared = BackwardShared<Traits>;
  using QTile = typename Traits::QTile;
  using KTile = typename Traits::KTile;
  using DsTile = typename Traits::DsTile;
  using Dq = typename Traits::Dq;
  using Scores = float[Traits::kScores];
  using Sums = float[Traits::kSums];
  // S^T as the next product's operand: 16 queries in 4 registers.
  using Weights = uint32_t[Traits::kQueries / 16][4];

  __device__ BackwardConsumer(const BackwardMaps& maps,
                              const BackwardArgs& args, Shared& shared,
                              int warpgroup)
      : maps_(maps), args_(args), shared_(shared), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void Run(const BackwardWork<Traits>& work) {
    Sums dk, dv;
#pragma unroll
    for (int i = 0; i < Traits::kSums; ++i) dk[i] = dv[i] = 0;
    shared_.kv_full.Wait(0);
    for (int member = 0; member < args_.group; ++member) {
      int step = 0;
      for (; step < work.masked_steps; ++step) {
        Step<true>(work, member, work.TileAt(step), dk, dv);
      }
      for (; step < work.steps; ++step) {
        Step<false>(work, member, work.TileAt(step), dk, dv);
      }
    }
    if constexpr (Traits::kDeterministic) PassDqTurn();
    BarrierSync(kPairBarrier, 256);  // K has been read for the last time
    Store(work, maps_.dv, dv, 1.f, shared_.v);
    Store(work, maps_.dk, dk, args_.scale, shared_.k);
  }

 private:
  static constexpr int kPairBarrier = 1;
  static constexpr int kStoreBarrier = 2;  // and one more per warpgroup

  template <bool kMasked>
  __device__ __forceinline__ void Step(const BackwardWork<Traits>& work,
                                       int member, int tile, Sums& dk,
                                       Sums& dv) {
    const int stage = ring_.stage;
    Weights p, ds;
    {
      Scores s, dp;
      shared_.q_full[stage].Wait(ring_.parity);
      IssueScores(shared_.k, shared_.q[stage], s);
      shared_.d_o_full[stage].Wait(ring_.parity);
      IssueScores(shared_.v, shared_.d_o[stage], dp);
      // Late, when the previous tile's sums have long reached memory.
      if constexpr (Traits::kDeterministic) PassDqTurn();
      WgmmaWait<1>();
      PinRegisters(s);
      Exponentiate(shared_.lse2[stage], s);
      if constexpr (kMasked) Mask(work, tile, s);
      ToOperand<Element>(s, p);
      IssueProduct(p, shared_.d_o[stage], dv);
      WgmmaWait<1>();
      PinRegisters(dp);
      Differentiate(p, shared_.delta[stage], dp);
      ToOperand<Element>(dp, ds);
    }
    uint8_t* const shared_ds = shared_.ds[stage];
    StoreTile<DsTile>(ds, shared_ds);
    FenceProxyAsync();
    IssueProduct(ds, shared_.q[stage], dk);
    BarrierSync(kPairBarrier, 256);
    float dq[Dq::kSums];
    IssueDq(shared_ds, dq);
    if constexpr (Traits::kDeterministic) TakeDqTurn(work, member, tile);
    WgmmaWait<1>();
    PinRegisters(dk);
    PinRegisters(dv);
    PinRegisters(p);
    PinRegisters(ds);
    if (threadIdx.x % 128 == 0) {
      shared_.q_empty[stage].Arrive();
      shared_.d_o_empty[stage].Arrive();
    }
    ring_.Advance();
    WgmmaWait<0>();
    PinRegisters(dq);
    AddDq(work, member, tile, dq);
  }

  // Waits until the blocks before this one have added to the tile of dQ.
  __device__ __forceinline__ void TakeDqTurn(const BackwardWork<Traits>& work,
                                             int member, int tile) {
    turn_ = args_.scratch.turns + 2 * ScratchTile(args_, work, member, tile) +
            warpgroup_;
    if (threadIdx.x % 128 == 0) {
      const int turn = work.TurnAt(args_, tile);
      while (LoadAcquire(turn_) != turn) {
      }
    }
    BarrierSync(kStoreBarrier + warpgroup_, 128);
  }
  // The barrier orders the warpgroup's sums before thread 0, whose release
  // covers them all (PTX ISA, "Memory consistency model", causality order).
  __device__ __forceinline__ void PassDqTurn() {
    if (turn_ == nullptr) return;
    BarrierSync(kStoreBarrier + warpgroup_, 128);
    if (threadIdx.x % 128 == 0) AddRelease(turn_, 1);
    turn_ = nullptr;
  }

  // S^T = K Q^T or dP^T = V dO^T, of this warpgroup's keys.
  __device__ __forceinline__ void IssueScores(const uint8_t* keys,
                                              const uint8_t* queries,
                                              Scores& s) const {
    const uint32_t a = SharedAddress(keys), b = SharedAddress(queries);
    WgmmaFence();
#pragma unroll
    for (int column = 0; column < Traits::kHeadDim; column += 16) {
      Wgmma<Traits::kQueries>::template Shared<Element, Major::kK, Major::kK>(
          s, KTile::KMajor(a, 64 * warpgroup_, column),
          QTile::KMajor(b, 0, column), column > 0);
    }
    WgmmaCommit();
  }

  // dV += P^T dO or dK += dS^T Q.
  __device__ __forceinline__ static void IssueProduct(const Weights& weights,
                                                      const uint8_t* queries,
                                                      Sums& sums) {
    const uint32_t b = SharedAddress(queries);
    PinRegisters(sums);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < Traits::kQueries / 16; ++i) {
      Wgmma<Traits::kHeadDim>::template Registers<Element, Major::kMn>(
          sums, weights[i], QTile::MnMajor(b, 16 * i), 1);
    }
    WgmmaCommit();
  }

  // This warpgroup's 64 rows of dQ = dS K, or of dQ^T = K^T dS^T.
  __device__ __forceinline__ void IssueDq(const uint8_t* shared_ds,
                                          float (&dq)[Dq::kSums]) const {
    const uint32_t k = SharedAddress(shared_.k), ds = SharedAddress(shared_ds);
    WgmmaFence();
#pragma unroll
    for (int key = 0; key < Traits::kKeys; key += 16) {
      const uint64_t a = Dq::kTransposed
                             ? KTile::MnMajor(k, key, 64 * warpgroup_)
                             : DsTile::MnMajor(ds, key, 64 * warpgroup_);
      const uint64_t b =
          Dq::kTransposed ? DsTile::MnMajor(ds, key) : KTile::MnMajor(k, key);
      Wgmma<Dq::kColumns>::template Shared<Element, Major::kMn, Major::kMn>(
          dq, a, b, key > 0);
    }
    WgmmaCommit();
  }

  // P = exp(scale S - L); the columns of S^T are queries.
  __device__ __forceinline__ void Exponentiate(const float* lse2,
                                               Scores& s) const {
#pragma unroll
    for (int i = 0; i < Traits::kScores; i += 4) {
      const float2 l =
          *reinterpret_cast<const float2*>(lse2 + 2 * i + FragmentColumn());
      s[i] = Exp2(s[i] * args_.scale_log2 - l.x);
      s[i + 1] = Exp2(s[i + 1] * args_.scale_log2 - l.y);
      s[i + 2] = Exp2(s[i + 2] * args_.scale_log2 - l.x);
      s[i + 3] = Exp2(s[i + 3] * args_.scale_log2 - l.y);
    }
  }

  // dS = P o (dP - rowsum(dO o O)), with P as the product dV saw it.
  __device__ __forceinline__ static void Differentiate(const Weights& p,
                                                       const float* delta,
                                                       Scores& dp) {
#pragma unroll
    for (int i = 0; i < Traits::kScores; i += 4) {
      const float2 d =
          *reinterpret_cast<const float2*>(delta + 2 * i + FragmentColumn());
      const float2 first = Unpack<Element>(p[i / 8][i / 4 % 2 * 2]);
      const float2 second = Unpack<Element>(p[i / 8][i / 4 % 2 * 2 + 1]);
      dp[i] = first.x * (dp[i] - d.x);
      dp[i + 1] = first.y * (dp[i + 1] - d.y);
      dp[i + 2] = second.x * (dp[i + 2] - d.x);
      dp[i + 3] = second.y * (dp[i + 3] - d.y);
    }
  }

  // The first of a thread's two rows of 64.
  __device__ __forceinline__ static int Row() {
    return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  }

  // P = 0 for keys that do not exist, or come after the query.
  __device__ __forceinline__ void Mask(const BackwardWork<Traits>& work,
                                       int tile, Scores& p) const {
    const int first_query = tile * Traits::kQueries + FragmentColumn();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = work.first_key + 64 * warpgroup_ + Row() + 8 * r;
      int begin = Traits::kCausal ? key - (args_.t - args_.s) - first_query : 0;
      if (key >= args_.t) begin = Traits::kQueries;
#pragma unroll
      for (int i = 0; i < Traits::kScores; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (2 * i + j < begin) p[i + 2 * r + j] = 0;
        }
      }
    }
  }

  // Fragments of 64 rows to this warpgroup's rows of a tile.
  template <typename Tile, int kCount>
  __device__ __forceinline__ void StoreTile(const uint32_t (&packed)[kCount][4],
                                            uint8_t* to) const {
    const uint32_t tile = SharedAddress(to);
    const int lane = threadIdx.x % 32;
    const int row = 64 * warpgroup_ + threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      StoreMatrices(tile + Tile::Offset(row, 16 * i + lane / 16 * 8),
                    packed[i]);
    }
  }

  __device__ __forceinline__ void AddDq(const BackwardWork<Traits>& work,
                                        int member, int tile,
                                        const float (&dq)[Dq::kSums]) const {
    if (!Dq::IsUsed(warpgroup_, threadIdx.x % 128 / 32)) return;
    float* to = args_.scratch.dq +
                ScratchTile(args_, work, member, tile) * Dq::kElements +
                warpgroup_ * 128 * Dq::kSums + threadIdx.x % 128 * 4;
#pragma unroll
    for (int i = 0; i < Dq::kSums; i += 4) {
      AddGlobal(to + 128 * i, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    }
  }

  __device__ __forceinline__ void Store(const BackwardWork<Traits>& work,
                                        const CUtensorMap& map, Sums& sums,
                                        float factor, uint8_t* through) const {
    uint32_t packed[Traits::kHeadDim / 16][4];
#pragma unroll
    for (int i = 0; i < Traits::kHeadDim / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        packed[i][j] = Pack<Element>(sums[8 * i + 2 * j] * factor,
                                     sums[8 * i + 2 * j + 1] * factor);
      }
    }
    StoreTile<KTile>(packed, through);
    FenceProxyAsync();
    BarrierSync(kStoreBarrier + warpgroup_, 128);
    if (threadIdx.x % 128 != 0) return;
#pragma unroll
    for (int panel = 0; panel < KTile::kCount; ++panel) {
      TmaStore(map,
               {panel * KTile::kWidth, work.first_key + 64 * warpgroup_,
                work.kv_head, work.batch},
               through + panel * KTile::kPanelBytes +
                   64 * warpgroup_ * KTile::kRowBytes);
    }
    TmaCommit();
    TmaWaitRead();
  }

  const BackwardMaps& maps_;
  const BackwardArgs& args_;
  Shared& shared_;
  const int warpgroup_;
  RingIndex<Traits::kStages> ring_;
  int* turn_ = nullptr;  // of the tile of dQ that was added to last
};

template <typename Traits>
__device__ void InitBarriers(BackwardShared<Traits>& shared) {
  if (threadIdx.x == 0) {
    shared.kv_full.Init(1);
    for (int stage = 0; stage < Traits::kStages; ++stage) {
      shared.q_full[stage].Init(1);
      shared.d_o_full[stage].Init(1);
      shared.q_empty[stage].Init(2);
      shared.d_o_empty[stage].Init(2);
    }
    FenceBarrierInit();
  }
  __syncthreads();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    BackwardKernel(const __grid_constant__ BackwardMaps maps,
                   const __grid_constant__ BackwardArgs args) {
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<BackwardShared<Traits>*>(
      raw + (1024 - SharedAddress(raw) % 1024) % 1024);
  InitBarriers(shared);
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) {
    ShrinkRegisters<Traits::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    BackwardProducer<Traits>(maps, args, shared)
        .Run(BackwardWork<Traits>::At(args, blockIdx.x));
  } else {
    GrowRegisters<Traits::kConsumerRegisters>();
    BackwardConsumer<Traits>(maps, args, shared, warpgroup - 1)
        .Run(BackwardWork<Traits>::At(args, blockIdx.x));
  }
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_KERNEL_CUH_
