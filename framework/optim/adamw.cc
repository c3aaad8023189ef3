#include "framework/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/optim/adamw_cpu.h"
#include "framework/optim/flat_buffer_cuda.h"
#include "framework/optim/parameter_groups.h"

namespace tessera {
namespace {

static_assert(kAdamWChunk == kBlockAlignment,
              "a chunk must lie within one block of the store");

// Chunks per task of a CPU thread: 32 Ki elements.
constexpr int64_t kCpuGrain = 256;

AdamWOptions MakeOptions(const AdamWConfig& config) {
  AdamWOptions options;
  options.beta1 = config.beta1();
  options.beta2 = config.beta2();
  options.eps = static_cast<float>(config.eps());
  options.groups[0].weight_decay = static_cast<float>(config.weight_decay());
  for (int i = 0; i < config.groups_size(); ++i) {
    const ParameterGroupConfig& group = config.groups(i);
    options.groups[i] = {
        static_cast<float>(group.has_weight_decay() ? group.weight_decay()
                                                    : config.weight_decay()),
        static_cast<float>(group.lr_multiplier())};
  }
  return options;
}

absl::Status CheckConfig(const OptimizerConfig& config,
                         const ParameterStore& store,
                         const PrecisionPolicy& policy) {
  if (!config.has_adamw()) {
    return absl::InvalidArgumentError("optimizer.adamw must be given");
  }
  if (config.adamw().groups_size() > kMaxAdamWGroups) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer.adamw.groups: there are ", config.adamw().groups_size(),
        "; at most ", kMaxAdamWGroups, " are supported"));
  }
  const at::ScalarType master = store.options().master;
  const at::ScalarType state = policy[OpClass::kOptimizerState];
  if (master != state) {
    return absl::InvalidArgumentError(absl::StrCat(
        "AdamW keeps master weights and moments in one dtype; the store has ",
        c10::toString(master), " and the policy ", policy.name(), " ",
        c10::toString(state)));
  }
  return absl::OkStatus();
}

// Pointer to the one element of a control tensor; null when it is undefined.
template <typename T>
const T* Scalar(const at::Tensor& tensor, const at::Tensor& like) {
  if (!tensor.defined()) return nullptr;
  TESSERA_CHECK(tensor.numel() == 1 && tensor.device() == like.device(),
                "a step's control is one element on the store's device");
  return tensor.const_data_ptr<T>();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdamW>> AdamW::Create(
    const OptimizerConfig& config, ParameterStore& store,
    const PrecisionPolicy& policy) {
  RETURN_IF_ERROR(CheckConfig(config, store, policy));
  ASSIGN_OR_RETURN(std::vector<uint8_t> groups,
                   AssignChunkGroups(config.adamw(), store));
  std::unique_ptr<AdamW> adamw(new AdamW(store, MakeOptions(config.adamw())));
  RETURN_IF_ERROR(StatusFromTorch([&] {
    const at::Tensor trainable =
        store.master().narrow(0, 0, store.trainable_extent());
    adamw->exp_avg_ = at::zeros_like(trainable);
    adamw->exp_avg_sq_ = at::zeros_like(trainable);
    adamw->step_ = at::zeros({1}, trainable.options().dtype(at::kLong));
    adamw->prepared_ = at::zeros({sizeof(AdamWStep) / sizeof(float)},
                                 trainable.options().dtype(at::kFloat));
    if (groups.empty()) return;
    adamw->chunk_groups_ =
        at::from_blob(groups.data(), {static_cast<int64_t>(groups.size())},
                      at::kByte)
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
  if (step_.is_cuda()) {
    return UpdateAdamWOnCuda(buffers, scalars, options_, prepared_);
  }
  return StepOnCpu(buffers, scalars);
}

AdamWBuffers AdamW::Buffers() const {
  const at::Tensor& shadow = store_.shadow();
  const bool kept = shadow.defined();
  return {FlatDtypeOf(store_.master().scalar_type()),
          FlatDtypeOf(store_.grad().scalar_type()),
          FlatDtypeOf((kept ? shadow : store_.master()).scalar_type()),
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
