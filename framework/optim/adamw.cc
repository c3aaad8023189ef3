#include "framework/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/float_type_of.h"
#include "framework/optim/adamw_cpu.h"
#include "framework/optim/optimizer_kernels.h"

namespace tessera {
namespace {

static_assert(kAdamWChunk == kBlockAlignment,
              "a chunk must lie within one block of the store");

// Chunks per task of a CPU thread: 32 Ki elements.
constexpr int64_t kCpuGrain = 256;

absl::Status CheckDtypes(const ParameterStore& store,
                         const PrecisionPolicy& policy) {
  const at::ScalarType master = store.options().master;
  const at::ScalarType state = policy[OpClass::kOptimizerState];
  if (master != state) {
    return absl::InvalidArgumentError(absl::StrCat(
        "AdamW needs master weights and moments of the same dtype; the store "
        "has ",
        c10::toString(master), " and the policy ", policy.name(), " ",
        c10::toString(state)));
  }
  return absl::OkStatus();
}

// Pointer to the element of a control tensor; null if it is undefined.
template <typename T>
const T* Scalar(const at::Tensor& tensor, const at::Tensor& like) {
  if (!tensor.defined()) return nullptr;
  TESSERA_CHECK(tensor.numel() == 1 && tensor.device() == like.device(),
                "a step's control is one element on the store's device");
  return tensor.const_data_ptr<T>();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdamW>> AdamW::Create(
    const AdamWOptions& options, absl::Span<const ParameterGroup> groups,
    ParameterStore& store, const PrecisionPolicy& policy) {
  TESSERA_CHECK(groups.size() <= kMaxAdamWGroups, "groups: ", groups.size());
  RETURN_IF_ERROR(CheckDtypes(store, policy));
  ASSIGN_OR_RETURN(std::vector<uint8_t> chunk_groups,
                   AssignChunkGroups(groups, store));
  std::unique_ptr<AdamW> adamw(new AdamW(store, options));
  RETURN_IF_ERROR(StatusFromTorch([&] {
    const at::Tensor trainable =
        store.master().narrow(0, 0, store.trainable_extent());
    adamw->exp_avg_ = at::zeros_like(trainable);
    adamw->exp_avg_sq_ = at::zeros_like(trainable);
    adamw->step_ = at::zeros({1}, trainable.options().dtype(at::kLong));
    adamw->prepared_ = at::zeros({sizeof(AdamWStep) / sizeof(float)},
                                 trainable.options().dtype(at::kFloat));
    if (chunk_groups.empty()) return;
    adamw->chunk_groups_ =
        at::from_blob(chunk_groups.data(),
                      {static_cast<int64_t>(chunk_groups.size())}, at::kByte)
            .to(trainable.device(), at::kByte, /*non_blocking=*/false,
                /*copy=*/true);
  }));
  return adamw;
}

absl::Status AdamW::Step(const StepControl& control) {
  TESSERA_CHECK(control.lr.defined(), "a step needs a learning rate");
  const AdamWScalars scalars = {Scalar<float>(control.lr, step_),
                                Scalar<float>(control.grad_scale, step_),
                                Scalar<bool>(control.skip, step_),
                                step_.data_ptr<int64_t>()};
  const AdamWBuffers buffers = Buffers();
  if constexpr (kCudaBuild) {
    if (step_.is_cuda()) {
      return cuda::UpdateAdamW(buffers, scalars, options_, prepared_);
    }
  }
  return StepOnCpu(buffers, scalars);
}

AdamWBuffers AdamW::Buffers() const {
  const at::Tensor& shadow = store_.shadow();
  const bool kept = shadow.defined();
  return {FloatTypeOf(store_.master().scalar_type()),
          FloatTypeOf(store_.grad().scalar_type()),
          FloatTypeOf((kept ? shadow : store_.master()).scalar_type()),
          store_.master().data_ptr(),
          exp_avg_.data_ptr(),
          exp_avg_sq_.data_ptr(),
          store_.grad().const_data_ptr(),
          kept ? shadow.data_ptr() : nullptr,
          chunk_groups_.defined() ? chunk_groups_.const_data_ptr<uint8_t>()
                                  : nullptr,
          store_.trainable_extent()};
}

absl::Status AdamW::StepOnCpu(const AdamWBuffers& buffers,
                              const AdamWScalars& scalars) const {
  if (scalars.skip != nullptr && *scalars.skip) return absl::OkStatus();
  const float scale = scalars.grad_scale == nullptr ? 1 : *scalars.grad_scale;
  const AdamWStep prepared =
      PrepareAdamWStep(options_, *scalars.lr, scale, ++*scalars.step);
  at::parallel_for(0, buffers.num_elements / kAdamWChunk, kCpuGrain,
                   [&](int64_t begin, int64_t end) {
                     TESSERA_CHECK(UpdateAdamWChunks(buffers, options_,
                                                     prepared, begin, end),
                                   "dtypes that no precision policy has");
                   });
  return absl::OkStatus();
}

int64_t AdamW::state_bytes() const {
  return static_cast<int64_t>(exp_avg_.nbytes() + exp_avg_sq_.nbytes() +
                              step_.nbytes());
}

}  // namespace tessera
