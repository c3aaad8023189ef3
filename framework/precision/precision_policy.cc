#include "framework/precision/precision_policy.h"

#include <ATen/Context.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

using Dtypes = std::array<at::ScalarType, kNumOpClasses>;

// FP32 except what a mode lowers.
Dtypes AllFloat() {
  Dtypes dtypes;
  dtypes.fill(at::kFloat);
  return dtypes;
}

void Set(Dtypes* dtypes, at::ScalarType dtype,
         std::initializer_list<OpClass> classes) {
  for (const OpClass op : classes) (*dtypes)[static_cast<int>(op)] = dtype;
}

// What torch.autocast runs in its lower dtype. The residual stream stays in
// FP32: autocast's sum of an FP32 and a BF16 tensor is FP32.
Dtypes Autocast(at::ScalarType compute) {
  Dtypes dtypes = AllFloat();
  Set(&dtypes, compute,
      {OpClass::kWeights, OpClass::kMatmul, OpClass::kAttention,
       OpClass::kActivation, OpClass::kLogits, OpClass::kGradient});
  return dtypes;
}

Dtypes Pure(at::ScalarType compute) {
  Dtypes dtypes = Autocast(compute);
  Set(&dtypes, compute,
      {OpClass::kMasterWeights, OpClass::kResidual, OpClass::kOptimizerState});
  return dtypes;
}

Dtypes DtypesOf(PrecisionConfig::Mode mode) {
  switch (mode) {
    case PrecisionConfig::BF16:
      return Autocast(at::kBFloat16);
    case PrecisionConfig::FP16:
      return Autocast(at::kHalf);
    case PrecisionConfig::BF16_PURE:
      return Pure(at::kBFloat16);
    case PrecisionConfig::FP32:
    case PrecisionConfig::TF32:
    case PrecisionConfig::UNSPECIFIED:
      break;
  }
  return AllFloat();
}

absl::string_view DtypeName(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return "BF16";
    case at::kHalf:
      return "FP16";
    default:
      return "FP32";
  }
}

// The modes in the order of the table's columns.
constexpr PrecisionConfig::Mode kModes[] = {
    PrecisionConfig::FP32, PrecisionConfig::TF32, PrecisionConfig::BF16,
    PrecisionConfig::FP16, PrecisionConfig::BF16_PURE};

std::string Cell(PrecisionConfig::Mode mode, OpClass op) {
  const at::ScalarType dtype = DtypesOf(mode)[static_cast<int>(op)];
  const bool multiplies = op == OpClass::kMatmul || op == OpClass::kAttention;
  if (mode == PrecisionConfig::TF32 && multiplies) return "FP32 via TF32";
  if (op == OpClass::kGradient && dtype != at::kFloat) {
    return absl::StrCat(DtypeName(dtype), " or FP32");
  }
  return std::string(DtypeName(dtype));
}

std::string Row(const std::vector<std::string>& cells) {
  return absl::StrCat("| ", absl::StrJoin(cells, " | "), " |\n");
}

}  // namespace

absl::string_view OpClassName(OpClass op) {
  switch (op) {
    case OpClass::kMasterWeights:
      return "master weights";
    case OpClass::kWeights:
      return "weights";
    case OpClass::kMatmul:
      return "matmul";
    case OpClass::kAttention:
      return "attention";
    case OpClass::kSoftmax:
      return "softmax";
    case OpClass::kNormStatistics:
      return "norm statistics";
    case OpClass::kResidual:
      return "residual";
    case OpClass::kActivation:
      return "activation";
    case OpClass::kLogits:
      return "logits";
    case OpClass::kLoss:
      return "loss";
    case OpClass::kGradient:
      return "gradient";
    case OpClass::kReduction:
      return "reduction";
    case OpClass::kOptimizerState:
      return "optimizer state";
  }
  return "unknown";
}

absl::StatusOr<PrecisionPolicy> PrecisionPolicy::Create(
    const PrecisionConfig& config, int micro_batches, bool cuda) {
  const PrecisionConfig::Mode mode = config.mode();
  if (mode == PrecisionConfig::UNSPECIFIED) {
    return absl::InvalidArgumentError(
        "precision.mode is UNSPECIFIED; choose FP32, TF32, BF16, FP16 or "
        "BF16_PURE");
  }
  if (micro_batches < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a step of ", micro_batches, " micro-batches; it takes at least one"));
  }
  const bool needs_gpu =
      mode == PrecisionConfig::TF32 || mode == PrecisionConfig::FP16;
  if (needs_gpu && !cuda) {
    return absl::InvalidArgumentError(absl::StrCat(
        "precision.mode ", PrecisionConfig::Mode_Name(mode),
        " needs a GPU's tensor cores; on a CPU use FP32, or BF16, which is "
        "slow there but gives BF16's numbers"));
  }
  PrecisionPolicy policy;
  policy.mode_ = mode;
  policy.dtypes_ = DtypesOf(mode);
  if (micro_batches > 1 || config.fp32_gradients()) {
    Set(&policy.dtypes_, at::kFloat, {OpClass::kGradient});
  }
  return policy;
}

PrecisionPolicy PrecisionPolicy::Uniform(at::ScalarType dtype) {
  PrecisionPolicy policy;
  policy.dtypes_.fill(dtype);
  return policy;
}

PrecisionPolicy PrecisionPolicy::With(OpClass op, at::ScalarType dtype) const {
  PrecisionPolicy policy = *this;
  Set(&policy.dtypes_, dtype, {op});
  return policy;
}

absl::string_view PrecisionPolicy::name() const {
  return PrecisionConfig::Mode_Name(mode_);
}

void PrecisionPolicy::ApplyToLibTorch() const {
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(allows_tf32());
  context.setAllowTF32CuDNN(allows_tf32());
  // Sums of products stay in FP32 also where cuBLAS splits the inner dimension.
  context.setAllowFP16ReductionCuBLAS(false);
  context.setAllowBF16ReductionCuBLAS(false);
}

std::string PrecisionTableMarkdown() {
  std::vector<std::string> header = {"op class"}, rule = {"---"};
  for (const PrecisionConfig::Mode mode : kModes) {
    header.push_back(PrecisionConfig::Mode_Name(mode));
    rule.push_back("---");
  }
  std::string table = absl::StrCat(Row(header), Row(rule));
  for (int i = 0; i < kNumOpClasses; ++i) {
    const auto op = static_cast<OpClass>(i);
    std::vector<std::string> cells = {std::string(OpClassName(op))};
    for (const PrecisionConfig::Mode mode : kModes) {
      cells.push_back(Cell(mode, op));
    }
    absl::StrAppend(&table, Row(cells));
  }
  return table;
}

}  // namespace tessera
