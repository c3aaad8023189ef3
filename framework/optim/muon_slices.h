#ifndef FRAMEWORK_OPTIM_MUON_SLICES_H_
#define FRAMEWORK_OPTIM_MUON_SLICES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/types/span.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/precision_policy.h"

namespace tessera {

// Matrices of one shape, whose products are one batch.
struct MuonBatch {
  int64_t rows = 0, cols = 0;
  int part = 0;  // of the section, if ranks divide sections
  std::vector<const ParameterSlice*> matrices;

  int64_t count() const { return static_cast<int64_t>(matrices.size()); }
  int64_t numel() const { return rows * cols; }  // of each
  // The size of X X^T or X^T X, whichever is smaller.
  int64_t gram() const { return rows < cols ? rows : cols; }
  // Whether Newton-Schulz steps iterate the matrix of that size: in FP16, if
  // the longer side is at least twice the shorter. FP32 would lose accuracy.
  bool iterates_gram(at::ScalarType dtype) const {
    return dtype == at::kHalf && numel() >= 2 * gram() * gram();
  }
  // Whether NorMuon updates them.
  bool row_moments() const { return matrices.front()->row_moments.has_value(); }
};

// Neighbouring blocks of Muon that one task of the step updates: elements
// [begin, end) of the gradient buffer. A slice ends with the block that gives
// it kMuonSliceElements, so that a deferred update (rewrites/defer_update.h)
// delays only the ops that read its weights, and workspace is bounded by a
// slice. Small matrices of many layers are in one batch.
//
// With several shards a slice is a section, and a batch has matrices of one
// rank's part only, whether or not ranks divide the update: a product may have
// other bits in a batch of another size.
struct MuonSlice {
  int64_t begin = 0, end = 0;
  std::vector<MuonBatch> batches;
};
inline constexpr int64_t kMuonSliceElements = int64_t{1} << 25;

// The slices of Muon's blocks, whose sections are the last ones. They point to
// `parameters`, those of a store or layout.
std::vector<MuonSlice> MuonSlices(absl::Span<const ParameterSlice> parameters,
                                  absl::Span<const ParameterSection> sections,
                                  int shards);

// The dtype of X and its products: FP16, in which the iteration errs about an
// eighth as much as in the paper's BF16, unless the policy's products are in
// FP32 or TF32.
at::ScalarType MuonDtype(const PrecisionPolicy& precision);

// The number of Newton-Schulz steps before each multiplication of X.
std::vector<int> NewtonSchulzRuns(int steps, bool iterates_gram);

// The tensors that the update of a batch needs, in one buffer: X and its
// successor, the small matrices of newton_schulz.h, and norms. row_scales and
// row_squares are undefined without NorMuon.
struct MuonWorkspace {
  at::Tensor x, next;               // [count, rows, cols]
  std::array<at::Tensor, 4> grams;  // [count, gram, gram]; two may be undefined
  at::Tensor norms;                 // FP32 [count, 1, 1]
  // FP32 [count, rows, 1].
  at::Tensor row_scales, row_squares;

  MuonWorkspace(const MuonBatch& batch, at::ScalarType dtype,
                const at::Tensor& buffer);

  bool four_grams() const { return grams[3].defined(); }
  // U, in the memory of `next`: in BF16 instead of FP16, which has not the
  // range of gradients.
  at::Tensor u() const {
    return next.scalar_type() == at::kHalf ? next.view(at::kBFloat16) : next;
  }
};
// The size of the buffer for all batches, which share it.
int64_t MuonWorkspaceBytes(absl::Span<const MuonSlice> slices,
                           at::ScalarType dtype);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_MUON_SLICES_H_
