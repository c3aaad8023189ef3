#include "tests/attention_backends/error_bound.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_join.h"

namespace tessera::testing {
namespace {

// Unit roundoff and smallest normal number.
double Roundoff(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 0x1p-53;
    case at::kFloat:
      return 0x1p-24;
    case at::kHalf:
      return 0x1p-11;
    default:
      return 0x1p-8;  // BFloat16
  }
}
constexpr double kTf32Roundoff = 0x1p-11;
double LeastNormal(at::ScalarType dtype) {
  return dtype == at::kHalf ? 0x1p-14 : 0x1p-126;
}

// The absolute error: 0 for equal infinities, infinity for NaN and unequal
// infinities.
at::Tensor ErrorOf(const at::Tensor& x, const at::Tensor& exact) {
  const at::Tensor wide = x.to(at::kDouble).contiguous();
  return (wide - exact)
      .abs()
      .masked_fill(wide == exact, 0)
      .nan_to_num(HUGE_VAL, HUGE_VAL, HUGE_VAL)
      .contiguous();
}

std::vector<int64_t> IndexOf(int64_t flat, at::IntArrayRef sizes) {
  std::vector<int64_t> index(sizes.size());
  for (int64_t i = sizes.size() - 1; i >= 0; --i) {
    index[i] = flat % sizes[i];
    flat /= sizes[i];
  }
  return index;
}

// Error allowed in addition to twice the error of the baseline, in units of
// each element's `magnitude`:
//
// - FP32: six roundings, because the baseline may be exact by luck. With one
//   key, P = 1 and dS = dP - rowsum(dO o O) = 0; eager ATen sums both in the
//   same order and cancels to 0, another order leaves a rounding, and a base-2
//   logarithm leaves a few in L. Mostly problems with few keys or queries need
//   this; TORCH_EFFICIENT, which computes each product by three of TF32, needs
//   4.8.
// - Narrower results: one FP32 rounding, for the sums that are rounded.
// - BF16, FP16 and TF32, dQ and dK of queries with few keys, whose dP is close
//   to rowsum (with one key, equal): half a rounding to that type. If both are
//   rounded before they are subtracted, sums that differ in their last FP32 bit
//   can round to neighbours, which are two roundings of |dP| <= |dO| |V| apart,
//   next to magnitudes of 2 |dO| |V|. The other factor of two is that |dP| is
//   less than half of its bound, since signs are random.
// - Sums over rows of BF16 or FP16 numbers: the errors of n independent
//   roundings add up to about sqrt(n) of them. There are as many results as
//   heads, so the baseline's largest error may be small by luck.
// - FP64: eight roundings. The baseline is the oracle, so its error counts as
//   0, but both round in each of their sums; the largest error seen is 7.4.
at::Tensor Slack(const Comparison& c) {
  const at::ScalarType dtype = c.actual.scalar_type();
  if (dtype == at::kDouble) return c.magnitude * (8 * Roundoff(dtype));
  const bool is_fp32 = dtype == at::kFloat;
  at::Tensor slack = c.magnitude * ((is_fp32 ? 6 : 1) * Roundoff(at::kFloat));
  if ((!is_fp32 || c.tf32) && c.cancelling_rows > 0) {
    slack.narrow(2, 0, c.cancelling_rows)
        .add_(c.magnitude.narrow(2, 0, c.cancelling_rows),
              0.5 * (c.tf32 ? kTf32Roundoff : Roundoff(dtype)));
  }
  if (c.num_terms > 0) {
    slack.add_(c.magnitude,
               Roundoff(c.terms) / std::sqrt(static_cast<double>(c.num_terms)));
  }
  return slack.contiguous();
}

constexpr int64_t kFewKeys = 20;

}  // namespace

CancellingRows::CancellingRows(int64_t s, int64_t t, MaskSpec spec,
                               bool documents) {
  if (documents) {
    queries = s;
    keys = t;
    return;
  }
  const AttentionMask<int64_t> mask = {s, t, spec.before, spec.after};
  for (int64_t query = 0; query < s; ++query) {
    const KeyRange<int64_t> seen = mask.KeysOfRow(query);
    if (seen.size() > kFewKeys) continue;
    queries = query + 1;
    keys = std::max(keys, seen.end);
  }
}

::testing::AssertionResult Conforms(const Comparison& c) {
  const at::Tensor exact = c.exact.contiguous();
  const at::Tensor error = ErrorOf(c.actual, exact);
  const at::ScalarType dtype = c.actual.scalar_type();
  const at::Tensor finite = exact.masked_fill(exact.isinf(), 0);
  const double baseline = ErrorOf(c.baseline, exact).max().item<double>();
  const double rounding = Roundoff(dtype) * finite.abs().max().item<double>();
  const at::Tensor slack = Slack(c);
  const at::Tensor bounds =
      slack + (2 * baseline + rounding + LeastNormal(dtype));
  const int64_t worst = (error - bounds).argmax().item<int64_t>();
  const double worst_error = error.flatten()[worst].item<double>();
  const double bound = bounds.flatten()[worst].item<double>();
  if (worst_error <= bound && bounds.isfinite().all().item<bool>()) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "worst at [" << absl::StrJoin(IndexOf(worst, error.sizes()), ", ")
         << "]: is " << c.actual.contiguous().flatten()[worst].item<double>()
         << ", should be " << exact.flatten()[worst].item<double>()
         << "; error " << worst_error << " > bound " << bound
         << ", the sum of twice eager ATen's error of " << baseline
         << ", the result's rounding and a slack of "
         << slack.flatten()[worst].item<double>();
}

}  // namespace tessera::testing
