#include "framework/optim/newton_schulz.h"

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/optim/muon_math.h"
#include "framework/params/parameter_store.h"
#include "gtest/gtest.h"
#include "tests/testing/error_budget.h"

namespace tessera {
namespace {

using testing::ErrorBudget;

constexpr int kSteps = 5;

// The iteration of muon_math.h as written, in x's dtype.
at::Tensor Plain(at::Tensor x, int steps = kSteps) {
  const bool tall = x.size(0) > x.size(1);
  if (tall) x = x.t();
  x = x / x.norm();
  for (int i = 0; i < steps; ++i) {
    const at::Tensor a = at::mm(x, x.t());
    x = kMuonA * x + at::mm(kMuonB * a + kMuonC * at::mm(a, a), x);
  }
  return tall ? x.t() : x;
}

// A matrix with these singular values: "even", all alike; "normal", those of
// normally distributed elements; "power", 1 / i; "steep", down to 1e-4; "few",
// eight large ones and the rest a thousandth.
at::Tensor Matrix(int64_t rows, int64_t cols, const std::string& kind) {
  at::manual_seed(rows + 3 * cols);
  const at::Tensor x = at::randn({rows, cols}, at::kDouble);
  if (kind == "normal") return x;
  const auto [u, s, v] = at::linalg_svd(x, /*full_matrices=*/false);
  const int64_t n = s.numel();
  at::Tensor values = at::ones({n}, at::kDouble);
  if (kind == "power") values = 1 / at::arange(1, n + 1, at::kDouble);
  if (kind == "steep") {
    values = at::pow(10, at::linspace(0, -4, n, at::kDouble));
  }
  if (kind == "few" && n > 8) values.narrow(0, 8, n - 8).fill_(1e-3);
  return at::mm(u * values, v);
}

at::Tensor Orthogonal(const at::Tensor& u, at::ScalarType dtype,
                      at::Device device, int steps = kSteps) {
  ParameterSlice slice;
  const MuonBatch batch = {
      .rows = u.size(0), .cols = u.size(1), .matrices = {&slice, &slice}};
  const at::Tensor buffer =
      at::empty({int64_t{64} << 20}, at::dtype(at::kByte).device(device));
  const MuonWorkspace workspace(batch, dtype, buffer);
  at::Tensor to = workspace.u();
  to.copy_(u);
  const auto x = NewtonSchulz(steps, workspace);
  EXPECT_TRUE(x.ok()) << x.status();
  EXPECT_TRUE(at::allclose((*x)[0], (*x)[1], 1e-2, 1e-2));
  return (*x)[1].cpu();
}

struct Shape {
  int64_t rows, cols;
};

// In 16 bits within twice the error of BF16, in which the paper computes; U is
// the same for all.
void ExpectOrthogonal(const std::vector<Shape>& shapes, at::Device device) {
  for (const Shape& shape : shapes) {
    for (const char* kind : {"normal", "even", "power", "steep", "few"}) {
      const at::Tensor u =
          Matrix(shape.rows, shape.cols, kind).to(at::kBFloat16);
      const at::Tensor oracle = Plain(u.to(at::kDouble));
      const auto name = [&] {
        return std::to_string(shape.rows) + " x " + std::to_string(shape.cols) +
               " " + kind;
      };
      EXPECT_TRUE(ErrorBudget::AgainstBaseline(Plain(u), oracle)
                      .Accepts(Orthogonal(u, at::kHalf, device)))
          << name();
      EXPECT_TRUE(
          ErrorBudget::AgainstBaseline(Plain(u.to(at::kFloat)), oracle)
              .Accepts(Orthogonal(u.to(at::kFloat), at::kFloat, device)))
          << name();
    }
  }
}

TEST(NewtonSchulz, ErrsLessThanThePapersProducts) {
  ExpectOrthogonal({{1, 8}, {7, 13}, {64, 64}, {40, 80}, {128, 512}, {384, 96}},
                   at::kCPU);
}

TEST(GpuNewtonSchulz, ErrsLessThanThePapersProducts) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  ExpectOrthogonal(
      {{7, 13}, {64, 64}, {264, 264}, {768, 2048}, {1048, 264}, {256, 1000}},
      at::Device(at::kCUDA, 0));
}

// Gradients are smaller than FP16's smallest number, and rows may be far
// smaller than others.
TEST(NewtonSchulz, HasTheRangeOfBf16) {
  const at::Tensor u =
      Matrix(32, 128, "normal").to(at::kBFloat16).mul_(std::ldexp(1.0, -24));
  u[3].mul_(1.0 / 1024);
  const at::Tensor oracle = Plain(u.to(at::kDouble));
  EXPECT_TRUE(ErrorBudget::AgainstBaseline(Plain(u), oracle)
                  .Accepts(Orthogonal(u, at::kHalf, at::kCPU)));
}

TEST(NewtonSchulz, MultipliesXAfterRunsOfSteps) {
  using Runs = std::vector<int>;
  EXPECT_EQ(NewtonSchulzRuns(5, false), (Runs{1, 1, 1, 1, 1}));
  EXPECT_EQ(NewtonSchulzRuns(1, true), (Runs{1}));
  EXPECT_EQ(NewtonSchulzRuns(5, true), (Runs{2, 3}));
  EXPECT_EQ(NewtonSchulzRuns(9, true), (Runs{2, 3, 3, 1}));
  const at::Tensor u = Matrix(24, 72, "normal").to(at::kBFloat16);
  for (const int steps : {1, 2, 3, 9}) {
    const at::Tensor oracle = Plain(u.to(at::kDouble), steps);
    EXPECT_TRUE(ErrorBudget::AgainstBaseline(Plain(u, steps), oracle)
                    .Accepts(Orthogonal(u, at::kHalf, at::kCPU, steps)))
        << steps;
  }
}

}  // namespace
}  // namespace tessera
