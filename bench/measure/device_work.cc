#include "bench/measure/device_work.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "bench/measure/timing.h"
#include "framework/base/statistics.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

absl::StatusOr<double> MedianMs(const Work& work, const DeviceInfo& device) {
  ASSIGN_OR_RETURN(
      const Times times,
      TimeCalls(work.run, device.device, {.warmup = 5, .iterations = 20}));
  return *Median(times.ms);
}

class OpCall {
 public:
  OpCall(const OpNode& node, const Program& program,
         const OpCallOptions& options)
      : op_(*node.op), options_(options) {
    for (int i = 0; i < op_.num_operands(); ++i) {
      operands_.push_back(Operand(program, node.operands[i]));
      if (program.info(node.operands[i]).needs_grad &&
          !op_.PassesGradient(i).has_value()) {
        wanted_.Add(i);
      }
    }
    for (int i = 0; i < op_.num_results(); ++i) {
      results_.push_back(Result(i));
      d_results_.push_back(c10::isFloatingType(op_.result(i).dtype)
                               ? Random(op_.result(i))
                               : at::Tensor());
    }
    for (int i = 0; i < op_.num_operands(); ++i) {
      d_operands_.push_back({Gradient(i, program.info(node.operands[i]))});
    }
  }

  Cost BackwardCost() const { return op_.BackwardCost(wanted_); }

  absl::Status Forward() {
    return Run([this] {
      op_.Forward({.operands = operands_, .results = absl::MakeSpan(results_)});
    });
  }
  absl::Status Backward() {
    return Run([this] {
      const BackwardArgs args = {.operands = operands_,
                                 .results = results_,
                                 .d_results = d_results_,
                                 .d_operands = d_operands_};
      op_.joins_backward() ? op_.ForwardBackward(args) : op_.Backward(args);
    });
  }

 private:
  at::Tensor Random(const TensorType& type) const {
    const at::TensorOptions device(options_.device);
    return c10::isIntegralType(type.dtype, /*includeBool=*/false)
               ? at::randint(options_.vocab, type.shape,
                             device.dtype(type.dtype))
               : at::randn(type.shape, device).to(type.dtype);
  }
  at::Tensor Operand(const Program& program, Value value) const {
    for (const ProgramConstant& constant : program.constants()) {
      if (constant.value == value) return constant.make(options_.device);
    }
    return Random(program.info(value).type);
  }
  at::Tensor Result(int i) const {
    if (op_.AllocatesResults()) return at::Tensor();
    const std::optional<int> over = op_.ResultMayOverwrite(i);
    const bool in_place = over.has_value() &&
                          op_.operand(*over) == op_.result(i) &&
                          !op_.ReadsInBackward(wanted_).operands.Has(*over);
    return in_place ? operands_[*over] : Random(op_.result(i));
  }
  at::Tensor Gradient(int i, const ValueInfo& operand) const {
    if (!wanted_.Has(i)) return at::Tensor();
    for (const Overwritable& over : op_.GradientMayOverwrite(i)) {
      if (over.what == Overwritable::What::kResultGradient &&
          op_.result(over.position) == operand.type) {
        return d_results_[over.position];
      }
    }
    return Random({operand.type.shape, operand.parameter >= 0
                                           ? options_.gradient
                                           : operand.type.dtype});
  }
  static absl::Status Run(const std::function<void()>& call) {
    return StatusFromTorch([&] {
      const at::NoGradGuard no_grad;
      const at::AutoDispatchBelowADInplaceOrView below;
      call();
    });
  }

  const Op& op_;
  const OpCallOptions options_;
  Positions wanted_;
  std::vector<at::Tensor> operands_, results_, d_results_;
  std::vector<GradTarget> d_operands_;
};

}  // namespace

absl::StatusOr<Work> SquareProduct(const DeviceInfo& device,
                                   at::ScalarType dtype) {
  const int64_t n = device.is_cuda() ? 8192 : 512;
  const double flops = 2.0 * static_cast<double>(n * n * n);
  Work work = {.name = absl::StrCat("GEMM ", n, "^3"),
               .cost = {.flops = flops,
                        .bytes = 3 * TensorType{{n, n}, dtype}.bytes(),
                        .product_flops = flops}};
  RETURN_IF_ERROR(StatusFromTorch([&] {
    const at::TensorOptions options(device.device);
    work.run = [a = at::randn({n, n}, options).to(dtype),
                b = at::randn({n, n}, options).to(dtype),
                c = at::empty({n, n}, options.dtype(dtype))]() mutable {
      return StatusFromTorch([&] { at::mm_out(c, a, b); });
    };
  }));
  return work;
}

absl::StatusOr<Work> LargeCopy(const DeviceInfo& device) {
  const int64_t bytes = int64_t{1} << (device.is_cuda() ? 30 : 24);
  Work work = {.name = absl::StrCat("copy of ", bytes >> 20, " MiB"),
               .cost = {.bytes = 2 * bytes}};
  RETURN_IF_ERROR(StatusFromTorch([&] {
    const at::Tensor from =
        at::zeros({bytes}, at::TensorOptions(device.device).dtype(at::kByte));
    work.run = [from, to = at::empty_like(from)] {
      return StatusFromTorch([&] { to.copy_(from); });
    };
  }));
  return work;
}

absl::StatusOr<double> MeasureGemmTflops(const DeviceInfo& device) {
  ASSIGN_OR_RETURN(const Work product, SquareProduct(device, at::kBFloat16));
  ASSIGN_OR_RETURN(const double ms, MedianMs(product, device));
  return product.cost.flops / ms * 1e-9;
}

absl::StatusOr<double> MeasureCopyGbPerS(const DeviceInfo& device) {
  ASSIGN_OR_RETURN(const Work copy, LargeCopy(device));
  ASSIGN_OR_RETURN(const double ms, MedianMs(copy, device));
  return static_cast<double>(copy.cost.bytes) / ms * 1e-6;
}

absl::StatusOr<std::vector<Work>> PassesOf(const OpNode& node,
                                           const Program& program,
                                           const OpCallOptions& options) {
  std::shared_ptr<OpCall> call;
  RETURN_IF_ERROR(StatusFromTorch(
      [&] { call = std::make_shared<OpCall>(node, program, options); }));
  return std::vector<Work>{{.name = "forward",
                            .cost = node.op->ForwardCost(),
                            .run = [call] { return call->Forward(); }},
                           {.name = "backward",
                            .cost = call->BackwardCost(),
                            .run = [call] { return call->Backward(); }}};
}

}  // namespace tessera
