#include "trainers/run/training_state.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <functional>
#include <future>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/device.h"

namespace tessera {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;

// A 1-D tensor of the state as a checkpoint stores it.
struct StoredSlice {
  TensorSpec spec;
  at::ScalarType dtype;
  int64_t numel;
  // Elements [begin, begin + staging.numel()) in host memory: in `staging`, or
  // a view of where they are.
  std::function<at::Tensor(int64_t begin, const at::Tensor& staging)> read;
  // Overwrites elements from `begin` on by values of any dtype.
  std::function<void(int64_t begin, const at::Tensor& values)> write;
};

StoredDtype StoredDtypeOf(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return StoredDtype::kF32;
    case at::kBFloat16:
      return StoredDtype::kBF16;
    case at::kHalf:
      return StoredDtype::kF16;
    default:
      TESSERA_CHECK(dtype == at::kDouble);
      return StoredDtype::kF64;
  }
}

constexpr char kExpAvg[] = "exp_avg.", kExpAvgSq[] = "exp_avg_sq.";

TensorSpec SpecOf(absl::string_view prefix, const ParameterSlice& slice,
                  at::ScalarType dtype) {
  return {.name = absl::StrCat(prefix, slice.name),
          .dtype = StoredDtypeOf(dtype),
          .shape = slice.shape};
}

std::vector<TensorSpec> ModelSpecs(const StateLayout& layout) {
  std::vector<TensorSpec> specs;
  for (const ParameterSlice& slice : layout.parameters) {
    specs.push_back(SpecOf("", slice, layout.master));
  }
  return specs;
}

std::vector<TensorSpec> OptimizerSpecs(const StateLayout& layout) {
  std::vector<TensorSpec> specs;
  for (const ParameterSlice& slice : layout.parameters) {
    if (!slice.trainable) continue;
    specs.push_back(SpecOf(kExpAvg, slice, layout.master));
    specs.push_back(SpecOf(kExpAvgSq, slice, layout.master));
  }
  return specs;
}

StateLayout LayoutOf(const ParameterStore& parameters) {
  const auto slices = parameters.slices();
  return {.parameters = {slices.begin(), slices.end()},
          .master = parameters.options().weights.master};
}

StoredSlice Slice(absl::string_view prefix, const ParameterSlice& slice,
                  at::ScalarType dtype) {
  return {.spec = SpecOf(prefix, slice, dtype),
          .dtype = dtype,
          .numel = slice.numel};
}

// The slices of model.safetensors. read() gives the values in `from`.
std::vector<StoredSlice> ModelSlices(ParameterStore* parameters,
                                     const WeightBuffers& from) {
  std::vector<StoredSlice> slices;
  for (const ParameterSlice& slice : parameters->slices()) {
    slices.push_back(Slice("", slice, parameters->options().weights.master));
    slices.back().read = [from, &slice](int64_t begin, const at::Tensor& to) {
      if (!slice.weights.split && from.master.is_cpu()) {
        return from.master.narrow(0, slice.weights.offset + begin, to.numel());
      }
      ReadMaster(from, slice, begin, to);
      return to;
    };
    slices.back().write = [=, &slice](int64_t begin, const at::Tensor& values) {
      parameters->Write(slice, begin, values);
    };
  }
  return slices;
}

StoredSlice MomentSlice(absl::string_view prefix, const ParameterSlice& slice,
                        const ParameterStore& parameters,
                        const at::Tensor& moment) {
  StoredSlice stored = Slice(prefix, slice, moment.scalar_type());
  stored.read = [moment, &slice](int64_t begin, const at::Tensor& to) {
    const at::Tensor values =
        moment.narrow(0, slice.offset + begin, to.numel());
    return moment.is_cpu() ? values : to.copy_(values);
  };
  const HeldRange held =
      parameters.HeldOf(parameters.divisions().moments, slice);
  stored.write = [moment, held](int64_t begin, const at::Tensor& values) {
    WriteHeld(moment, held, begin, values);
  };
  return stored;
}

std::vector<StoredSlice> OptimizerSlices(const ParameterStore& parameters,
                                         const StateBuffers& from) {
  std::vector<StoredSlice> slices;
  for (const ParameterSlice& slice : parameters.slices()) {
    if (!slice.trainable) continue;
    slices.push_back(MomentSlice(kExpAvg, slice, parameters, from.exp_avg));
    slices.push_back(
        MomentSlice(kExpAvgSq, slice, parameters, from.exp_avg_sq));
  }
  return slices;
}

// Calls fn(begin, count) for the pieces of a slice. So a model passes through
// bounded host memory, and no copy of it is on the device.
template <typename Fn>
absl::Status ForEachPiece(const StoredSlice& slice, const Fn& fn) {
  const int64_t most =
      kPieceBytes / static_cast<int64_t>(c10::elementSize(slice.dtype));
  for (int64_t begin = 0; begin < slice.numel; begin += most) {
    RETURN_IF_ERROR(fn(begin, std::min(most, slice.numel - begin)));
  }
  return absl::OkStatus();
}

// A file of a checkpoint while it is written.
struct SlicesFile {
  std::vector<StoredSlice> slices;
  SafetensorsWriter* file = nullptr;
  // A piece in host memory, pinned for data from a GPU: copies reach 50 GB/s,
  // against 1.6 GB/s into new memory for every slice, because of page faults.
  at::Tensor staging;
};

absl::StatusOr<SlicesFile> CreateFile(absl::string_view name,
                                      std::vector<StoredSlice> slices,
                                      at::Device device,
                                      CheckpointWriter* writer) {
  std::vector<TensorSpec> specs;
  for (const StoredSlice& slice : slices) specs.push_back(slice.spec);
  SlicesFile created{.slices = std::move(slices)};
  ASSIGN_OR_RETURN(created.file, writer->AddTensorFile(name, std::move(specs)));
  RETURN_IF_ERROR(StatusFromTorch([&] {
    created.staging = at::empty(
        kPieceBytes, at::dtype(at::kByte).pinned_memory(device.is_cuda()));
  }));
  return created;
}

absl::Status WriteSlices(const SlicesFile& to) {
  return StatusFromTorchOr([&]() -> absl::Status {
    const at::NoGradGuard no_grad;
    for (const StoredSlice& slice : to.slices) {
      const at::Tensor staging = to.staging.view(slice.dtype);
      RETURN_IF_ERROR(ForEachPiece(slice, [&](int64_t begin, int64_t count) {
        const at::Tensor piece = slice.read(begin, staging.narrow(0, 0, count));
        return to.file->Write(absl::string_view(
            static_cast<const char*>(piece.const_data_ptr()), piece.nbytes()));
      }));
    }
    return to.file->Finish();
  });
}

std::string Describe(const TensorSpec& spec) {
  return absl::StrCat(Name(spec.dtype), " [", absl::StrJoin(spec.shape, ", "),
                      "]");
}

// The inverse of StoredDtypeOf(); nullopt for dtypes that weights never have.
std::optional<at::ScalarType> ScalarTypeOf(StoredDtype dtype) {
  switch (dtype) {
    case StoredDtype::kF32:
      return at::kFloat;
    case StoredDtype::kBF16:
      return at::kBFloat16;
    case StoredDtype::kF16:
      return at::kHalf;
    case StoredDtype::kF64:
      return at::kDouble;
    default:
      return std::nullopt;
  }
}

enum class Dtypes { kSame, kConverted };

// The dtype of the values in a file that become the tensor `spec`; nullopt if
// they cannot.
std::optional<at::ScalarType> StoredAs(const TensorEntry* entry,
                                       const TensorSpec& spec, Dtypes dtypes) {
  if (entry == nullptr || entry->spec.shape != spec.shape ||
      (dtypes == Dtypes::kSame && entry->spec.dtype != spec.dtype)) {
    return std::nullopt;
  }
  return ScalarTypeOf(entry->spec.dtype);
}

// Checks that a file has the tensors `specs` and no others.
absl::Status CheckTensors(const Checkpoint& checkpoint, absl::string_view file,
                          const std::vector<TensorSpec>& specs, Dtypes dtypes) {
  ASSIGN_OR_RETURN(const SafetensorsFile* tensors, checkpoint.Tensors(file));
  const std::string advice =
      dtypes == Dtypes::kSame
          ? "; resume with the config that the checkpoint was made with"
          : absl::StrCat("; set the fields of model as in ",
                         checkpoint.folder(), "/", kConfigFile);
  if (tensors->tensors().size() != specs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        tensors->path(), " holds ", tensors->tensors().size(),
        " tensors, but this run's model has ", specs.size(), advice));
  }
  for (const TensorSpec& spec : specs) {
    const TensorEntry* entry = tensors->Find(spec.name);
    if (StoredAs(entry, spec, dtypes).has_value()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        tensors->path(), ": tensor ", spec.name, " is ",
        entry == nullptr ? "missing" : Describe(entry->spec),
        ", but in this run's model it is ", Describe(spec), advice));
  }
  return absl::OkStatus();
}

// Reads slices for which CheckTensors() holds.
absl::Status ReadSlices(const Checkpoint& checkpoint, absl::string_view file,
                        const std::vector<StoredSlice>& slices, Dtypes dtypes) {
  ASSIGN_OR_RETURN(const SafetensorsFile* tensors, checkpoint.Tensors(file));
  for (const StoredSlice& slice : slices) {
    const TensorEntry* entry = tensors->Find(slice.spec.name);
    const auto stored = StoredAs(entry, slice.spec, dtypes);
    TESSERA_CHECK(stored.has_value());
    const absl::string_view bytes = tensors->Bytes(*entry);
    RETURN_IF_ERROR(StatusFromTorchOr([&] {
      const at::Tensor values = at::from_blob(
          const_cast<char*>(bytes.data()), {slice.numel}, at::dtype(*stored));
      return ForEachPiece(slice, [&](int64_t begin, int64_t count) {
        slice.write(begin, values.narrow(0, begin, count));
        return absl::OkStatus();
      });
    }));
  }
  return absl::OkStatus();
}

std::vector<at::Generator> Generators(at::Device device) {
  std::vector<at::Generator> generators = {
      at::detail::getDefaultCPUGenerator()};
  if (device.is_cuda()) {
    generators.push_back(at::globalContext().defaultGenerator(device));
  }
  return generators;
}

nlohmann::json ExportRandom(at::Device device) {
  nlohmann::json states = nlohmann::json::array();
  for (at::Generator& generator : Generators(device)) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    const at::Tensor state = generator.get_state();
    states.push_back(absl::Base64Escape(absl::string_view(
        static_cast<const char*>(state.const_data_ptr()), state.nbytes())));
  }
  return states;
}

absl::Status ImportRandom(std::vector<std::string> states, at::Device device,
                          JsonFields* fields) {
  std::vector<at::Generator> generators = Generators(device);
  // A run that moves to another kind of device keeps its own generators.
  for (size_t i = 0; i < std::min(states.size(), generators.size()); ++i) {
    std::string& bytes = states[i];
    const absl::Status status = StatusFromTorch([&] {
      const std::lock_guard<std::mutex> lock(generators[i].mutex());
      generators[i].set_state(at::from_blob(
          bytes.data(), {static_cast<int64_t>(bytes.size())}, at::kByte));
    });
    if (!status.ok()) {
      fields->Fail("random",
                   absl::StrCat("the state of LibTorch's generators (",
                                status.message(), ")"));
      return fields->status();
    }
  }
  return absl::OkStatus();
}

LossScalerState ReadScaler(JsonFields fields, int64_t steps) {
  const LossScalerState state{
      .scale = fields.Number("scale"),
      .steps_since_change = fields.Count("steps_since_change", steps),
      .skipped_steps = fields.Count("skipped_steps", steps)};
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (state.scale < LossScaler::kMinScale || state.scale > kLargest) {
    fields.Fail("scale", absl::StrCat("in [", LossScaler::kMinScale, ", ",
                                      kLargest, "]"));
  }
  return state;
}

// The fields of state.json that Restore() needs.
struct SavedState {
  int64_t updates = 0;
  std::vector<std::string> random;
  std::optional<LossScalerState> scaler;
};

SavedState ReadState(const Checkpoint& checkpoint, JsonFields* fields) {
  SavedState saved;
  // Updates may be skipped, but never happen twice in a step.
  saved.updates = fields->Count("optimizer_step", checkpoint.step());
  saved.random = fields->Base64List("random");
  if (fields->Has("loss_scaler")) {
    saved.scaler = ReadScaler(fields->Object("loss_scaler"), checkpoint.step());
  }
  return saved;
}

// Checks the table of tuned products, which may be null.
void CheckProducts(const Checkpoint& checkpoint, JsonFields* fields) {
  constexpr char kAlgorithms[] = "algorithms";
  const nlohmann::json& state = checkpoint.state();
  if (!fields->Has(kProductsState) || state[kProductsState].is_null()) return;
  JsonFields table = fields->Object(kProductsState);
  table.Text("machine");
  JsonFields algorithms = table.Object(kAlgorithms);
  if (!fields->status().ok()) return;
  for (const auto& [kind, unused] :
       state[kProductsState][kAlgorithms].items()) {
    if (!absl::c_all_of(algorithms.Text(kind), absl::ascii_isxdigit)) {
      algorithms.Fail(kind, "hexadecimal digits");
    }
  }
}

}  // namespace

std::vector<at::Tensor> StateBuffers::Defined() const {
  std::vector<at::Tensor> defined = weights.Defined();
  defined.insert(defined.end(), {exp_avg, exp_avg_sq});
  return defined;
}

StateBuffers BuffersOf(const TrainingState& state) {
  StateBuffers buffers = {.weights = state.parameters->weights(),
                          .exp_avg = state.optimizer->exp_avg(),
                          .exp_avg_sq = state.optimizer->exp_avg_sq()};
  buffers.weights.shadow.reset();
  return buffers;
}

absl::Status AddTensors(const TrainingState& state, const StateBuffers& from,
                        CheckpointWriter* writer) {
  const at::Device device = from.exp_avg.device();
  ASSIGN_OR_RETURN(
      const SlicesFile model,
      CreateFile(kModelFile, ModelSlices(state.parameters, from.weights),
                 device, writer));
  ASSIGN_OR_RETURN(
      const SlicesFile optimizer,
      CreateFile(kOptimizerFile, OptimizerSlices(*state.parameters, from),
                 device, writer));
  Synchronize(device);  // the other thread uses its own stream
  // Two threads, because the system writes a file at the speed of one core's
  // copy.
  std::future<absl::Status> other =
      std::async(std::launch::async, [&] { return WriteSlices(optimizer); });
  absl::Status written = WriteSlices(model);
  written.Update(other.get());
  return written;
}

absl::Status AddTensors(const TrainingState& state, CheckpointWriter* writer) {
  return AddTensors(state, BuffersOf(state), writer);
}

nlohmann::json ExportState(const TrainingState& state) {
  nlohmann::json json;
  json["optimizer_step"] = state.optimizer->step().item<int64_t>();
  json["random"] = ExportRandom(state.parameters->options().device);
  if (state.scaler != nullptr) {
    const LossScalerState scaler = state.scaler->ExportState();
    json["loss_scaler"] = {{"scale", scaler.scale},
                           {"steps_since_change", scaler.steps_since_change},
                           {"skipped_steps", scaler.skipped_steps}};
  }
  return json;
}

JsonFields StateFields(const Checkpoint& checkpoint) {
  return JsonFields(checkpoint.state(),
                    absl::StrCat(checkpoint.folder(), "/", kStateFile));
}

absl::Status CheckRestore(const Checkpoint& checkpoint,
                          const StateLayout& layout) {
  JsonFields fields = StateFields(checkpoint);
  const SavedState saved = ReadState(checkpoint, &fields);
  CheckProducts(checkpoint, &fields);
  RETURN_IF_ERROR(fields.status());
  if (layout.has_scaler && !saved.scaler.has_value()) {
    return absl::InvalidArgumentError(
        "the checkpoint has no loss scaler, but this run's precision needs "
        "one; resume with the precision it was made with");
  }
  RETURN_IF_ERROR(
      CheckTensors(checkpoint, kModelFile, ModelSpecs(layout), Dtypes::kSame));
  return CheckTensors(checkpoint, kOptimizerFile, OptimizerSpecs(layout),
                      Dtypes::kSame);
}

absl::Status Restore(const Checkpoint& checkpoint, const TrainingState& state) {
  StateLayout layout = LayoutOf(*state.parameters);
  layout.has_scaler = state.scaler != nullptr;
  RETURN_IF_ERROR(CheckRestore(checkpoint, layout));
  JsonFields fields = StateFields(checkpoint);
  const SavedState saved = ReadState(checkpoint, &fields);
  const at::NoGradGuard no_grad;
  RETURN_IF_ERROR(
      ReadSlices(checkpoint, kModelFile,
                 ModelSlices(state.parameters, state.parameters->weights()),
                 Dtypes::kSame));
  RETURN_IF_ERROR(ReadSlices(
      checkpoint, kOptimizerFile,
      OptimizerSlices(*state.parameters, BuffersOf(state)), Dtypes::kSame));
  RETURN_IF_ERROR(
      ImportRandom(saved.random, state.parameters->options().device, &fields));
  if (state.scaler != nullptr) state.scaler->ImportState(*saved.scaler);
  return StatusFromTorch([&] {
    state.optimizer->step().fill_(saved.updates);
    state.optimizer->Discard();
  });
}

absl::Status CheckRestoreParameters(const Checkpoint& checkpoint,
                                    const StateLayout& layout) {
  return CheckTensors(checkpoint, kModelFile, ModelSpecs(layout),
                      Dtypes::kConverted);
}

absl::Status RestoreParameters(const Checkpoint& checkpoint,
                               ParameterStore* parameters) {
  RETURN_IF_ERROR(CheckRestoreParameters(checkpoint, LayoutOf(*parameters)));
  const at::NoGradGuard no_grad;
  return ReadSlices(checkpoint, kModelFile,
                    ModelSlices(parameters, parameters->weights()),
                    Dtypes::kConverted);
}

}  // namespace tessera
