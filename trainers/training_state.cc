#include "trainers/training_state.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <future>
#include <mutex>
#include <utility>
#include <vector>

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

// A slice of a flat buffer, as a checkpoint names it.
struct StoredSlice {
  TensorSpec spec;
  at::Tensor flat;  // 1-D view
};

StoredDtype DtypeOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return StoredDtype::kF32;
    case at::kBFloat16:
      return StoredDtype::kBF16;
    case at::kHalf:
      return StoredDtype::kF16;
    default:
      TESSERA_CHECK(tensor.scalar_type() == at::kDouble);
      return StoredDtype::kF64;
  }
}

StoredSlice Slice(absl::string_view prefix, const ParameterSlice& slice,
                  const at::Tensor& buffer) {
  return {.spec = {.name = absl::StrCat(prefix, slice.name),
                   .dtype = DtypeOf(buffer),
                   .shape = slice.shape},
          .flat = buffer.narrow(0, slice.offset, slice.numel)};
}

std::vector<StoredSlice> ModelSlices(const ParameterStore& parameters) {
  std::vector<StoredSlice> slices;
  for (const ParameterSlice& slice : parameters.slices()) {
    slices.push_back(Slice("", slice, parameters.master()));
  }
  return slices;
}

std::vector<StoredSlice> OptimizerSlices(const TrainingState& state) {
  std::vector<StoredSlice> slices;
  for (const ParameterSlice& slice : state.parameters->slices()) {
    if (!slice.trainable) continue;
    slices.push_back(Slice("exp_avg.", slice, state.optimizer->exp_avg()));
    slices.push_back(
        Slice("exp_avg_sq.", slice, state.optimizer->exp_avg_sq()));
  }
  return slices;
}

// A file of a checkpoint that is being written.
struct SlicesFile {
  std::vector<StoredSlice> slices;
  SafetensorsWriter* file = nullptr;
  // What comes from a GPU stops here. Page-locked: 50 GB/s, against 1.6 into
  // memory that is fresh for every slice, for its page faults. Undefined for
  // a CPU, whose slices are written from where they are.
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
  if (device.is_cuda()) {
    RETURN_IF_ERROR(StatusFromTorch([&] {
      created.staging =
          at::empty(kPieceBytes, at::dtype(at::kByte).pinned_memory(true));
    }));
  }
  return created;
}

absl::Status WriteSlices(const SlicesFile& to) {
  return StatusFromTorchOr([&]() -> absl::Status {
    const at::NoGradGuard no_grad;
    for (const StoredSlice& slice : to.slices) {
      for (const at::Tensor& piece :
           slice.flat.view(at::kByte).split(kPieceBytes)) {
        at::Tensor host = piece;
        if (to.staging.defined()) {
          host = to.staging.narrow(0, 0, piece.numel()).copy_(piece);
        }
        RETURN_IF_ERROR(to.file->Write(absl::string_view(
            static_cast<const char*>(host.const_data_ptr()), host.nbytes())));
      }
    }
    return to.file->Finish();
  });
}

std::string Describe(const TensorSpec& spec) {
  return absl::StrCat(Name(spec.dtype), " [", absl::StrJoin(spec.shape, ", "),
                      "]");
}

absl::Status ReadSlices(const Checkpoint& checkpoint, absl::string_view file,
                        const std::vector<StoredSlice>& slices) {
  ASSIGN_OR_RETURN(const SafetensorsFile* tensors, checkpoint.Tensors(file));
  if (tensors->tensors().size() != slices.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        tensors->path(), " holds ", tensors->tensors().size(),
        " tensors, this run's model has ", slices.size(),
        "; resume with the config that the checkpoint was made with"));
  }
  for (const StoredSlice& slice : slices) {
    const TensorEntry* entry = tensors->Find(slice.spec.name);
    if (entry == nullptr || entry->spec != slice.spec) {
      return absl::InvalidArgumentError(absl::StrCat(
          tensors->path(), ": tensor ", slice.spec.name, " is ",
          entry == nullptr ? "missing" : Describe(entry->spec),
          ", this run's model has ", Describe(slice.spec),
          "; resume with the config that the checkpoint was made with"));
    }
    const absl::string_view bytes = tensors->Bytes(*entry);
    RETURN_IF_ERROR(StatusFromTorch([&] {
      at::Tensor flat = slice.flat;
      flat.copy_(at::from_blob(const_cast<char*>(bytes.data()), flat.sizes(),
                               flat.options().device(at::kCPU)));
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

absl::Status ImportRandom(const nlohmann::json& states, at::Device device) {
  std::vector<at::Generator> generators = Generators(device);
  // A run that moves to another kind of device keeps the generators it has.
  for (size_t i = 0; i < std::min(states.size(), generators.size()); ++i) {
    std::string bytes;
    if (!states[i].is_string() ||
        !absl::Base64Unescape(states[i].get<std::string>(), &bytes)) {
      return absl::DataLossError("state.json: \"random\" is not base64");
    }
    RETURN_IF_ERROR(StatusFromTorch([&] {
      const std::lock_guard<std::mutex> lock(generators[i].mutex());
      generators[i].set_state(at::from_blob(
          bytes.data(), {static_cast<int64_t>(bytes.size())}, at::kByte));
    }));
  }
  return absl::OkStatus();
}

absl::Status ImportScaler(const nlohmann::json& json, LossScaler* scaler) {
  if (scaler == nullptr) return absl::OkStatus();
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        "the checkpoint has no loss scaler, but this run's precision needs "
        "one; resume with the precision it was made with");
  }
  scaler->ImportState(
      {.scale = json.value("scale", 0.0),
       .steps_since_change = json.value("steps_since_change", int64_t{0}),
       .skipped_steps = json.value("skipped_steps", int64_t{0})});
  return absl::OkStatus();
}

}  // namespace

absl::Status AddTensors(const TrainingState& state, CheckpointWriter* writer) {
  const at::Device device = state.parameters->options().device;
  ASSIGN_OR_RETURN(
      const SlicesFile model,
      CreateFile(kModelFile, ModelSlices(*state.parameters), device, writer));
  ASSIGN_OR_RETURN(
      const SlicesFile optimizer,
      CreateFile(kOptimizerFile, OptimizerSlices(state), device, writer));
  Synchronize(device);  // the other thread has a stream of its own
  // The system lets one thread at a time write a file, at the speed of one
  // core's copy.
  std::future<absl::Status> other =
      std::async(std::launch::async, [&] { return WriteSlices(optimizer); });
  absl::Status written = WriteSlices(model);
  written.Update(other.get());
  return written;
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

absl::Status Restore(const Checkpoint& checkpoint, const TrainingState& state) {
  RETURN_IF_ERROR(RestoreParameters(checkpoint, state.parameters));
  RETURN_IF_ERROR(
      ReadSlices(checkpoint, kOptimizerFile, OptimizerSlices(state)));
  const nlohmann::json& json = checkpoint.state();
  if (!json.contains("optimizer_step") || !json.contains("random")) {
    return absl::DataLossError(absl::StrCat(
        checkpoint.folder(), "/state.json lacks optimizer_step or random"));
  }
  state.optimizer->step().fill_(json["optimizer_step"].get<int64_t>());
  RETURN_IF_ERROR(
      ImportRandom(json["random"], state.parameters->options().device));
  return ImportScaler(json.value("loss_scaler", nlohmann::json()),
                      state.scaler);
}

absl::Status RestoreParameters(const Checkpoint& checkpoint,
                               ParameterStore* parameters) {
  const at::NoGradGuard no_grad;
  RETURN_IF_ERROR(ReadSlices(checkpoint, kModelFile, ModelSlices(*parameters)));
  return StatusFromTorch([&] { parameters->RefreshShadow(); });
}

}  // namespace tessera
