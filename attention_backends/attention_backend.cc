#include "attention_backends/attention_backend.h"

#include <string>

#include "ATen/ATen.h"
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/status_macros.h"
#include "framework/precision/precision_policy.h"

namespace tessera {
namespace {

// "9.0" of 90.
std::string CapabilityName(int capability) {
  return absl::StrCat(capability / 10, ".", capability % 10);
}

std::string DeviceName(const AttentionProblem& problem) {
  if (!problem.cuda) return "a CPU";
  return absl::StrCat("a GPU of compute capability ",
                      CapabilityName(problem.compute_capability));
}

}  // namespace

MaskSpec WithoutRedundantLimits(MaskSpec mask, int64_t s, int64_t t) {
  if (mask.before >= t - 1) mask.before = kAllKeys;
  // The first query stands at key T - S.
  if (mask.after > 0 && mask.after >= s - 1) mask.after = kAllKeys;
  return mask;
}

std::string ToString(MaskSpec mask) {
  if (mask == MaskSpec::Full()) return "full";
  if (mask == MaskSpec::Causal()) return "causal";
  if (mask == MaskSpec::Window(mask.before + 1)) {
    return absl::StrCat("window of ", mask.before + 1, " keys");
  }
  const auto keys = [](int64_t side) {
    return side == kAllKeys ? "all" : absl::StrCat(side);
  };
  return absl::StrCat("window of ", keys(mask.before), " keys before and ",
                      keys(mask.after), " after");
}

std::string ToString(const AttentionProblem& problem) {
  const std::string mask = ToString(problem.mask);
  return absl::StrCat(
      problem.mask.is_window() ? absl::StrCat("attention in a ", mask)
                               : absl::StrCat(mask, " attention"),
      ", batch ", problem.b, ", lengths ", problem.s, " x ", problem.t,
      ", heads ", problem.h, "/", problem.g, ", head dim ", problem.d, ", ",
      c10::toString(problem.dtype), problem.tf32 ? " (TF32)" : "",
      problem.documents ? ", separate documents" : "",
      problem.soft_cap != 0
          ? absl::StrCat(", scores capped at ", problem.soft_cap)
          : "",
      problem.sinks ? ", sinks" : "",
      problem.needs_grad ? ", with gradients" : ", forward only",
      problem.deterministic ? ", deterministic" : "", ", on ",
      DeviceName(problem));
}

at::Tensor GivenOrEmpty(const at::Tensor& given, at::IntArrayRef sizes,
                        const at::TensorOptions& options) {
  return given.defined() ? given : at::empty(sizes, options);
}

at::Tensor SavedOrEmpty(const AttentionOut& out, size_t i,
                        at::IntArrayRef sizes,
                        const at::TensorOptions& options) {
  return i < out.saved.size() ? GivenOrEmpty(out.saved[i], sizes, options)
                              : at::empty(sizes, options);
}

at::Tensor OutputOrEmpty(const AttentionOut& out, const at::Tensor& q_bhsd) {
  if (out.o_bhsd.defined()) return out.o_bhsd;
  return at::empty(q_bhsd.transpose(1, 2).sizes(), q_bhsd.options())
      .transpose(1, 2);
}

AttentionProblem ProblemOf(const AttentionArgs& args) {
  const at::Tensor &q = args.q_bhsd, &k = args.k_bgtd;
  return {.b = q.size(0),
          .s = q.size(2),
          .t = k.size(2),
          .h = q.size(1),
          .g = k.size(1),
          .d = q.size(3),
          .dtype = q.scalar_type(),
          .tf32 = args.tf32,
          .mask = args.mask,
          .soft_cap = args.soft_cap,
          .sinks = args.sinks.defined(),
          .documents = args.documents.defined(),
          .deterministic = args.deterministic,
          .cuda = q.is_cuda()};
}

absl::Status RequirePlain(const AttentionProblem& problem) {
  constexpr absl::string_view kOthers = "use FLASH_CUDA, FLASH_TILED or NAIVE";
  if (problem.mask.is_window()) {
    return absl::UnimplementedError(
        absl::StrCat("computes no ", ToString(problem.mask), ": ", kOthers,
                     ", or no attention_window"));
  }
  if (problem.documents) {
    return absl::UnimplementedError(
        absl::StrCat("does not keep documents apart: ", kOthers,
                     ", or data.documents JOINED"));
  }
  if (problem.soft_cap != 0) {
    return absl::UnimplementedError(
        absl::StrCat("has no soft cap of scores: ", kOthers,
                     ", or no model.attention_soft_cap"));
  }
  return RequireNoSinks(problem);
}

void ApplySoftCap(double soft_cap, const at::Tensor& scores) {
  if (soft_cap == 0) return;
  const at::Tensor wide = scores.to(ArithmeticDtype(scores.scalar_type()));
  scores.copy_(wide.div_(soft_cap).tanh_().mul_(soft_cap));
}

int64_t SoftCapBytes(const AttentionProblem& problem, int64_t scores) {
  const at::ScalarType wide = ArithmeticDtype(problem.dtype);
  if (problem.soft_cap == 0 || problem.dtype == wide) return 0;
  return scores * static_cast<int64_t>(c10::elementSize(wide));
}

void SoftCapSlopes(double soft_cap, const at::Tensor& capped) {
  capped.div_(soft_cap).square_().neg_().add_(1);
}

absl::Status RequireNoSinks(const AttentionProblem& problem) {
  if (!problem.sinks) return absl::OkStatus();
  return absl::UnimplementedError(
      "has no attention sinks: use FLASH_CUDA or FLASH_TILED, or no "
      "model.attention_sinks");
}

absl::Status RequireDtype(const AttentionProblem& problem,
                          absl::Span<const at::ScalarType> supported) {
  if (absl::c_linear_search(supported, problem.dtype)) return absl::OkStatus();
  const auto name = [](std::string* out, at::ScalarType dtype) {
    absl::StrAppend(out, c10::toString(dtype));
  };
  const size_t last = supported.size() - 1;
  return absl::UnimplementedError(absl::StrCat(
      "computes in ", absl::StrJoin(supported.first(last), ", ", name), " or ",
      c10::toString(supported[last]), ", not in ", c10::toString(problem.dtype),
      ": change precision"));
}

absl::Status RequireHeadDim(const AttentionProblem& problem, int64_t multiple,
                            int64_t largest) {
  if (problem.d % multiple == 0 && problem.d <= largest) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "needs a head dim that is a multiple of ", multiple, " and at most ",
      largest, ", not ", problem.d, ": change the number of heads"));
}

absl::Status RequireCapability(const AttentionProblem& problem, int least) {
  if (problem.compute_capability >= least) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "needs compute capability ", CapabilityName(least),
      " or newer; this GPU has ", CapabilityName(problem.compute_capability),
      ": use a newer GPU"));
}

AttentionMask<int64_t> MaskOf(const AttentionProblem& problem) {
  return {problem.s, problem.t, problem.mask.before, problem.mask.after};
}

double VisibleShare(const AttentionProblem& problem) {
  if (problem.mask == MaskSpec::Full()) return 1;
  if (problem.mask == MaskSpec::Causal()) return 0.5;
  const AttentionMask<int64_t> mask = MaskOf(problem);
  double pairs = 0;
  for (int64_t query = 0; query < problem.s; ++query) {
    pairs += static_cast<double>(mask.KeysOfRow(query).size());
  }
  return pairs / static_cast<double>(problem.s) /
         static_cast<double>(problem.t);
}

}  // namespace tessera
