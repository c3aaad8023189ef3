#include "framework/optim/muon.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/float_type_of.h"
#include "framework/optim/newton_schulz.h"
#include "framework/optim/optimizer_kernels.h"
#include "framework/params/split_float.h"

namespace tessera {
namespace {

// Elements per task of a CPU thread.
constexpr int64_t kCpuGrain = 1 << 15;

// Calls fn with a value of the C++ type that corresponds to `type`.
template <typename Fn>
void WithType(FloatType type, const Fn& fn) {
  switch (type) {
    case FloatType::kFloat:
      return fn(float{});
    case FloatType::kHalf:
      return fn(at::Half{});
    case FloatType::kBFloat16:
      return fn(at::BFloat16{});
  }
}

// Calls fn(matrix, i, place) for each element i of each matrix, which is
// element `place` of `direction`.
template <typename Fn>
void ForEachElement(const MuonBuffers& b, const Fn& fn) {
  at::parallel_for(0, b.count * b.numel, kCpuGrain,
                   [&](int64_t begin, int64_t end) {
                     while (begin < end) {
                       const int64_t m = begin / b.numel;
                       const MuonMatrix matrix = b.matrices[m];
                       const int64_t first = m * b.numel;
                       const int64_t last = std::min(end, first + b.numel);
                       for (; begin < last; ++begin) {
                         fn(matrix, begin - first, begin);
                       }
                     }
                   });
}

// The CPU's versions of muon_kernel.h.
void UpdateMomentum(const MuonBuffers& b, const MuonOptions& options) {
  WithType(b.state, [&]<typename State>(State) {
    WithType(b.grad_dtype, [&]<typename Grad>(Grad) {
      WithType(b.direction_dtype, [&]<typename Direction>(Direction) {
        ForEachElement(b, [&](const MuonMatrix& matrix, int64_t i,
                              int64_t place) {
          State& momentum = static_cast<State*>(b.momentum)[matrix.offset + i];
          const float g = b.coefficients[matrix.group].grad_scale *
                          static_cast<float>(static_cast<const Grad*>(
                              b.grad)[matrix.offset + i]);
          const float m =
              UpdateMuonMomentum(static_cast<float>(momentum), g, options);
          momentum = static_cast<State>(m);
          static_cast<Direction*>(b.direction)[place] =
              static_cast<Direction>(MuonDirection(m, g, options));
        });
      });
    });
  });
}

// Replaces an element of the weights, in every form in which it is kept, by
// updated(element).
template <typename State, typename Rounded, typename Updated>
void UpdateWeight(const MuonBuffers& b, const MuonMatrix& matrix, int64_t i,
                  const Updated& updated) {
  const int64_t at = matrix.weights + i;
  if (matrix.split != 0) {
    const SplitFloat x =
        SplitInHalves(updated(JoinHalves({b.high[at], b.low[at]})));
    b.high[at] = x.high;
    b.low[at] = x.low;
    return;
  }
  State& weight = static_cast<State*>(b.master)[at];
  const float x = updated(static_cast<float>(weight));
  weight = static_cast<State>(x);
  if (matrix.shadow >= 0) {
    static_cast<Rounded*>(b.shadow)[matrix.shadow + i] =
        static_cast<Rounded>(x);
  }
}

void UpdateWeights(const MuonBuffers& b, const MuonOptions& options) {
  WithType(b.state, [&]<typename State>(State) {
    WithType(b.rounded_dtype, [&]<typename Rounded>(Rounded) {
      WithType(b.direction_dtype, [&]<typename Direction>(Direction) {
        ForEachElement(
            b, [&](const MuonMatrix& matrix, int64_t i, int64_t place) {
              auto direction = static_cast<float>(
                  static_cast<const Direction*>(b.direction)[place]);
              if (b.row_scales != nullptr) {
                direction *= b.row_scales[place / b.cols];
              }
              UpdateWeight<State, Rounded>(b, matrix, i, [&](float weight) {
                return UpdateMuonWeight(weight, direction,
                                        b.coefficients[matrix.group], options,
                                        matrix.ratio);
              });
            });
      });
    });
  });
}

// Updates the moment of a row of X, which is row % b.rows of a matrix, and
// writes its scale and squares.
template <typename State, typename Direction>
void UpdateRow(const MuonBuffers& b, int64_t row, const MuonOptions& options) {
  const auto* const x =
      static_cast<const Direction*>(b.direction) + row * b.cols;
  double sum = 0;
  for (int64_t i = 0; i < b.cols; ++i) {
    const auto element = static_cast<float>(x[i]);
    sum += element * element;
  }
  const auto squares = static_cast<float>(sum);
  State& moment = static_cast<State*>(
      b.row_moments)[b.matrices[row / b.rows].rows + row % b.rows];
  const float v =
      UpdateRowMoment(static_cast<float>(moment),
                      squares / static_cast<float>(b.cols), options);
  moment = static_cast<State>(v);
  const float scale = RowScale(v);
  b.row_scales[row] = scale;
  b.row_squares[row] = scale * scale * squares;
}

void UpdateRows(const MuonBuffers& b, const MuonOptions& options) {
  WithType(b.state, [&]<typename State>(State) {
    WithType(b.direction_dtype, [&]<typename Direction>(Direction) {
      at::parallel_for(0, b.count * b.rows,
                       std::max<int64_t>(1, kCpuGrain / b.cols),
                       [&](int64_t begin, int64_t end) {
                         for (int64_t row = begin; row < end; ++row) {
                           UpdateRow<State, Direction>(b, row, options);
                         }
                       });
    });
  });
}

// The matrices of a batch as bytes on the store's device.
at::Tensor TableOf(const MuonBatch& batch, const MuonOptions& options,
                   const AdamW& adamw, at::Device device) {
  std::vector<MuonMatrix> table;
  for (const ParameterSlice* slice : batch.matrices) {
    table.push_back({.offset = slice->offset,
                     .weights = slice->weights.offset,
                     .shadow = slice->weights.shadow.value_or(-1),
                     .rows = slice->row_moments.value_or(-1),
                     .split = slice->weights.split ? 1 : 0,
                     .group = adamw.GroupOf(*slice),
                     .ratio = MuonRatio(options, batch.rows, batch.cols)});
  }
  return at::from_blob(table.data(),
                       {static_cast<int64_t>(table.size() * sizeof(table[0]))},
                       at::kByte)
      .to(device, at::kByte, /*non_blocking=*/false, /*copy=*/true);
}

// Restricts a slice to this rank's part.
void TakePart(const Sharding& sharding, MuonSlice* slice) {
  const int64_t begin = slice->begin, end = slice->end;
  slice->begin = sharding.PartBegin(begin, end, sharding.index);
  slice->end = sharding.PartBegin(begin, end, sharding.index + 1);
  std::erase_if(slice->batches, [&](const MuonBatch& batch) {
    return batch.part != sharding.index;
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Muon>> Muon::Create(
    const MuonOptions& options, ParameterStore& store,
    const PrecisionPolicy& policy, const AdamW& adamw) {
  std::unique_ptr<Muon> muon(
      new Muon(options, store, MuonDtype(policy), adamw));
  const Sharding& sharding = store.sharding();
  muon->slices_ = MuonSlices(store.slices(), store.sections(), sharding.shards);
  RETURN_IF_ERROR(StatusFromTorch([&] {
    muon->workspace_ =
        at::empty({MuonWorkspaceBytes(muon->slices_, muon->dtype_)},
                  store.grad().options().dtype(at::kByte));
    for (MuonSlice& slice : muon->slices_) {
      if (sharding.divides_optimizer()) TakePart(sharding, &slice);
      std::vector<at::Tensor>& tables = muon->matrices_.emplace_back();
      for (const MuonBatch& batch : slice.batches) {
        tables.push_back(
            TableOf(batch, options, adamw, store.options().device));
      }
    }
  }));
  return muon;
}

absl::Status Muon::Update(int64_t begin, int64_t end) {
  return StatusFromTorchOr([&]() -> absl::Status {
    for (size_t s = 0; s < slices_.size() && begin < end; ++s) {
      const MuonSlice& slice = slices_[s];
      if (slice.begin != begin) continue;
      for (size_t b = 0; b < slice.batches.size(); ++b) {
        RETURN_IF_ERROR(Update(slice.batches[b], matrices_[s][b]));
      }
      begin = slice.end;
    }
    TESSERA_CHECK(begin == end, "elements [", begin, ", ", end,
                  ") are not whole slices of Muon");
    return absl::OkStatus();
  });
}

absl::Status Muon::Update(const MuonBatch& batch, const at::Tensor& matrices) {
  const MuonWorkspace work(batch, dtype_, workspace_);
  const bool cuda = work.x.is_cuda();
  const at::Tensor u = work.u();
  const MuonBuffers directions = Buffers(batch, matrices, work, u);
  if (!cuda && *directions.skips) return absl::OkStatus();
  if constexpr (kCudaBuild) {
    if (cuda) {
      RETURN_IF_ERROR(cuda::UpdateMuonMomentum(directions, options_, u));
    }
  }
  if (!cuda) UpdateMomentum(directions, options_);
  ASSIGN_OR_RETURN(const at::Tensor x, NewtonSchulz(options_.ns_steps, work));
  const MuonBuffers updates = Buffers(batch, matrices, work, x);
  if (batch.row_moments()) RETURN_IF_ERROR(ScaleRows(updates, work));
  if constexpr (kCudaBuild) {
    if (cuda) return cuda::UpdateMuonWeights(updates, options_, x);
  }
  UpdateWeights(updates, options_);
  return absl::OkStatus();
}

absl::Status Muon::ScaleRows(const MuonBuffers& buffers,
                             const MuonWorkspace& work) const {
  if (!work.x.is_cuda()) UpdateRows(buffers, options_);
  if constexpr (kCudaBuild) {
    if (work.x.is_cuda()) {
      RETURN_IF_ERROR(cuda::UpdateMuonRows(buffers, options_, work.x));
    }
  }
  at::Tensor squares = work.norms, scales = work.row_scales;
  at::sum_out(squares, work.row_squares, at::IntArrayRef({1}),
              /*keepdim=*/true);
  const double size = static_cast<double>(std::min(buffers.rows, buffers.cols));
  scales.mul_(squares.clamp_min_(kMuonMinNorm * kMuonMinNorm)
                  .rsqrt_()
                  .mul_(std::sqrt(size)));
  return absl::OkStatus();
}

MuonBuffers Muon::Buffers(const MuonBatch& batch, const at::Tensor& matrices,
                          const MuonWorkspace& work,
                          const at::Tensor& direction) const {
  const auto floats = [](const at::Tensor& buffer) {
    return buffer.defined() ? buffer.data_ptr<float>() : nullptr;
  };
  const AdamWBuffers state = adamw_.Buffers(batch.matrices.front()->offset);
  return {.matrices = static_cast<const MuonMatrix*>(matrices.const_data_ptr()),
          .count = batch.count(),
          .rows = batch.rows,
          .cols = batch.cols,
          .numel = batch.numel(),
          .state = state.state,
          .grad_dtype = state.grad_dtype,
          .rounded_dtype = state.rounded_dtype,
          .direction_dtype = FloatTypeOf(direction.scalar_type()),
          .momentum = state.exp_avg,
          .grad = state.grad,
          .direction = direction.data_ptr(),
          .row_moments = state.exp_avg_sq,
          .row_scales = floats(work.row_scales),
          .row_squares = floats(work.row_squares),
          .master = state.master,
          .shadow = state.shadow,
          .high = state.high,
          .low = state.low,
          .coefficients = adamw_.coefficients(),
          .skips = adamw_.skips()};
}

}  // namespace tessera
