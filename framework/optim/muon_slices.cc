#include "framework/optim/muon_slices.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "absl/algorithm/container.h"
#include "c10/core/ScalarType.h"

namespace tessera {
namespace {

void AddTo(std::vector<MuonBatch>* batches, const ParameterSlice& matrix,
           int part) {
  const int64_t rows = matrix.shape[0], cols = matrix.shape[1];
  auto batch = absl::c_find_if(*batches, [&](const MuonBatch& b) {
    return b.rows == rows && b.cols == cols && b.part == part;
  });
  if (batch == batches->end()) {
    batch = batches->insert(batches->end(),
                            {.rows = rows, .cols = cols, .part = part});
  }
  batch->matrices.push_back(&matrix);
}

// The parts of a batch's buffer, in bytes; each begins at a multiple of 256.
struct Parts {
  int64_t matrices = 0, gram = 0, grams = 2, norms = 0, rows = 0;

  Parts(const MuonBatch& batch, at::ScalarType dtype) {
    const auto aligned = [&](int64_t numel, at::ScalarType type) {
      const auto size = static_cast<int64_t>(c10::elementSize(type));
      return (numel * size + 255) / 256 * 256;
    };
    matrices = aligned(batch.count() * batch.numel(), dtype);
    gram = aligned(batch.count() * batch.gram() * batch.gram(), dtype);
    if (batch.iterates_gram(dtype)) grams = 4;
    norms = aligned(batch.count(), at::kFloat);
    if (!batch.row_moments()) return;
    rows = aligned(batch.count() * batch.rows, at::kFloat);
  }
  int64_t total() const { return 2 * (matrices + rows) + grams * gram + norms; }
};

}  // namespace

std::vector<MuonSlice> MuonSlices(absl::Span<const ParameterSlice> parameters,
                                  absl::Span<const ParameterSection> sections,
                                  int shards) {
  const int64_t least = shards > 1 ? 1 : kMuonSliceElements;
  std::vector<MuonSlice> slices;
  auto section = sections.begin();
  for (const ParameterSlice& matrix : parameters) {
    if (!matrix.muon) continue;
    while (section->end <= matrix.offset) ++section;
    const int64_t begin = shards > 1 ? section->begin : matrix.block_offset;
    if (slices.empty() || begin - slices.back().begin >= least) {
      if (!slices.empty()) slices.back().end = begin;
      slices.push_back({.begin = begin});
    }
    AddTo(&slices.back().batches, matrix,
          static_cast<int>((matrix.offset - section->begin) /
                           (section->size() / shards)));
  }
  if (!slices.empty()) slices.back().end = sections.back().end;
  return slices;
}

at::ScalarType MuonDtype(const PrecisionPolicy& precision) {
  return precision[OpClass::kMatmul] == at::kFloat ? at::kFloat : at::kHalf;
}

std::vector<int> NewtonSchulzRuns(int steps, bool iterates_gram) {
  std::vector<int> runs;
  while (steps > 0) {
    // The first steps raise small singular values most, and errors with them.
    const int most = !iterates_gram ? 1 : runs.empty() ? 2 : 3;
    runs.push_back(std::min(steps, most));
    steps -= runs.back();
  }
  return runs;
}

MuonWorkspace::MuonWorkspace(const MuonBatch& batch, at::ScalarType dtype,
                             const at::Tensor& buffer) {
  const Parts parts(batch, dtype);
  int64_t begin = 0;
  const auto take = [&](int64_t bytes, at::IntArrayRef shape,
                        at::ScalarType type) {
    const int64_t size = static_cast<int64_t>(c10::elementSize(type));
    int64_t numel = 1;
    for (const int64_t extent : shape) numel *= extent;
    const at::Tensor part =
        buffer.narrow(0, begin, numel * size).view(type).view(shape);
    begin += bytes;
    return part;
  };
  const int64_t count = batch.count(), gram_size = batch.gram();
  for (at::Tensor* matrices : {&x, &next}) {
    *matrices = take(parts.matrices, {count, batch.rows, batch.cols}, dtype);
  }
  for (int64_t i = 0; i < parts.grams; ++i) {
    grams[i] = take(parts.gram, {count, gram_size, gram_size}, dtype);
  }
  norms = take(parts.norms, {count, 1, 1}, at::kFloat);
  if (!batch.row_moments()) return;
  for (at::Tensor* rows : {&row_scales, &row_squares}) {
    *rows = take(parts.rows, {count, batch.rows, 1}, at::kFloat);
  }
}

int64_t MuonWorkspaceBytes(absl::Span<const MuonSlice> slices,
                           at::ScalarType dtype) {
  int64_t bytes = 0;
  for (const MuonSlice& slice : slices) {
    for (const MuonBatch& batch : slice.batches) {
      bytes = std::max(bytes, Parts(batch, dtype).total());
    }
  }
  return bytes;
}

}  // namespace tessera
