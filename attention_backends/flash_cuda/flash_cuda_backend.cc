#include "attention_backends/flash_cuda/flash_cuda_backend.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ATen/ATen.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/attention_sinks.h"
#include "attention_backends/flash_cuda/flash_launch.h"
#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/workspace.h"
#include "attention_backends/head_dim.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/device.h"
#include "framework/cuda/float_type_of.h"

namespace tessera {
namespace {

using flash::BackwardParams;
using flash::ForwardParams;

static_assert(flash::LargestOf(flash::portable::HeadDims()) == kMaxHeadDim &&
              flash::LargestOf(flash::fp32::HeadDims()) == kMaxHeadDim);

constexpr int64_t kAlignment = 16;  // bytes that the kernels move at once
constexpr int64_t kMaxLength = int64_t{1} << 30;  // row indices are 32-bit
constexpr int64_t kFewestRows = 16;               // of the smallest tile
// Beyond these, FP32 may not hold scale / cap or scores / cap.
constexpr double kSmallestSoftCap = 1e-20, kLargestSoftCap = 1e20;

// Whether a GPU has the shared memory for the TF32 kernels of a head dim. If
// not, both passes multiply in FP32.
bool HasTf32Kernels(ForwardParams p, int compute_capability) {
  p.tf32 = true;
  return p.type == FloatType::kFloat &&
         p.d <= flash::portable::kLargestTf32HeadDim &&
         flash::SharedBytes(p, /*needs_grad=*/true) <=
             MostSharedBytes(compute_capability);
}

// The params of a problem, without data.
ForwardParams ShapeOf(const AttentionProblem& p) {
  ForwardParams params;
  params.type = FloatTypeOf(p.dtype);
  params.soft_cap = static_cast<float>(p.soft_cap);
  params.b = p.b;
  params.h = p.h;
  params.g = p.g;
  params.s = p.s;
  params.t = p.t;
  params.d = p.d;
  const MaskSpec mask = WithoutRedundantLimits(p.mask, p.s, p.t);
  params.before = static_cast<int>(mask.before);
  params.after = static_cast<int>(mask.after);
  params.tf32 = p.tf32 && HasTf32Kernels(params, p.compute_capability);
  return params;
}

// Whether the kernels can address x, [B, heads, rows, D].
bool IsAddressable(const at::Tensor& x) {
  if (reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kAlignment != 0) {
    return false;
  }
  for (int64_t i = 0; i < 3; ++i) {
    const bool aligned = x.stride(i) * x.element_size() % kAlignment == 0;
    if (x.size(i) > 1 && !aligned) return false;
  }
  return x.stride(3) == 1;
}
at::Tensor Addressable(const at::Tensor& x) {
  return IsAddressable(x) ? x : x.clone(at::MemoryFormat::Contiguous);
}

// The stride of a dimension, or a valid one if its size is 1: then x may have
// any stride, but the copy engine checks it.
int64_t StrideOf(const at::Tensor& x, int64_t dim) {
  return x.size(dim) == 1 ? x.size(3) : x.stride(dim);
}

HeadView ViewOf(const at::Tensor& x, void* data) {
  return {.data = data,
          .batch_stride = StrideOf(x, 0),
          .head_stride = StrideOf(x, 1),
          .row_stride = StrideOf(x, 2)};
}
HeadView Read(const at::Tensor& x) {
  return ViewOf(x, const_cast<void*>(x.const_data_ptr()));
}
HeadView Written(const at::Tensor& x) {
  return ViewOf(x, x.mutable_data_ptr());
}

constexpr absl::string_view kNoCuda =
    "this build has no CUDA; build with --config=cuda";

absl::Status Launch(const ForwardParams& params, c10::Device device) {
  if constexpr (kCudaBuild) return flash::LaunchForward(params, device);
  return absl::UnimplementedError(kNoCuda);
}

absl::Status Launch(const BackwardParams& params, c10::Device device) {
  if constexpr (kCudaBuild) return flash::LaunchBackward(params, device);
  return absl::UnimplementedError(kNoCuda);
}

// Checks what the kernels need on every GPU.
absl::Status CheckTensors(const AttentionProblem& p) {
  if (!p.cuda) {
    return absl::UnimplementedError(
        kCudaBuild ? "runs on a GPU: change the device" : kNoCuda);
  }
  RETURN_IF_ERROR(RequireDtype(p, {at::kFloat, at::kBFloat16, at::kHalf}));
  RETURN_IF_ERROR(RequireHeadDim(p, kHeadDimStep, kMaxHeadDim));
  if (std::max(p.s, p.t) > kMaxLength) {
    return absl::UnimplementedError(
        absl::StrCat("supports lengths up to ", kMaxLength, ", not ",
                     std::max(p.s, p.t), ": shorten the context"));
  }
  constexpr int64_t kMaxInt = std::numeric_limits<int>::max();
  if (p.documents && p.b * p.s > kMaxInt) {
    return absl::UnimplementedError(
        absl::StrCat("keeps documents apart in at most 2^31 - 1 tokens, not ",
                     p.b, " x ", p.s, ": use a smaller batch"));
  }
  if (p.soft_cap != 0 &&
      !(p.soft_cap >= kSmallestSoftCap && p.soft_cap <= kLargestSoftCap)) {
    return absl::UnimplementedError(absl::StrCat(
        "caps scores at ", kSmallestSoftCap, " to ", kLargestSoftCap, ", not ",
        p.soft_cap, ": change model.attention_soft_cap"));
  }
  const int64_t heads = p.b * p.h;
  const int64_t tiles = std::max(p.s, p.t) / kFewestRows + 1;
  if (heads > kMaxInt / tiles) {
    return absl::UnimplementedError(absl::StrCat(
        "supports at most 2^31 - 1 tiles, too few for ", heads, " heads of ",
        std::max(p.s, p.t), " rows: use a smaller batch"));
  }
  return absl::OkStatus();
}

// Checks that this GPU can run the kernels.
absl::Status CheckGpu(const AttentionProblem& p) {
  RETURN_IF_ERROR(RequireCapability(p, 80));
  const int needed = flash::SharedBytes(ShapeOf(p), p.needs_grad);
  const int available = MostSharedBytes(p.compute_capability);
  if (needed > available) {
    return absl::UnimplementedError(absl::StrCat(
        "needs ", needed, " bytes of shared memory at head dim ", p.d,
        "; this GPU has ", available, " per CUDA block: use smaller heads"));
  }
  return absl::OkStatus();
}

// Inputs in a form that the kernels can address, and their params.
struct Call {
  at::Tensor q, k, v;
  ForwardParams params;
};

Call CallOf(const AttentionArgs& args) {
  AttentionProblem problem = ProblemOf(args);
  problem.compute_capability = ComputeCapability(args.q_bhsd.device());
  Call call = {.q = Addressable(args.q_bhsd),
               .k = Addressable(args.k_bgtd),
               .v = Addressable(args.v_bgtd),
               .params = ShapeOf(problem)};
  ForwardParams& p = call.params;
  p.scale = static_cast<float>(args.scale);
  p.q = Read(call.q);
  p.k = Read(call.k);
  p.v = Read(call.v);
  if (args.documents.defined()) {
    p.document_begin = args.documents[0].const_data_ptr<int>();
    p.document_end = args.documents[1].const_data_ptr<int>();
  }
  return call;
}

}  // namespace

absl::Status FlashCudaBackend::Supports(const AttentionProblem& problem) const {
  RETURN_IF_ERROR(CheckTensors(problem));
  return CheckGpu(problem);
}

AttentionMemory FlashCudaBackend::Plan(const AttentionProblem& problem) const {
  const AttentionProblem& p = problem;
  const int64_t rows = p.b * p.h * p.s;
  const int64_t lse_bytes = rows * static_cast<int64_t>(sizeof(float));
  AttentionMemory memory;
  if (!p.needs_grad) {
    memory.forward_bytes = lse_bytes;
    return memory;
  }
  memory.lse = TensorType{{p.b, p.h, p.s}, at::kFloat};
  memory.saved_bytes =
      rows * p.d * static_cast<int64_t>(c10::elementSize(p.dtype)) + lse_bytes;
  memory.backward_bytes = flash::BackwardWorkspaceBytes(
      ShapeOf(p), p.deterministic, p.compute_capability);
  if (p.sinks) {
    memory.backward_bytes =
        std::max(memory.backward_bytes, SinkGradientBytes(p));
  }
  return memory;
}

absl::Status FlashCudaBackend::Forward(const AttentionArgs& args,
                                       AttentionOut* out) const {
  // Checked in FP32, in which the kernels compute.
  const auto scale = static_cast<float>(args.scale);
  if (!(scale > 0 && std::isfinite(scale))) {
    return absl::InvalidArgumentError(
        absl::StrCat("FLASH_CUDA needs a scale that is positive in FP32, not ",
                     args.scale, ": use NAIVE"));
  }
  return StatusFromTorchOr([&] {
    const at::NoGradGuard no_grad;
    Call call = CallOf(args);
    ForwardParams& p = call.params;
    const at::TensorOptions options = call.q.options();
    out->o_bhsd = OutputOrEmpty(*out, call.q);
    out->lse_bhs =
        GivenOrEmpty(out->lse_bhs, {p.b, p.h, p.s}, options.dtype(at::kFloat));
    out->saved.clear();
    p.o = Written(out->o_bhsd);
    p.lse = out->lse_bhs.mutable_data_ptr<float>();
    const at::Tensor counter = at::empty({1}, options.dtype(at::kInt));
    p.counter = counter.mutable_data_ptr<int>();
    const absl::Status launched = Launch(p, call.q.device());
    if (launched.ok() && args.sinks.defined()) {
      ApplySinks(args.sinks, out->o_bhsd, out->lse_bhs);
    }
    return launched;
  });
}

absl::Status FlashCudaBackend::Backward(const AttentionArgs& args,
                                        const AttentionOut& out,
                                        const at::Tensor& d_o_bhsd,
                                        AttentionGrads* grads) const {
  return StatusFromTorchOr([&] {
    const at::NoGradGuard no_grad;
    Call call = CallOf(args);
    const at::Tensor d_o = Addressable(d_o_bhsd);
    if (grads->d_sinks.defined()) {
      SinkGradients(args.sinks, out.o_bhsd, out.lse_bhs, d_o, grads->d_sinks);
    }
    at::Tensor* const wanted[] = {&grads->dq_bhsd, &grads->dk_bgtd,
                                  &grads->dv_bgtd};
    at::Tensor written[3];
    for (int i = 0; i < 3; ++i) {
      written[i] = IsAddressable(*wanted[i])
                       ? *wanted[i]
                       : at::empty(wanted[i]->sizes(), call.q.options());
    }
    BackwardParams p;
    p.forward = call.params;
    p.forward.o = Read(out.o_bhsd);
    p.forward.lse = const_cast<float*>(out.lse_bhs.const_data_ptr<float>());
    p.d_o = Read(d_o);
    p.dq = Written(written[0]);
    p.dk = Written(written[1]);
    p.dv = Written(written[2]);
    p.deterministic = args.deterministic;
    const at::Tensor workspace = at::empty(
        {flash::BackwardWorkspaceBytes(p.forward, p.deterministic,
                                       ComputeCapability(call.q.device()))},
        call.q.options().dtype(at::kByte));
    p.workspace = workspace.mutable_data_ptr();
    absl::Status launched = Launch(p, call.q.device());
    for (int i = 0; i < 3; ++i) {
      if (!written[i].is_same(*wanted[i])) wanted[i]->copy_(written[i]);
    }
    return launched;
  });
}

}  // namespace tessera
