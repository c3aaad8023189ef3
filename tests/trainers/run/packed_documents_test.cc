// Documents that share a sequence train as in sequences of their own.

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention_backends/backend_table.h"
#include "framework/base/ignored_target.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"
#include "trainers/plan/run_plan.h"

namespace tessera {
namespace {

constexpr int64_t kContext = 150;
// One of them beyond a tile of keys, one of a single token.
constexpr int64_t kLengths[] = {12, 1, 131, 6};
constexpr int64_t kSteps = 20;

std::vector<std::string> Sets(const std::string& backend,
                              const std::string& device, bool packed) {
  return {"model.context_length=150",
          "model.d_model=64",
          "data.synthetic.document_tokens=20",
          "attention.backend=" + backend,
          "training.device=" + device,
          absl::StrCat("data.documents=", packed ? "SEPARATE" : "JOINED"),
          absl::StrCat("training.batch_size=", packed ? 1 : 4)};
}

// A document's tokens and targets, of which the last counts for nothing.
struct Document {
  at::Tensor ids, targets;
};

std::vector<Document> Documents(int64_t step) {
  at::manual_seed(step);
  std::vector<Document> documents;
  for (const int64_t length : kLengths) {
    const at::Tensor ids = at::randint(61, {length}, at::kLong);
    at::Tensor targets = at::full({length}, kIgnoredTarget, at::kLong);
    targets.narrow(0, 0, length - 1).copy_(ids.narrow(0, 1, length - 1));
    documents.push_back({ids, targets});
  }
  return documents;
}

// The documents in one sequence.
Batch Packed(int64_t step) {
  std::vector<at::Tensor> ids, targets, positions;
  for (const Document& document : Documents(step)) {
    ids.push_back(document.ids);
    targets.push_back(document.targets);
    positions.push_back(at::arange(document.ids.numel(), at::kLong));
  }
  const auto row = [](const std::vector<at::Tensor>& parts) {
    return at::cat(parts).view({1, 1, kContext});
  };
  Batch batch = {.ids_mbs = row(ids), .targets_mbs = row(targets)};
  batch.positions_mbs = row(positions);
  batch.valid_targets = kContext - std::size(kLengths);
  return batch;
}

// Each in a sequence of its own, which is filled up.
Batch Apart(int64_t step) {
  const std::vector<Document> documents = Documents(step);
  const auto rows = static_cast<int64_t>(documents.size());
  Batch batch;
  batch.ids_mbs = at::zeros({1, rows, kContext}, at::kLong);
  batch.targets_mbs = at::full({1, rows, kContext}, kIgnoredTarget, at::kLong);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t length = documents[i].ids.numel();
    batch.ids_mbs[0][i].narrow(0, 0, length).copy_(documents[i].ids);
    batch.targets_mbs[0][i].narrow(0, 0, length).copy_(documents[i].targets);
  }
  batch.valid_targets = kContext - rows;
  return batch;
}

std::vector<double> Losses(const std::vector<std::string>& sets,
                           Batch (*batch_of)(int64_t step)) {
  const auto session = Toy("configs/tiny_cpu.pbtxt", sets);
  std::vector<double> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    const absl::Status status = session->step().Run(batch_of(step), 2e-3);
    EXPECT_TRUE(status.ok()) << status;
    losses.push_back(session->step().metrics().loss.item<double>());
  }
  return losses;
}

void ExpectPackingChangesNothing(const std::string& device) {
  int backends = 0;
  for (const AttentionBackend* backend : AttentionBackends()) {
    const std::string name(backend->name());
    SCOPED_TRACE(name);
    const auto packed = Sets(name, device, /*packed=*/true);
    const absl::Status status =
        PlanRun(ToyConfig("configs/tiny_cpu.pbtxt", packed), {}).status();
    if (!status.ok()) continue;  // support_table_test lists who refuses
    ++backends;
    const std::vector<double> together = Losses(packed, Packed);
    const std::vector<double> apart =
        Losses(Sets(name, device, /*packed=*/false), Apart);
    for (int64_t step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(together[step], apart[step], 1e-5 * apart[step])
          << "step " << step;
    }
    EXPECT_NE(together.front(), together.back());
  }
  EXPECT_GE(backends, device == "CPU" ? 2 : 3);
}

TEST(PackedDocuments, TrainAsInSequencesOfTheirOwn) {
  ExpectPackingChangesNothing("CPU");
}

// Under both a window and documents fewer pairs are visible than under either.
TEST(PackedDocuments, FlopsCountWhatWindowsAndDocumentsLeaveVisible) {
  std::vector<std::string> sets = Sets("AUTO", "CPU", /*packed=*/true);
  sets.push_back("model.attention_window=[{tokens: 4}, {}]");
  const auto session = Toy("configs/tiny_cpu.pbtxt", sets);
  const double one_document =
      PlanRun(ToyConfig("configs/tiny_cpu.pbtxt", sets), {})->flops_per_token;
  const DataSource& data = *session->data().train;
  const double windowed = data.CausalPairsPerRow(4);
  const double whole = data.CausalPairsPerRow();
  EXPECT_LT(windowed, 0.99 * whole);
  constexpr double kWindowed = 4 * kContext - 6.0;
  EXPECT_LT(windowed, 0.99 * kWindowed);
  // Two products of width 64 forward and four backward.
  EXPECT_DOUBLE_EQ(session->plan().flops_per_token,
                   one_document - 6 * 2 * 64 *
                                      (kWindowed - windowed +
                                       0.5 * kContext * kContext - whole) /
                                      kContext);
}

TEST(GpuTrainingOnPackedDocuments, EqualsSequencesOfTheirOwn) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  ExpectPackingChangesNothing("CUDA");
}

}  // namespace
}  // namespace tessera
