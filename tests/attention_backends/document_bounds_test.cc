#include "attention_backends/document_bounds.h"

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/attention_oracle.h"

namespace tessera {
namespace {

// The positions in PackedDocuments().
at::Tensor PositionsIn(const at::Tensor& documents) {
  return at::arange(documents.size(2), at::kLong) - documents[0];
}

void ExpectFindsDocuments(at::Device device) {
  for (const int64_t s : {1, 31, 32, 33, 255, 256, 257, 1000, 4099}) {
    const at::Tensor first = testing::PackedDocuments(3, s);
    // Other documents in the second micro-batch: the rows in another order.
    const at::Tensor second = first.flip(1);
    const at::Tensor expected = at::stack({first, second});
    const at::Tensor positions =
        at::stack({PositionsIn(first), PositionsIn(second)}).to(device);
    const at::Tensor bounds =
        at::full({2, 2, 3, s}, -7, at::dtype(at::kInt).device(device));
    DocumentBounds(positions, bounds);
    EXPECT_TRUE(at::equal(bounds.cpu(), expected)) << "S = " << s;
  }
}

TEST(DocumentBounds, FindsDocuments) { ExpectFindsDocuments(at::kCPU); }

TEST(DocumentBounds, OneDocumentIsTheSequence) {
  const at::Tensor bounds = at::empty({1, 2, 1, 5}, at::kInt);
  DocumentBounds(at::arange(5, at::kLong).view({1, 1, 5}), bounds);
  EXPECT_TRUE((bounds[0][0] == 0).all().item<bool>());
  EXPECT_TRUE((bounds[0][1] == 5).all().item<bool>());
}

TEST(GpuDocumentBounds, FindsDocuments) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  ExpectFindsDocuments(at::kCUDA);
}

TEST(GpuDocumentBounds, OfManySequences) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  constexpr int64_t kSequences = 70'000;
  const at::Tensor bounds =
      at::empty({1, 2, kSequences, 3}, at::dtype(at::kInt).device(at::kCUDA));
  DocumentBounds(at::tensor({0, 0, 1}, at::dtype(at::kLong).device(at::kCUDA))
                     .expand({1, kSequences, 3})
                     .contiguous(),
                 bounds);
  const at::Tensor expected =
      at::tensor({0, 1, 1, 1, 3, 3}, at::kInt).view({1, 2, 1, 3});
  EXPECT_TRUE((bounds.cpu() == expected).all().item<bool>());
}

// More blocks than a grid's second dimension has.
TEST(GpuDocumentBounds, OfALongSequence) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  constexpr int64_t kTokens = 65'536 * 256 + 1, kLength = 1000;
  const at::Tensor token = at::arange(kTokens, at::device(at::kCUDA));
  const at::Tensor position = token.remainder(kLength);
  const at::Tensor bounds =
      at::full({1, 2, 1, kTokens}, -7, at::dtype(at::kInt).device(at::kCUDA));
  DocumentBounds(position.view({1, 1, kTokens}), bounds);
  const at::Tensor begin = token - position;
  EXPECT_TRUE((bounds[0][0][0] == begin).all().item<bool>());
  EXPECT_TRUE((bounds[0][1][0] == (begin + kLength).clamp_max(kTokens))
                  .all()
                  .item<bool>());
}

}  // namespace
}  // namespace tessera
