#include "framework/ops/qk_norm/qk_norm.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "ATen/ATen.h"
#include "framework/base/check.h"
#include "framework/ops/kernel_choice.h"
#include "framework/ops/qk_norm/qk_norm_kernels.h"
#include "framework/ops/rms_norm/rms_norm_kernels.h"

namespace tessera {
namespace {

constexpr int kX = 0, kQueryGain = 1, kKeyGain = 2;  // operands
constexpr int kY = 0, kR = 1;                        // results
constexpr std::array<int, 2> kGains = {kQueryGain, kKeyGain};

class QkNormOp : public OpWithKernels<QkNormKernels> {
 public:
  QkNormOp(KernelKind kind, int64_t kv_heads, double eps, int multiprocessors)
      : OpWithKernels(kind),
        kv_heads_(kv_heads),
        eps_(eps),
        multiprocessors_(multiprocessors) {}

  absl::string_view kind() const override { return "qk_norm"; }

  void Forward(const ForwardArgs& args) const override {
    kernels().forward(args.operands[kX],
                      Sections(args.operands, args.results[kR]), eps_,
                      args.results[kY]);
  }

  void Backward(const BackwardArgs& args) const override {
    auto sections = Sections(args.operands, args.results[kR]);
    for (const int gain : kGains) {
      sections[gain - kQueryGain].gain_grad = args.d_operands[gain];
    }
    const at::Tensor& x = args.operands[kX];
    const at::Tensor& dx = args.d_operands[kX].grad;
    kernels().backward(args.d_results[kY].contiguous(), x, sections,
                       dx.defined() ? dx : at::empty_like(x));
  }

  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = {kX, kQueryGain, kKeyGain}, .results = {kR}};
  }
  std::optional<int> ResultMayOverwrite(int result) const override {
    if (result == kY) return kX;
    return std::nullopt;
  }
  std::vector<Overwritable> GradientMayOverwrite(int operand) const override {
    if (operand != kX) return {};
    return {{Overwritable::What::kResultGradient, kY}};
  }

  int64_t BackwardWorkspaceBytes(Positions wanted) const override {
    int64_t bytes = wanted.Has(kX) ? 0 : operand(kX).bytes();
    for (const int gain : kGains) {
      if (wanted.Has(gain)) bytes += PartialSumBytes(gain);
    }
    return bytes;
  }

  Cost ForwardCost() const override {
    // x^2, its sum, x r g.
    return {.flops = 4.0 * Normalised(), .bytes = ForwardBytes()};
  }
  Cost BackwardCost(Positions wanted) const override {
    // In place, nothing of V is read or written.
    const TensorType& x = operand(kX);
    const int64_t values = x.bytes() / x.shape[2] * kv_heads_;
    return {.flops = 9.0 * Normalised(),
            .bytes = BackwardBytes(wanted) - values * (wanted.Has(kX) ? 3 : 2)};
  }

 private:
  int64_t Tokens() const { return operand(kX).shape[0] * operand(kX).shape[1]; }
  int64_t Heads(int gain) const {
    const int64_t heads = operand(kX).shape[2];
    return gain == kQueryGain ? heads - 2 * kv_heads_ : kv_heads_;
  }
  int64_t RowsPerToken(int gain) const {
    return Heads(gain) * operand(kX).shape[3] / operand(gain).shape[0];
  }
  double Normalised() const {
    const TensorType& x = operand(kX);
    return static_cast<double>(Tokens() * (x.shape[2] - kv_heads_) *
                               x.shape[3]);
  }

  std::array<QkNormSection, 2> Sections(absl::Span<const at::Tensor> operands,
                                        const at::Tensor& r) const {
    std::array<QkNormSection, 2> sections;
    int64_t offset = 0, first_row = 0;
    for (const int gain : kGains) {
      QkNormSection& section = sections[gain - kQueryGain];
      const int64_t rows = Tokens() * RowsPerToken(gain);
      section = {.offset = offset,
                 .rows_per_token = RowsPerToken(gain),
                 .width = operand(gain).shape[0],
                 .gain = operands[gain],
                 .r = r.narrow(0, first_row, rows)};
      offset += section.elements_per_token();
      first_row += rows;
    }
    return sections;
  }

  // A gain's gradient as partial sums.
  int64_t PartialSumBytes(int gain) const {
    const int64_t rows = Tokens() * RowsPerToken(gain);
    const int64_t sums = kernel_kind() == KernelKind::kCpu
                             ? QkNormCpuSums(rows)
                             : CudaPartialSums(rows, multiprocessors_);
    return sums * operand(gain).shape[0] * 4;
  }

  const int64_t kv_heads_;
  const double eps_;
  const int multiprocessors_;
};

KernelKind KindFor(const ProgramBuilder& b, const TensorType& x,
                   at::ScalarType gain, int64_t longest_row) {
  const KernelKind kind = KernelKindFor(b.target().device, x.dtype);
  const bool fits = kind == KernelKind::kCpu
                        ? gain == x.dtype
                        : longest_row <= RmsNormKernels::kLongestCudaRow;
  return fits && b.dtype(OpClass::kNormStatistics) == at::kFloat
             ? kind
             : KernelKind::kReference;
}

// Number of rows per token that a gain of `width` normalises.
int64_t RowsOf(const TensorType& x, int64_t heads, int64_t width) {
  const int64_t elements = heads * x.shape[3];
  TESSERA_CHECK(heads > 0 && width % x.shape[3] == 0 && elements % width == 0,
                "a gain of ", width, " for ", heads, " heads of ", x.shape[3]);
  return elements / width;
}

}  // namespace

Value QkNorm(ProgramBuilder& b, Value qkv, const QkGains& gains,
             int64_t kv_heads, double eps) {
  const TensorType x = b.type(qkv);
  TESSERA_CHECK(x.shape.size() == 4, "qkv must be [B, S, heads, D]");
  const at::ScalarType master = b.dtype(OpClass::kMasterWeights);
  const Value query_gain = b.Read(gains.queries, master);
  const Value key_gain = b.Read(gains.keys, master);
  const int64_t query_width = b.type(query_gain).shape[0];
  const int64_t key_width = b.type(key_gain).shape[0];
  const int64_t rows = RowsOf(x, x.shape[2] - 2 * kv_heads, query_width) +
                       RowsOf(x, kv_heads, key_width);
  const KernelKind kind =
      KindFor(b, x, master, std::max(query_width, key_width));
  return b.Add(
      std::make_unique<QkNormOp>(kind, kv_heads, eps,
                                 b.target().device.multiprocessors),
      "qk_norm", {qkv, query_gain, key_gain},
      {x,
       {{x.shape[0] * x.shape[1] * rows}, b.dtype(OpClass::kNormStatistics)}},
      {"", "r"})[0];
}

}  // namespace tessera
