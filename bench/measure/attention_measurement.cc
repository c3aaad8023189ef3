#include "bench/measure/attention_measurement.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/ops/linear/product_choices.h"

namespace tessera {
namespace {

// A [B, H, S, D] view of Q, K or V in a fused [B, S, 3 H, D].
at::Tensor HeadSlice(const at::Tensor& fused, int64_t index) {
  const int64_t heads = fused.size(2) / 3;
  return fused.transpose(1, 2).narrow(1, index * heads, heads);
}

// The arguments that a model's layer passes to its backend, and the gradients.
struct Operands {
  AttentionArgs args;
  at::Tensor d_o_bhsd;
  AttentionGrads grads;
  int64_t bytes = 0;
};

// AttentionArgs::documents.
at::Tensor PackedDocuments(const AttentionCase& shape, c10::Device device) {
  const at::Tensor bounds =
      at::empty({2, shape.batch, shape.length}, at::dtype(at::kInt));
  for (int64_t sequence = 0; sequence < shape.batch; ++sequence) {
    int64_t begin = 0;
    for (const int64_t tokens :
         DocumentLengths(shape.mean_document, shape.length, sequence)) {
      const at::Tensor document =
          bounds.select(1, sequence).narrow(1, begin, tokens);
      document[0].fill_(begin);
      document[1].fill_(begin + tokens);
      begin += tokens;
    }
  }
  return bounds.to(device);
}

Operands MakeOperands(const AttentionCase& shape, c10::Device device) {
  const at::TensorOptions options =
      at::TensorOptions().dtype(shape.dtype).device(device);
  const int64_t b = shape.batch, s = shape.length, h = shape.heads,
                d = shape.head_dim;
  const at::Tensor qkv = at::randn({b, s, 3 * h, d}, options);
  const at::Tensor d_qkv = at::empty_like(qkv);
  const at::Tensor d_o = at::randn({b, s, h, d}, options);
  Operands operands;
  operands.args.q_bhsd = HeadSlice(qkv, 0);
  operands.args.k_bgtd = HeadSlice(qkv, 1);
  operands.args.v_bgtd = HeadSlice(qkv, 2);
  operands.args.scale = 1 / std::sqrt(static_cast<double>(d));
  operands.args.mask = shape.mask;
  operands.args.tf32 = shape.tf32;
  operands.d_o_bhsd = d_o.transpose(1, 2);
  operands.grads = {HeadSlice(d_qkv, 0), HeadSlice(d_qkv, 1),
                    HeadSlice(d_qkv, 2)};
  operands.bytes = qkv.nbytes() + d_qkv.nbytes() + d_o.nbytes();
  if (shape.mean_document > 0) {
    operands.args.documents = PackedDocuments(shape, device);
    operands.bytes += operands.args.documents.nbytes();
  }
  return operands;
}

// One backend that is measured on operands that outlive it.
class Contender {
 public:
  struct Options {
    bool deterministic = false;
    // Whether the gradients stay where a LibTorch kernel allocates them.
    bool keeps_gradients = false;
  };

  Contender(const AttentionBackend& backend, const AttentionCase& shape,
            Operands& operands, const Options& options)
      : backend_(backend),
        operands_(operands),
        options_(options),
        args_(operands.args) {
    args_.deterministic = options.deterministic;
    args_.products = &products_;
    const Operands planned = MakeOperands(shape, c10::kMeta);
    ChooseProducts(
        backend.Products(planned.args, planned.grads),
        {.device = args_.q_bhsd.device(), .tune = !options.deterministic},
        &products_);
  }

  absl::Status Run(AttentionPass pass) {
    return StatusFromTorchOr([&] {
      if (pass == AttentionPass::kBackward) {
        AttentionGrads own;
        return backend_.Backward(
            args_, out_, operands_.d_o_bhsd,
            options_.keeps_gradients ? &own : &operands_.grads);
      }
      Release();  // as in a step: never two results at once
      return backend_.Forward(args_, &out_);
    });
  }

  void Release() { out_ = AttentionOut(); }

 private:
  const AttentionBackend& backend_;
  Operands& operands_;
  const Options options_;
  ProductChoices products_;
  AttentionArgs args_;
  AttentionOut out_;
};

// `reference` may be null.
absl::StatusOr<PassMeasurement> MeasurePass(AttentionPass pass, Contender& ours,
                                            Contender* reference,
                                            c10::Device device,
                                            const MeasureOptions& options) {
  const auto time_ms = [&](Contender& side) {
    return TimeMs([&] { return side.Run(pass); }, device);
  };
  const Repetition& repetition = options.repetition;
  std::vector<double> ms, ratios;
  const auto once = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const double our_ms, time_ms(ours));
    ms.push_back(our_ms);
    if (reference == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const double reference_ms, time_ms(*reference));
    ratios.push_back(reference_ms / our_ms);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(Repeat(repetition.warmup, repetition, once));
  ms.clear();
  ratios.clear();
  RETURN_IF_ERROR(Repeat(repetition.iterations, repetition, once));
  PassMeasurement measured{.ms = Summarize(std::move(ms))};
  if (reference != nullptr) {
    measured.reference_ratio = Summarize(std::move(ratios));
  }
  return measured;
}

// Measures the memory of the second forward and backward. The first ones
// allocate what libraries keep.
absl::Status MeasureMemory(Contender& contender, int64_t operand_bytes,
                           c10::Device device, AttentionMeasurement* measured) {
  RETURN_IF_ERROR(contender.Run(AttentionPass::kForward));
  RETURN_IF_ERROR(contender.Run(AttentionPass::kBackward));
  contender.Release();
  // The most that a pass holds, and what it leaves.
  const auto run = [&](AttentionPass pass) -> absl::StatusOr<MemoryUse> {
    ResetPeakMemory(device);
    RETURN_IF_ERROR(contender.Run(pass));
    return CurrentMemory(device);
  };
  const int64_t before = CurrentMemory(device).allocated;
  ASSIGN_OR_RETURN(const MemoryUse forward, run(AttentionPass::kForward));
  ASSIGN_OR_RETURN(const MemoryUse backward, run(AttentionPass::kBackward));
  if (!device.is_cuda()) return absl::OkStatus();
  measured->library_bytes = before - operand_bytes;
  measured->saved_bytes = forward.allocated - before;
  measured->forward_workspace_bytes =
      forward.peak_allocated - forward.allocated;
  measured->backward_workspace_bytes =
      backward.peak_allocated - backward.allocated;
  measured->peak_bytes =
      std::max(forward.peak_allocated, backward.peak_allocated) - before +
      operand_bytes;
  return absl::OkStatus();
}

// May throw LibTorch's exceptions while the operands are allocated.
absl::StatusOr<AttentionMeasurement> MeasureOn(const AttentionBackend& backend,
                                               const AttentionCase& shape,
                                               c10::Device device,
                                               const MeasureOptions& options) {
  const at::NoGradGuard no_grad;
  Operands operands = MakeOperands(shape, device);
  AttentionMeasurement measured;
  Contender ours(backend, shape, operands,
                 {.deterministic = shape.deterministic});
  RETURN_IF_ERROR(MeasureMemory(ours, operands.bytes, device, &measured));
  std::optional<Contender> reference;
  if (options.reference != nullptr) {
    reference.emplace(
        *options.reference, shape, operands,
        Contender::Options{.keeps_gradients = options.reference != &backend});
    RETURN_IF_ERROR(reference->Run(AttentionPass::kForward));
  }
  // Both contenders hold the result of a forward pass, which the backward pass
  // reads.
  auto measure = [&](AttentionPass pass) {
    return MeasurePass(pass, ours, reference ? &*reference : nullptr, device,
                       options);
  };
  if (options.forward) {
    ASSIGN_OR_RETURN(measured.forward, measure(AttentionPass::kForward));
  }
  if (options.backward) {
    ASSIGN_OR_RETURN(measured.backward, measure(AttentionPass::kBackward));
  }
  return measured;
}

}  // namespace

absl::StatusOr<AttentionMeasurement> MeasureAttention(
    const AttentionBackend& backend, const AttentionCase& shape,
    const DeviceInfo& device, const MeasureOptions& options) {
  const AttentionProblem problem = ProblemOf(shape, device);
  RETURN_IF_ERROR(CheckMeasurable(backend, problem));
  AttentionProblem default_problem = problem;
  default_problem.deterministic = false;
  MeasureOptions supported = options;
  if ((options.reference == &backend && !shape.deterministic) ||
      (options.reference != nullptr &&
       !options.reference->Supports(default_problem).ok())) {
    supported.reference = nullptr;
  }
  AttentionMeasurement measured;
  // LibTorch's switch for its own products and for cuBLASLt's, as in training.
  at::globalContext().setAllowTF32CuBLAS(shape.tf32);
  absl::Status status = StatusFromTorchOr([&]() -> absl::Status {
    ASSIGN_OR_RETURN(measured,
                     MeasureOn(backend, shape, device.device, supported));
    return absl::OkStatus();
  });
  status.Update(StatusFromTorch([&] { EmptyCache(device.device); }));
  if (!status.ok()) return status;
  return measured;
}

}  // namespace tessera
