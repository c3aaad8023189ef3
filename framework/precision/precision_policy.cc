#include "framework/precision/precision_policy.h"

#include <ATen/Context.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

using Dtypes = std::array<at::ScalarType, kNumOpClasses>;

// FP32 for everything; modes lower some classes.
Dtypes AllFloat() {
  Dtypes dtypes;
  dtypes.fill(at::kFloat);
  return dtypes;
}

void Set(Dtypes* dtypes, at::ScalarType dtype,
         std::initializer_list<OpClass> classes) {
  for (const OpClass op : classes) (*dtypes)[static_cast<int>(op)] = dtype;
}

// The classes that torch.autocast runs in its lower dtype. The residual stream
// stays in FP32, because autocast's sum of an FP32 and a BF16 tensor is FP32.
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

Dtypes DtypesOf(PrecisionMode mode) {
  switch (mode) {
    case PrecisionMode::kBf16:
      return Autocast(at::kBFloat16);
    case PrecisionMode::kFp16:
      return Autocast(at::kHalf);
    case PrecisionMode::kBf16Pure:
      return Pure(at::kBFloat16);
    case PrecisionMode::kFp32:
    case PrecisionMode::kTf32:
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
constexpr PrecisionMode kModes[] = {PrecisionMode::kFp32, PrecisionMode::kTf32,
                                    PrecisionMode::kBf16, PrecisionMode::kFp16,
                                    PrecisionMode::kBf16Pure};

std::string Cell(PrecisionMode mode, OpClass op) {
  const at::ScalarType dtype = DtypesOf(mode)[static_cast<int>(op)];
  const bool multiplies = op == OpClass::kMatmul || op == OpClass::kAttention;
  if (mode == PrecisionMode::kTf32 && multiplies) return "FP32 via TF32";
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

absl::string_view PrecisionModeName(PrecisionMode mode) {
  switch (mode) {
    case PrecisionMode::kFp32:
      return "FP32";
    case PrecisionMode::kTf32:
      return "TF32";
    case PrecisionMode::kBf16:
      return "BF16";
    case PrecisionMode::kFp16:
      return "FP16";
    case PrecisionMode::kBf16Pure:
      return "BF16_PURE";
  }
  return "unknown";
}

PrecisionPolicy::PrecisionPolicy(PrecisionMode mode, bool fp32_gradients)
    : mode_(mode), dtypes_(DtypesOf(mode)) {
  if (fp32_gradients) Set(&dtypes_, at::kFloat, {OpClass::kGradient});
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

void PrecisionPolicy::ApplyToLibTorch() const {
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(allows_tf32());
  context.setAllowTF32CuDNN(allows_tf32());
  // Keeps sums of products in FP32 even if cuBLAS splits the inner dimension.
  context.setAllowFP16ReductionCuBLAS(false);
  context.setAllowBF16ReductionCuBLAS(false);
}

std::string PrecisionTableMarkdown() {
  std::vector<std::string> header = {"op class"}, rule = {"---"};
  for (const PrecisionMode mode : kModes) {
    header.emplace_back(PrecisionModeName(mode));
    rule.push_back("---");
  }
  std::string table = absl::StrCat(Row(header), Row(rule));
  for (int i = 0; i < kNumOpClasses; ++i) {
    const auto op = static_cast<OpClass>(i);
    std::vector<std::string> cells = {std::string(OpClassName(op))};
    for (const PrecisionMode mode : kModes) {
      cells.push_back(Cell(mode, op));
    }
    absl::StrAppend(&table, Row(cells));
  }
  return table;
}

}  // namespace tessera
