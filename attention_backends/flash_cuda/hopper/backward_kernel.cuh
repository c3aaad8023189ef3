#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_KERNEL_CUH_

#include <cuda.h>

#include <cstdint>

#include "attention_backends/flash_cuda/hopper/backward_producer.cuh"
#include "attention_backends/flash_cuda/hopper/backward_tile.cuh"
#include "attention_backends/flash_cuda/hopper/fragments.cuh"
#include "attention_backends/flash_cuda/instructions.cuh"
#include "framework/cuda/hopper/panels.cuh"
#include "framework/cuda/hopper/ptx.cuh"
#include "framework/cuda/hopper/ring.cuh"
#include "framework/cuda/hopper/wgmma.cuh"

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
  // V of 64 keys as an operand.
  using Values = uint32_t[Traits::kHeadDim / 16][4];

  __device__ BackwardConsumer(const BackwardMaps& maps,
                              const BackwardArgs& args, Shared& shared,
                              int warpgroup)
      : maps_(maps), args_(args), shared_(shared), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void Run(BackwardTile<Traits> held) {
    Sums dk, dv;
    held.FindTiles(args_);
#pragma unroll
    for (int i = 0; i < Traits::kSums; ++i) dk[i] = dv[i] = 0;
    if constexpr (Traits::kAnyMask) FindQueries(held);
    shared_.kv_full.Wait(0);
    if constexpr (Traits::kHoldsV) {
#pragma unroll
      for (int i = 0; i < Traits::kHeadDim / 16; ++i) {
        LoadFragment<KTile>(SharedAddress(shared_.v), 64 * warpgroup_, 16 * i,
                            v_[i]);
      }
    }
    for (int member = 0; member < args_.group; ++member) {
      const int scratch = FirstScratchTile(args_, held, member);
      int step = 0;
      if constexpr (Traits::kDeterministic) {
        for (; step < held.steps; ++step) {
          if (held.IsMasked(step)) {
            Step<true>(held, scratch, held.TileAt(step), dk, dv);
          } else {
            Step<false>(held, scratch, held.TileAt(step), dk, dv);
          }
        }
      } else if constexpr (Traits::kAnyMask) {  // masked, whole, masked
        const int whole = held.first_unmasked - held.first_tile;
        const int end_whole = held.end_unmasked - held.first_tile;
        for (; step < min(held.steps, whole); ++step) {
          Step<true>(held, scratch, held.TileAt(step), dk, dv);
        }
        for (; step < min(held.steps, end_whole); ++step) {
          Step<false>(held, scratch, held.TileAt(step), dk, dv);
        }
        for (; step < held.steps; ++step) {
          Step<true>(held, scratch, held.TileAt(step), dk, dv);
        }
      } else {  // faster, where the masked ones always come first
        for (; step < held.masked_steps; ++step) {
          Step<true>(held, scratch, held.TileAt(step), dk, dv);
        }
        for (; step < held.steps; ++step) {
          Step<false>(held, scratch, held.TileAt(step), dk, dv);
        }
      }
    }
    BarrierSync(kPairBarrier, 256);  // K has been read for the last time
    Store(held, maps_.dv, dv, 1.f, shared_.v);
    Store(held, maps_.dk, dk, args_.scale, shared_.k);
  }

 private:
  static constexpr int kPairBarrier = 1;
  static constexpr int kStoreBarrier = 2;  // and one more per warpgroup

  template <bool kMasked>
  __device__ __forceinline__ void Step(const BackwardTile<Traits>& held,
                                       int scratch, int tile, Sums& dk,
                                       Sums& dv) {
    const int stage = ring_.stage;
    Weights p, ds;
    {
      Scores s, dp;
      shared_.q_full[stage].Wait(ring_.parity);
      IssueScores(shared_.k, shared_.q[stage], s);
      shared_.d_o_full[stage].Wait(ring_.parity);
      if constexpr (Traits::kHoldsV) {
        IssueScores(v_, shared_.d_o[stage], dp);
      } else {
        IssueScores(shared_.v, shared_.d_o[stage], dp);
      }
      WgmmaWait<1>();
      PinRegisters(s);
      Exponentiate(shared_.lse2[stage], s);
      if constexpr (kMasked) ApplyMask(held, tile, s);
      ToOperand<Element>(s, p);
      IssueProduct(p, shared_.d_o[stage], dv);
      WgmmaWait<1>();
      PinRegisters(dp);
      Differentiate(p, shared_.delta[stage], dp);
      ToOperand<Element>(dp, ds);
    }
    ShareDs(shared_.ds[stage], ds);
    float dq[Dq::kSums];
    IssueDq(shared_.ds[stage], dq);
    IssueProduct(ds, shared_.q[stage], dk);
    WgmmaWait<1>();
    PinRegisters(dq);
    PinRegisters(dv);
    PinRegisters(p);
    // dQ leaves while the tensor cores work on dK.
    float* to = DqOf(scratch + tile);
    if constexpr (Traits::kAddressBeforeTurn) PinRegister(to);
    if constexpr (Traits::kDeterministic) TakeDqTurn();
    if (Traits::kDeterministic && held.TurnAt(args_, tile) == 0) {
      StoreDq(dq, to);
    } else {
      AddDq(dq, to);
    }
    if constexpr (Traits::kDeterministic) PassDqTurn();
    WgmmaWait<0>();
    PinRegisters(dk);
    PinRegisters(ds);
    ReleaseStage();
  }

  // Writes dS to shared memory, where both warpgroups read all of it.
  __device__ __forceinline__ void ShareDs(uint8_t* to, const Weights& ds) {
#pragma unroll
    for (int i = 0; i < Traits::kQueries / 16; ++i) {
      StoreFragment<DsTile>(SharedAddress(to), 64 * warpgroup_, 16 * i, ds[i]);
    }
    FenceProxyAsync();
    BarrierSync(kPairBarrier, 256);
  }

  // Lets the producer load the next queries into this stage.
  __device__ __forceinline__ void ReleaseStage() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      shared_.q_empty[ring_.stage].Arrive();
      shared_.d_o_empty[ring_.stage].Arrive();
    }
    ring_.Advance();
  }

  // Until the blocks before this one have added to the tile of dQ. The
  // barrier's parity alternates as the stage does. At head dim 80 in BF16 ptxas
  // spills in the loop if the causal kernel has no variable of its own for it,
  // or the other has one; which costs 1 to 2 %.
  __device__ __forceinline__ void TakeDqTurn() {
    if constexpr (Traits::kCausal) {
      shared_.dq_turn.Wait(dq_turn_parity_);
      dq_turn_parity_ ^= 1;
    } else {
      static_assert(Traits::kStages == 2);
      shared_.dq_turn.Wait(ring_.stage);
    }
  }
  __device__ __forceinline__ void PassDqTurn() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared_.dq_added.Arrive();
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
  __device__ __forceinline__ static void IssueScores(const Values& v,
                                                     const uint8_t* queries,
                                                     Scores& s) {
    const uint32_t b = SharedAddress(queries);
    WgmmaFence();
#pragma unroll
    for (int column = 0; column < Traits::kHeadDim; column += 16) {
      Wgmma<Traits::kQueries>::template Registers<Element, Major::kK>(
          s, v[column / 16], QTile::KMajor(b, 0, column), column > 0);
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

  // The queries that see this thread's keys, as FindKeys() in the forward
  // kernel.
  __device__ __forceinline__ void FindQueries(
      const BackwardTile<Traits>& held) {
    const AttentionMask<int> mask = MaskOf<Traits>(args_, held.batch);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      seen_by_[r] =
          mask.Queries(held.first_key + 64 * warpgroup_ + Row() + 8 * r);
    }
  }

  // P = 0 for keys that do not exist, or that the query does not see.
  __device__ __forceinline__ void ApplyMask(const BackwardTile<Traits>& held,
                                            int tile, Scores& p) const {
    const int first_query = tile * Traits::kQueries + FragmentColumn();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = held.first_key + 64 * warpgroup_ + Row() + 8 * r;
      int begin =
          Traits::kCausal
              ? MaskOf<Traits>(args_, held.batch).FirstQuery(key) - first_query
              : 0;
      int end = Traits::kQueries;
      if constexpr (Traits::kAnyMask) {
        begin = seen_by_[r].begin - first_query;
        end = seen_by_[r].end - first_query;
      }
      if (key >= args_.t) begin = Traits::kQueries;
#pragma unroll
      for (int i = 0; i < Traits::kScores; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const bool hidden =
              2 * i + j < begin || (Traits::kAnyMask && 2 * i + j >= end);
          if (hidden) p[i + 2 * r + j] = 0;
        }
      }
    }
  }

  // This thread's sums in a tile of the scratch.
  __device__ __forceinline__ float* DqOf(int scratch_tile) const {
    return args_.scratch.dq + int64_t{scratch_tile} * Dq::kElements +
           warpgroup_ * 128 * Dq::kSums + threadIdx.x % 128 * 4;
  }
  __device__ __forceinline__ void AddDq(const float (&dq)[Dq::kSums],
                                        float* to) const {
    if (!Dq::IsUsed(warpgroup_, threadIdx.x % 128 / 32)) return;
#pragma unroll
    for (int i = 0; i < Dq::kSums; i += 4) {
      AddGlobal(to + 128 * i, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    }
  }

  // Instead, where nothing has been added before: saves clearing the sums.
  __device__ __forceinline__ void StoreDq(const float (&dq)[Dq::kSums],
                                          float* to) const {
    if (!Dq::IsUsed(warpgroup_, threadIdx.x % 128 / 32)) return;
#pragma unroll
    for (int i = 0; i < Dq::kSums; i += 4) {
      *reinterpret_cast<float4*>(to + 128 * i) =
          make_float4(dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    }
  }

  __device__ __forceinline__ void Store(const BackwardTile<Traits>& held,
                                        const CUtensorMap& map, Sums& sums,
                                        float factor, uint8_t* through) const {
#pragma unroll
    for (int i = 0; i < Traits::kHeadDim / 16; ++i) {
      uint32_t packed[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        packed[j] = Pack<Element>(sums[8 * i + 2 * j] * factor,
                                  sums[8 * i + 2 * j + 1] * factor);
      }
      StoreFragment<KTile>(SharedAddress(through), 64 * warpgroup_, 16 * i,
                           packed);
    }
    FenceProxyAsync();
    BarrierSync(kStoreBarrier + warpgroup_, 128);
    if (threadIdx.x % 128 != 0) return;
    TmaStoreRows<KTile>(
        map, through, 64 * warpgroup_,
        {0, held.first_key + 64 * warpgroup_, held.kv_head, held.batch});
    TmaWaitRead();
  }

  const BackwardMaps& maps_;
  const BackwardArgs& args_;
  Shared& shared_;
  const int warpgroup_;
  Values v_;  // where Traits::kHoldsV
  RingIndex<Traits::kStages> ring_;
  uint32_t dq_turn_parity_ = 0;
  QueryRange<int> seen_by_[2];  // with kAnyMask: FindQueries()
};

// Before the first use of shared memory.
template <typename Traits>
__device__ void Init(const BackwardArgs& args, BackwardShared<Traits>& shared) {
  if (threadIdx.x == 0) {
    // A block waits for those that took their tile before it, so that
    // whichever run at all come to an end.
    shared.tile = Traits::kDeterministic ? atomicAdd(args.scratch.taken, 1)
                                         : static_cast<int>(blockIdx.x);
    shared.kv_full.Init(1);
    shared.dq_turn.Init(1);
    shared.dq_added.Init(Traits::kConsumerWarps);
    for (int stage = 0; stage < Traits::kStages; ++stage) {
      shared.q_full[stage].Init(1);
      shared.d_o_full[stage].Init(1);
      shared.q_empty[stage].Init(Traits::kConsumerWarps);
      shared.d_o_empty[stage].Init(Traits::kConsumerWarps);
    }
    FenceBarrierInit();
  }
  __syncthreads();
}

// One thread waits for this block's turn at each tile of dQ, lets the consumers
// add, and passes the turn on, so that they wait for shared memory alone. Their
// sums come before their arrivals, and with those before the release (PTX ISA,
// "Memory consistency model", causality order).
template <typename Traits>
__device__ void KeepDqTurns(const BackwardArgs& args, BackwardTile<Traits> held,
                            BackwardShared<Traits>& shared) {
  held.FindTiles(args);
  uint32_t parity = 0;
  for (int member = 0; member < args.group; ++member) {
    int* const turns =
        args.scratch.turns + FirstScratchTile(args, held, member);
    for (int step = 0; step < held.steps; ++step) {
      const int tile = held.TileAt(step);
      int* const turn = turns + tile;
      const int mine = held.TurnAt(args, tile);
      while (LoadAcquire(turn) != mine) {
      }
      shared.dq_turn.Arrive();
      shared.dq_added.Wait(parity);
      parity ^= 1;
      AddRelease(turn, 1);
    }
  }
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    BackwardKernel(const __grid_constant__ BackwardMaps maps,
                   const __grid_constant__ BackwardArgs args) {
  auto& shared = *reinterpret_cast<BackwardShared<Traits>*>(SharedMemory());
  Init(args, shared);
  const auto held = BackwardTile<Traits>::At(args, shared.tile);
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) {
    ShrinkRegisters<Traits::kProducerRegisters>();
    if (threadIdx.x == 0) {
      BackwardProducer<Traits>(maps, args, shared).Run(held);
    } else if (Traits::kDeterministic && threadIdx.x == 32) {
      KeepDqTurns(args, held, shared);
    }
  } else {
    GrowRegisters<Traits::kConsumerRegisters>();
    BackwardConsumer<Traits>(maps, args, shared, warpgroup - 1).Run(held);
  }
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_KERNEL_CUH_
