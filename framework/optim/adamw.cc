#include "framework/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <optional>
#include <utility>
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
  const at::ScalarType master = store.options().weights.master;
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

// Where the weights of all chunks are; empty if they are in order in the
// master, without a shadow.
std::vector<AdamWRange> RangesOf(const ParameterStore& store) {
  using Form = AdamWRange::Form;
  std::vector<AdamWRange> ranges;
  for (const ParameterSection& section : store.sections()) {
    // Sections begin with a chunk in every buffer, so this is a whole number.
    const auto shift = [&](int64_t offset) {
      return static_cast<int32_t>((offset - section.begin) / kAdamWChunk);
    };
    const WeightPlace& weights = section.weights;
    const std::optional<int64_t>& shadow = weights.shadow;
    const AdamWRange range = {
        .end = static_cast<int32_t>(section.end / kAdamWChunk),
        .form = weights.split        ? Form::kSplit
                : shadow.has_value() ? Form::kMasterAndShadow
                                     : Form::kMaster,
        .shift = shift(weights.offset),
        .shadow_shift = shadow.has_value() ? shift(*shadow) : 0};
    // Neighbours of one form are neighbours in its buffers, too.
    if (!ranges.empty() && ranges.back().form == range.form) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  if (ranges.size() == 1 && ranges[0].form == Form::kMaster) ranges.clear();
  return ranges;
}

// A table as bytes on `device`; undefined if it is empty.
template <typename T>
at::Tensor ToDevice(std::vector<T> table, at::Device device) {
  if (table.empty()) return at::Tensor();
  return at::from_blob(table.data(),
                       {static_cast<int64_t>(table.size() * sizeof(T))},
                       at::kByte)
      .to(device, at::kByte, /*non_blocking=*/false, /*copy=*/true);
}

// A buffer's address, `skipped` elements before it; null if it is undefined.
void* Address(const at::Tensor& buffer, int64_t skipped = 0) {
  if (!buffer.defined()) return nullptr;
  return static_cast<char*>(buffer.data_ptr()) -
         skipped * buffer.element_size();
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
    const at::TensorOptions options = store.grad().options();
    adamw->exp_avg_ =
        at::zeros({store.sharding().HeldMoments(store.trainable_extent())},
                  options.dtype(store.options().weights.master));
    adamw->exp_avg_sq_ =
        at::zeros({store.sharding().HeldMoments(store.second_moments())},
                  adamw->exp_avg_.options());
    adamw->step_ = at::zeros({1}, options.dtype(at::kLong));
    adamw->skips_ = at::ones({1}, options.dtype(at::kBool));
    adamw->prepared_ =
        at::zeros({kMaxAdamWGroups * sizeof(AdamWCoefficients) / sizeof(float)},
                  options.dtype(at::kFloat));
    adamw->chunk_groups_ = ToDevice(std::move(chunk_groups), options.device());
    adamw->ranges_ = ToDevice(RangesOf(store), options.device());
  }));
  return adamw;
}

absl::Status AdamW::Step(const StepControl& control) {
  TESSERA_CHECK(!store_.sharding().divides_optimizer(),
                "the caller updates part by part");
  RETURN_IF_ERROR(Prepare(control));
  return Update(0, store_.adamw_extent());
}

absl::Status AdamW::Prepare(const StepControl& control) {
  TESSERA_CHECK(control.lr.defined(), "a step needs a learning rate");
  const AdamWScalars scalars = {Scalar<float>(control.lr, step_),
                                Scalar<float>(control.grad_scale, step_),
                                Scalar<bool>(control.skip, step_),
                                step_.data_ptr<int64_t>(),
                                skips_.data_ptr<bool>()};
  if constexpr (kCudaBuild) {
    if (step_.is_cuda()) {
      return cuda::PrepareAdamW(scalars, options_, prepared_);
    }
  }
  *scalars.skips = scalars.skip != nullptr && *scalars.skip;
  if (*scalars.skips) return absl::OkStatus();
  const float scale = scalars.grad_scale == nullptr ? 1 : *scalars.grad_scale;
  const AdamWStep step =
      PrepareAdamWStep(options_, *scalars.lr, scale, ++*scalars.step);
  auto* const prepared = static_cast<AdamWCoefficients*>(prepared_.data_ptr());
  for (int i = 0; i < kMaxAdamWGroups; ++i) {
    prepared[i] = MakeAdamWCoefficients(options_, step, options_.groups[i]);
  }
  return absl::OkStatus();
}

absl::Status AdamW::Update(int64_t begin, int64_t end) {
  TESSERA_CHECK(begin % kAdamWChunk == 0 && end % kAdamWChunk == 0 &&
                    begin <= end && end <= store_.adamw_extent(),
                "elements [", begin, ", ", end, ")");
  if (begin == end) return absl::OkStatus();
  const AdamWBuffers buffers = Buffers(begin);
  const bool* const skips = skips_.const_data_ptr<bool>();
  if constexpr (kCudaBuild) {
    if (step_.is_cuda()) {
      return cuda::UpdateAdamW(buffers, begin, end, skips, prepared_);
    }
  }
  if (*skips) return absl::OkStatus();
  at::parallel_for(begin / kAdamWChunk, end / kAdamWChunk, kCpuGrain,
                   [&](int64_t from, int64_t to) {
                     TESSERA_CHECK(
                         UpdateAdamWChunks(buffers, coefficients(), from, to),
                         "dtypes that no precision policy has");
                   });
  return absl::OkStatus();
}

void AdamW::Discard() { skips_.fill_(true); }

int AdamW::GroupOf(const ParameterSlice& slice) const {
  if (!chunk_groups_.defined()) return 0;
  return chunk_groups_[slice.offset / kAdamWChunk].item<uint8_t>();
}

const AdamWCoefficients* AdamW::coefficients() const {
  return static_cast<const AdamWCoefficients*>(prepared_.const_data_ptr());
}

AdamWBuffers AdamW::Buffers(int64_t begin) const {
  const WeightBuffers& weights = store_.weights();
  // What ranks divide begins where this rank's part would be in a whole buffer.
  const ParameterStore::Divisions& divisions = store_.divisions();
  const ParameterSection& section = store_.SectionOf(begin);
  const auto shift = [&](const Division& division, int64_t first) {
    return division.Shift(first, first + section.size());
  };
  const int64_t first = section.weights.offset;
  const int64_t shadow = section.weights.shadow.value_or(0);
  const WeightDtypes& dtypes = store_.options().weights;
  return {
      .state = FloatTypeOf(dtypes.master),
      .grad_dtype = FloatTypeOf(store_.grad().scalar_type()),
      .rounded_dtype = FloatTypeOf(dtypes.compute),
      .exp_avg = Address(exp_avg_, shift(divisions.moments, section.begin)),
      .exp_avg_sq =
          Address(exp_avg_sq_, divisions.second_moments.Shift(
                                   section.second_begin, section.second_end)),
      .grad = Address(store_.grad(), shift(divisions.gradients, section.begin)),
      .master = Address(weights.master, shift(divisions.master, first)),
      .shadow = Address(weights.shadow, shift(divisions.shadow, shadow)),
      .high = static_cast<uint16_t*>(
          Address(weights.high, shift(divisions.high, first))),
      .low = static_cast<int16_t*>(
          Address(weights.low, shift(divisions.low, first))),
      .chunk_groups = static_cast<const uint8_t*>(Address(chunk_groups_)),
      .ranges = static_cast<const AdamWRange*>(Address(ranges_)),
      .num_ranges = ranges_.defined() ? static_cast<int>(ranges_.nbytes() /
                                                         sizeof(AdamWRange))
                                      : 0};
}

int64_t AdamW::state_bytes() const {
  return static_cast<int64_t>(exp_avg_.nbytes() + exp_avg_sq_.nbytes() +
                              step_.nbytes());
}

}  // namespace tessera
