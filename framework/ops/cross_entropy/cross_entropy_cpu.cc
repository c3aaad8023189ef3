#include <cmath>
#include <cstdint>

#include "ATen/ATen.h"
#include "framework/base/vector_math.h"
#include "framework/ops/cpu_rows.h"
#include "framework/ops/cross_entropy/cross_entropy_kernels.h"
#include "framework/ops/cross_entropy/cross_entropy_math.h"

namespace tessera {
namespace cpu {

struct VectorTanh {
  TESSERA_INLINE Logit operator()(float x) const {
    const TanhAndSlope t = TanhOf(x);
    return {t.tanh, t.slope};
  }
};

// Calls fn with the function from x to a Logit, so that the choice is outside
// of fn's loops.
template <typename Fn>
TESSERA_INLINE inline auto WithLogits(float soft_cap, const Fn& fn) {
  return soft_cap == 0 ? fn(UncappedLogit())
                       : fn(CappedLogit<VectorTanh>{soft_cap});
}

TESSERA_CPU_CLONES
float LogSumExp(const float* x, float soft_cap, int64_t count) {
  return WithLogits(soft_cap, [=](const auto& logit) TESSERA_INLINE {
    const float max = logit(MaxOf(x, count)).value;
    if (std::isinf(max)) return max;
    const float sum = LaneSum(count, [=](int64_t i) TESSERA_INLINE {
      return ExpOfNonPositive(logit(x[i]).value - max);
    });
    return max + std::log(sum);
  });
}

TESSERA_CPU_CLONES
float MeanLogit(const float* x, float soft_cap, int64_t count) {
  return WithLogits(soft_cap, [=](const auto& logit) TESSERA_INLINE {
    const float sum = LaneSum(
        count, [=](int64_t i) TESSERA_INLINE { return logit(x[i]).value; });
    return sum / static_cast<float>(count);
  });
}

// With the same roundings as in loops over rows.
TESSERA_CPU_CLONES
Logit LogitOf(float x, float soft_cap) {
  return WithLogits(soft_cap,
                    [=](const auto& logit) TESSERA_INLINE { return logit(x); });
}

// The part of d(x) that does not depend on the target. d_x may be x.
TESSERA_CPU_CLONES
void LogitGradients(const float* x, float soft_cap, float lse, RowGradient g,
                    int64_t count, float* d_x) {
  WithLogits(soft_cap, [=](const auto& logit) TESSERA_INLINE {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const Logit y = logit(x[i]);
      d_x[i] = LogitGradient(g, ExpOfNonPositive(y.value - lse)) * y.slope;
    }
  });
}

}  // namespace cpu
namespace {

void Forward(const CrossEntropyRows& in, const at::Tensor& loss,
             const at::Tensor& lse) {
  const int64_t rows = in.logits.size(0), width = in.logits.size(1);
  const TrainingObjective& objective = in.options.objective;
  const float cap = in.options.soft_cap;
  const at::Tensor ids = in.targets.contiguous();
  const at::Tensor losses = at::empty({rows}, lse.options());
  const float* const logits = in.logits.const_data_ptr<float>();
  const int64_t* const id = ids.const_data_ptr<int64_t>();
  float* const lse_of = lse.mutable_data_ptr<float>();
  float* const loss_of = losses.mutable_data_ptr<float>();
  ForEachRow(rows, width, [&](int64_t row) {
    const float* const x = logits + row * width;
    lse_of[row] = cpu::LogSumExp(x, cap, width);
    if (id[row] == kIgnoredTarget) {
      loss_of[row] = 0;
      return;
    }
    loss_of[row] =
        RowLoss(objective, {.lse = lse_of[row],
                            .target = cpu::LogitOf(x[id[row]], cap).value,
                            .mean = objective.label_smoothing > 0
                                        ? cpu::MeanLogit(x, cap, width)
                                        : 0});
  });
  loss.copy_(losses.sum());
}

void Backward(const CrossEntropyRows& in, const at::Tensor& dloss,
              const at::Tensor& lse, at::Tensor dlogits) {
  const int64_t rows = in.logits.size(0), width = in.logits.size(1);
  const float cap = in.options.soft_cap;
  const at::Tensor ids = in.targets.contiguous();
  const float scale = dloss.item<float>();
  const float* const logits = in.logits.const_data_ptr<float>();
  const float* const lse_of = lse.const_data_ptr<float>();
  const int64_t* const id = ids.const_data_ptr<int64_t>();
  float* const to = dlogits.mutable_data_ptr<float>();
  ForEachRow(rows, width, [&](int64_t row) {
    const float* const x = logits + row * width;
    float* const d_x = to + row * width;
    const bool counts = id[row] != kIgnoredTarget;
    const RowGradient g =
        Scaled(GradientOfRow(in.options.objective, lse_of[row], width),
               counts ? scale : 0);
    // Before d_x, which may be x.
    const float slope = counts ? cpu::LogitOf(x[id[row]], cap).slope : 0;
    cpu::LogitGradients(x, cap, lse_of[row], g, width, d_x);
    if (counts) d_x[id[row]] -= g.target * slope;
  });
}

}  // namespace

const CrossEntropyKernels CrossEntropyKernels::kCpu = {.forward = Forward,
                                                       .backward = Backward};

}  // namespace tessera
