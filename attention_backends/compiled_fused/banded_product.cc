#include "attention_backends/compiled_fused/banded_product.h"

#include <algorithm>
#include <cstdint>

#include "ATen/ATen.h"
#include "absl/functional/function_ref.h"
#include "attention_backends/strided_product.h"

namespace tessera {
namespace fused {
namespace {

// More bands save little: 8 skip 7/16 of the work, and the mask hides 1/2.
constexpr int64_t kMaxBands = 8;
// Minimum rows of one launch: 256 tiles of 128 rows, two for each
// multiprocessor of the largest GPUs.
constexpr int64_t kMinLaunchRows = 256 * 128;
// Minimum rows of a band in one sequence and head: fewer are not worth a
// launch, or a call on a CPU.
constexpr int64_t kMinBandRows = 256;
// Bands begin at multiples of this, which keeps their data aligned.
constexpr int64_t kBandUnit = 64;

// Calls fn for every band, with its queries [begin, end) and the number of
// leading keys that they see.
void ForBands(
    const RowMask& mask,
    absl::FunctionRef<void(int64_t begin, int64_t end, int64_t keys)> fn) {
  for (int64_t band = 0; band < mask.bands(); ++band) {
    const int64_t begin = mask.BandBegin(band);
    fn(begin, mask.BandEnd(band), mask.Written(begin));
  }
}

// Calls fn(out), or fn on a temporary that is copied to `out` if products
// cannot write `out` in place.
void Into(const at::Tensor& out,
          absl::FunctionRef<void(const at::Tensor&)> fn) {
  if (IsTarget(out)) return fn(out);
  const at::Tensor packed = at::empty(out.sizes(), out.options());
  fn(packed);
  out.copy_(packed);
}

}  // namespace

RowMask MaskOf(const AttentionProblem& problem) {
  const AttentionProblem& p = problem;
  RowMask mask = {.queries = p.s,
                  .keys = p.t,
                  .causal = p.mask == MaskSpec::Causal(),
                  .band_rows = p.s};
  // Grouped heads are stacked as rows, which bands would cut across; queries
  // without a key would make empty bands.
  if (!mask.causal || p.h != p.g || p.s > p.t) return mask;
  const int64_t least =

      p.cuda
          ? std::max(kMinBandRows, kMinLaunchRows / MatricesPerLaunch(p.b, p.h))
          : kMinBandRows;
  const int64_t bands = std::clamp<int64_t>(p.s / least, 1, kMaxBands);
  if (bands == 1) return mask;
  const int64_t rows = (p.s + bands - 1) / bands;
  mask.band_rows = (rows + kBandUnit - 1) / kBandUnit * kBandUnit;
  return mask;
}

void BandedProducts::MultiplyIntoScores(const at::Tensor& x,
                                        const at::Tensor& y, double alpha,
                                        const at::Tensor& n2) const {
  if (mask_.bands() == 1) {
    return Multiply(x, y.transpose(2, 3), alpha, n2, batch_);
  }
  const at::Tensor rows = AsOperand(x), keys = AsOperand(y);
  ForBands(mask_, [&](int64_t begin, int64_t end, int64_t seen) {
    Multiply(rows.slice(2, begin, end), keys.narrow(2, 0, seen).transpose(2, 3),
             alpha, n2.slice(2, begin, end).narrow(3, 0, seen), batch_);
  });
}

void BandedProducts::MultiplyByKeys(const at::Tensor& n2, const at::Tensor& y,
                                    double alpha,
                                    const at::Tensor& out_bhsd) const {
  if (mask_.bands() == 1) {
    return MultiplyIntoHeads(n2, y, alpha, out_bhsd, batch_);
  }
  const at::Tensor keys = AsOperand(y);
  Into(out_bhsd, [&](const at::Tensor& out) {
    ForBands(mask_, [&](int64_t begin, int64_t end, int64_t seen) {
      Multiply(n2.slice(2, begin, end).narrow(3, 0, seen),
               keys.narrow(2, 0, seen), alpha, out.slice(2, begin, end),
               batch_);
    });
  });
}

void BandedProducts::MultiplyByQueries(const at::Tensor& n2,
                                       const at::Tensor& x, double alpha,
                                       const at::Tensor& out) const {
  if (mask_.bands() == 1) {
    return Multiply(n2.transpose(2, 3), x, alpha, out, batch_);
  }
  const at::Tensor rows = AsOperand(x);
  Into(out, [&](const at::Tensor& target) {
    // Keys that a band is the first to see are also seen by all later queries.
    int64_t first_key = 0;
    ForBands(mask_, [&](int64_t begin, int64_t, int64_t seen) {
      Multiply(n2.slice(2, begin).slice(3, first_key, seen).transpose(2, 3),
               rows.slice(2, begin), alpha, target.slice(2, first_key, seen),
               batch_);
      first_key = seen;
    });
  });
}

}  // namespace fused
}  // namespace tessera
