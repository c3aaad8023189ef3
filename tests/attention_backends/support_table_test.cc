#include <cstdint>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "attention_backends/attention_backend.h"
#include "attention_backends/backend_table.h"
#include "attention_backends/head_dim.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/picky_backend.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing::PickyBackend;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf,
                                      at::kDouble};
constexpr int kCapabilities[] = {0, 80, 90};  // 0: a CPU

AttentionProblem Typical(int capability, at::ScalarType dtype) {
  AttentionProblem problem;
  problem.b = 4;
  problem.s = problem.t = 1024;
  problem.h = problem.g = 16;
  problem.d = 64;
  problem.dtype = dtype;
  problem.cuda = capability > 0;
  problem.compute_capability = capability;
  return problem;
}

// "FP32, BF16", or "-".
std::string Dtypes(const AttentionBackend& backend, int capability) {
  std::vector<std::string> names;
  for (const at::ScalarType dtype : kDtypes) {
    if (backend.Supports(Typical(capability, dtype)).ok()) {
      names.emplace_back(c10::toString(dtype));
    }
  }
  return names.empty() ? "-" : absl::StrJoin(names, ", ");
}

// Finds a problem that the backend supports; Row() changes one property at a
// time.
bool FindBase(const AttentionBackend& backend, AttentionProblem* base) {
  for (auto capability = std::rbegin(kCapabilities);
       capability != std::rend(kCapabilities); ++capability) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kHalf}) {
      *base = Typical(*capability, dtype);
      if (backend.Supports(*base).ok()) return true;
    }
  }
  return false;
}

// The supported head dims as ranges: "8..256", "64, 128".
std::string HeadDims(const AttentionBackend& backend, AttentionProblem base) {
  std::vector<std::string> runs;
  int64_t first = 0;
  for (int64_t d = kHeadDimStep; d <= kMaxHeadDim + kHeadDimStep;
       d += kHeadDimStep) {
    base.d = d;
    const bool supported = d <= kMaxHeadDim && backend.Supports(base).ok();
    if (supported && first == 0) first = d;
    if (!supported && first != 0) {
      const int64_t last = d - kHeadDimStep;
      runs.push_back(first == last ? absl::StrCat(first)
                                   : absl::StrCat(first, "..", last));
      first = 0;
    }
  }
  return absl::StrJoin(runs, ", ");
}

std::string Mebibytes(int64_t bytes) {
  return absl::StrCat((bytes + (1 << 19)) >> 20);
}

std::string YesNo(const AttentionBackend& backend,
                  const AttentionProblem& problem) {
  return backend.Supports(problem).ok() ? "yes" : "no";
}

std::string Row(const AttentionBackend& backend) {
  std::vector<std::string> cells = {std::string(backend.name())};
  for (const int capability : kCapabilities) {
    cells.push_back(Dtypes(backend, capability));
  }
  AttentionProblem base;
  if (!FindBase(backend, &base)) {
    cells.insert(cells.end(), 10, "-");
    return absl::StrCat("| ", absl::StrJoin(cells, " | "), " |\n");
  }
  AttentionProblem full = base, window = base, documents = base, sinks = base,
                   capped = base, grouped = base, cross = base, repeated = base;
  full.mask = MaskSpec::Full();
  window.mask = MaskSpec::Window(512);
  documents.documents = true;
  sinks.sinks = true;
  capped.soft_cap = 50;
  grouped.g = 4;
  cross.s = 1;
  repeated.deterministic = true;
  const AttentionMemory memory = backend.Plan(base);
  cells.insert(
      cells.end(),
      {HeadDims(backend, base), YesNo(backend, full), YesNo(backend, window),
       YesNo(backend, documents), YesNo(backend, sinks), YesNo(backend, capped),
       YesNo(backend, grouped), YesNo(backend, cross), YesNo(backend, repeated),
       absl::StrCat(Mebibytes(memory.saved_bytes), " + ",
                    Mebibytes(memory.forward_bytes), " + ",
                    Mebibytes(memory.backward_bytes))});
  return absl::StrCat("| ", absl::StrJoin(cells, " | "), " |\n");
}

// The Markdown table of docs/attention_backends.md: what each backend supports.
// Built by asking Supports() and Plan() about a causal BF16 problem with one
// property changed at a time, so it cannot disagree with what runs.
std::string SupportTable(absl::Span<const AttentionBackend* const> backends) {
  std::string table =
      "| backend | CPU | sm_80 | sm_90 | head dims | full mask | window | "
      "documents | sinks | soft cap | H > G | S != T | deterministic | MiB |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const AttentionBackend* backend : backends) {
    absl::StrAppend(&table, Row(*backend));
  }
  return table;
}

TEST(SupportTable, IsTheOneInTheDocs) {
  std::ifstream file("docs/attention_backends.md");
  ASSERT_TRUE(file.good());
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_THAT(page.str(), HasSubstr(SupportTable(AttentionBackends())))
      << "Put this table into docs/attention_backends.md.";
}

TEST(SupportTable, ShowsWhatABackendRefuses) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky};
  EXPECT_THAT(SupportTable(table),
              HasSubstr("| 64, 128, 192, 256 | yes | yes | yes | yes | yes | "
                        "yes | yes | no | 1 + 0 + 2 |\n"));
}

}  // namespace
}  // namespace tessera
