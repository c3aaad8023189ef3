#include "trainers/run/training_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/checkpoint/scalar_type.h"
#include "framework/cuda/device.h"
#include "framework/cuda/page_locked.h"
#include "framework/program/random_state.h"

namespace tessera {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;

// A tensor of the state as a checkpoint stores it: a parameter's weights, one
// of its moments or its average.
struct StateTensor {
  enum class Of { kWeights, kExpAvg, kExpAvgSq, kRowMoments, kEma };

  TensorSpec spec;
  at::ScalarType dtype;
  Of of = Of::kWeights;
  const ParameterSlice* slice = nullptr;

  int64_t numel() const {
    return of == Of::kRowMoments ? slice->shape[0] : slice->numel;
  }
  // The place of a moment or an average in a buffer that ranks do not divide.
  int64_t place() const {
    return of == Of::kRowMoments ? *slice->row_moments : slice->offset;
  }
};

constexpr char kExpAvg[] = "exp_avg.", kExpAvgSq[] = "exp_avg_sq.",
               kMomentum[] = "momentum.", kRowMoments[] = "row_exp_avg_sq.";

TensorSpec SpecOf(absl::string_view prefix, const ParameterSlice& slice,
                  at::ScalarType dtype) {
  return {.name = absl::StrCat(prefix, slice.name),
          .dtype = StoredDtypeOf(dtype),
          .shape = slice.shape};
}

std::vector<StateTensor> ModelTensors(const StateLayout& layout) {
  std::vector<StateTensor> tensors;
  for (const ParameterSlice& slice : layout.parameters) {
    tensors.push_back({.spec = SpecOf("", slice, layout.master),
                       .dtype = layout.master,
                       .slice = &slice});
  }
  return tensors;
}

// The moments of trained parameters; Muon has only the first.
std::vector<StateTensor> OptimizerTensors(const StateLayout& layout) {
  const at::ScalarType dtype = layout.master;
  std::vector<StateTensor> tensors;
  for (const ParameterSlice& slice : layout.parameters) {
    if (!slice.trainable) continue;
    tensors.push_back({SpecOf(slice.muon ? kMomentum : kExpAvg, slice, dtype),
                       dtype, StateTensor::Of::kExpAvg, &slice});
    if (slice.row_moments.has_value()) {
      TensorSpec rows = SpecOf(kRowMoments, slice, dtype);
      rows.shape = {slice.shape[0]};
      tensors.push_back(
          {std::move(rows), dtype, StateTensor::Of::kRowMoments, &slice});
    }
    if (slice.muon) continue;
    tensors.push_back({SpecOf(kExpAvgSq, slice, dtype), dtype,
                       StateTensor::Of::kExpAvgSq, &slice});
  }
  return tensors;
}

std::vector<TensorSpec> SpecsOf(std::vector<StateTensor> tensors) {
  std::vector<TensorSpec> specs;
  for (StateTensor& tensor : tensors) specs.push_back(std::move(tensor.spec));
  return specs;
}

// The averages of trained parameters, and the weights of frozen ones, so that
// the file is a model.
std::vector<StateTensor> EmaTensors(const StateLayout& layout) {
  std::vector<StateTensor> tensors;
  for (const ParameterSlice& slice : layout.parameters) {
    const at::ScalarType dtype = slice.trainable ? at::kFloat : layout.master;
    tensors.push_back(
        {SpecOf("", slice, dtype), dtype,
         slice.trainable ? StateTensor::Of::kEma : StateTensor::Of::kWeights,
         &slice});
  }
  return tensors;
}

// Whether the names in a file are those of averages.
bool IsEmaFile(absl::string_view name) {
  return absl::StartsWith(name, absl::StripSuffix(kEmaFile, ".safetensors"));
}

StateLayout LayoutOf(const ParameterStore& parameters) {
  return {.parameters = parameters.slices(),
          .master = parameters.options().weights.master};
}

// The tensors of `files`, in their order.
std::vector<StateTensor> TensorsOf(const ParameterStore& parameters,
                                   const std::vector<TensorFile>& files) {
  const StateLayout layout = LayoutOf(parameters);
  absl::flat_hash_map<std::string, StateTensor> by_name, averages;
  for (const StateTensor& tensor : EmaTensors(layout)) {
    averages.emplace(tensor.spec.name, tensor);
  }
  for (const auto& tensors : {ModelTensors(layout), OptimizerTensors(layout)}) {
    for (const StateTensor& tensor : tensors) {
      by_name.emplace(tensor.spec.name, tensor);
    }
  }
  std::vector<StateTensor> found;
  for (const TensorFile& file : files) {
    for (const TensorSpec& spec : file.tensors) {
      found.push_back(
          (IsEmaFile(file.name) ? averages : by_name).at(spec.name));
    }
  }
  return found;
}

// Elements [begin, begin + staging.numel()) of a tensor in host memory: in
// `staging`, or a view of where they are.
at::Tensor ReadPiece(const StateBuffers& from, const StateTensor& tensor,
                     int64_t begin, const at::Tensor& staging) {
  const ParameterSlice& slice = *tensor.slice;
  const auto piece = [&](const at::Tensor& buffer, int64_t place) {
    const at::Tensor values = buffer.narrow(0, place + begin, staging.numel());
    return values.is_cpu() ? values : staging.copy_(values);
  };
  if (tensor.of == StateTensor::Of::kExpAvg) {
    return piece(from.exp_avg, from.kept.exp_avg.PlaceOf(tensor.place()));
  }
  if (tensor.of == StateTensor::Of::kEma) {
    return piece(from.ema, from.kept.ema.PlaceOf(tensor.place()));
  }
  if (tensor.of != StateTensor::Of::kWeights) {
    return piece(from.exp_avg_sq, from.kept.exp_avg_sq.PlaceOf(tensor.place()));
  }
  if (!slice.weights.split) {
    return piece(from.weights.master,
                 from.kept.master.PlaceOf(slice.weights.offset));
  }
  ParameterSlice placed = slice;
  placed.weights.offset = from.kept.halves.PlaceOf(slice.weights.offset);
  ReadMaster(from.weights, placed, begin, staging);
  return staging;
}

// The elements of a tensor of which this rank has any.
HeldRange HeldOf(const ParameterStore& parameters, const StateTensor& tensor) {
  if (tensor.of == StateTensor::Of::kRowMoments) {
    return parameters.HeldRowsOf(*tensor.slice);
  }
  return tensor.of == StateTensor::Of::kWeights
             ? parameters.HeldOf(*tensor.slice)
             : parameters.HeldOf(parameters.divisions().moments, *tensor.slice);
}

// Overwrites elements from `begin` on by values of any dtype.
void WritePiece(const StateTensor& tensor, int64_t begin,
                const at::Tensor& values, ParameterStore* parameters,
                const StateBuffers& to) {
  if (tensor.of == StateTensor::Of::kWeights) {
    parameters->Write(*tensor.slice, begin, values);
    return;
  }
  WriteHeld(tensor.of == StateTensor::Of::kExpAvg ? to.exp_avg
            : tensor.of == StateTensor::Of::kEma  ? to.ema
                                                  : to.exp_avg_sq,
            HeldOf(*parameters, tensor), begin, values);
}

// Calls fn(begin, count) for the pieces of elements [begin, end) of a tensor.
// So a model passes through bounded host memory, and no copy of it is on the
// device.
template <typename Fn>
absl::Status ForEachPiece(const StateTensor& tensor, int64_t begin, int64_t end,
                          const Fn& fn) {
  const int64_t most =
      kPieceBytes / static_cast<int64_t>(c10::elementSize(tensor.dtype));
  for (; begin < end; begin += most) {
    RETURN_IF_ERROR(fn(begin, std::min(most, end - begin)));
  }
  return absl::OkStatus();
}

// A file of a checkpoint while it is written.
struct OpenFile {
  std::vector<StateTensor> tensors;
  SafetensorsWriter* file = nullptr;
};

// `staging` is host memory for a piece, pinned for data from a GPU: copies
// reach 50 GB/s, against 1.6 GB/s into new memory for every tensor, because of
// page faults.
absl::Status WriteTensors(const StateBuffers& from, const OpenFile& to,
                          const at::Tensor& staging) {
  return StatusFromTorchOr([&]() -> absl::Status {
    const at::NoGradGuard no_grad;
    for (const StateTensor& tensor : to.tensors) {
      const at::Tensor room = staging.view(tensor.dtype);
      RETURN_IF_ERROR(ForEachPiece(
          tensor, 0, tensor.numel(), [&](int64_t begin, int64_t count) {
            const at::Tensor piece =
                ReadPiece(from, tensor, begin, room.narrow(0, 0, count));
            return to.file->Write(absl::string_view(
                static_cast<const char*>(piece.const_data_ptr()),
                piece.nbytes()));
          }));
    }
    return to.file->Finish();
  });
}

std::string Describe(const TensorSpec& spec) {
  return absl::StrCat(Name(spec.dtype), " [", absl::StrJoin(spec.shape, ", "),
                      "]");
}

enum class Dtypes { kSame, kConverted };

// The dtype of the values in a file that become the tensor `spec`; nullopt if
// they cannot.
std::optional<at::ScalarType> StoredAs(const StoredTensor* stored,
                                       const TensorSpec& spec, Dtypes dtypes) {
  if (stored == nullptr || stored->spec.shape != spec.shape ||
      (dtypes == Dtypes::kSame && stored->spec.dtype != spec.dtype)) {
    return std::nullopt;
  }
  return ScalarTypeOf(stored->spec.dtype);
}

// Checks that a file has the tensors `wanted` and no others.
absl::Status CheckTensors(const Checkpoint& checkpoint, absl::string_view file,
                          const std::vector<StateTensor>& wanted,
                          Dtypes dtypes) {
  ASSIGN_OR_RETURN(const StoredTensors* tensors, checkpoint.Tensors(file));
  const std::string advice =
      dtypes == Dtypes::kSame
          ? "; resume with the config that the checkpoint was made with"
          : absl::StrCat("; set the fields of model as in ",
                         checkpoint.config_source());
  if (tensors->num_tensors() != wanted.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        tensors->path(), " holds ", tensors->num_tensors(),
        " tensors, but this run's model has ", wanted.size(), advice));
  }
  for (const StateTensor& tensor : wanted) {
    const TensorSpec& spec = tensor.spec;
    const StoredTensor* found = tensors->Find(spec.name);
    if (StoredAs(found, spec, dtypes).has_value()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        tensors->path(), ": tensor ", spec.name, " is ",
        found == nullptr ? "missing" : Describe(found->spec),
        ", but in this run's model it is ", Describe(spec), advice));
  }
  return absl::OkStatus();
}

// Checks that each parameter's moments are those of this run's optimizer.
absl::Status CheckOptimizer(const Checkpoint& checkpoint,
                            const StateLayout& layout) {
  ASSIGN_OR_RETURN(const StoredTensors* tensors,
                   checkpoint.Tensors(kOptimizerFile));
  for (const ParameterSlice& slice : layout.parameters) {
    const char* const other = slice.muon ? kExpAvg : kMomentum;
    if (!slice.trainable ||
        tensors->Find(absl::StrCat(other, slice.name)) == nullptr) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        tensors->path(), ": ", slice.name, " was trained by ",
        slice.muon ? "AdamW" : "Muon", ", but this run trains it by ",
        slice.muon ? "Muon" : "AdamW",
        "; resume with the optimizer.muon that the checkpoint was made with, "
        "or start from its weights (checkpoint.init_from)"));
  }
  return absl::OkStatus();
}

// Reads what this rank has of tensors for which CheckTensors() holds.
absl::Status ReadTensors(const Checkpoint& checkpoint, absl::string_view file,
                         const std::vector<StateTensor>& wanted, Dtypes dtypes,
                         ParameterStore* parameters, const StateBuffers& to) {
  ASSIGN_OR_RETURN(const StoredTensors* tensors, checkpoint.Tensors(file));
  for (const StateTensor& tensor : wanted) {
    const StoredTensor* found = tensors->Find(tensor.spec.name);
    const auto dtype = StoredAs(found, tensor.spec, dtypes);
    TESSERA_CHECK(dtype.has_value());
    const HeldRange held = HeldOf(*parameters, tensor);
    RETURN_IF_ERROR(StatusFromTorchOr([&] {
      const at::Tensor values =
          at::from_blob(const_cast<char*>(found->bytes.data()),
                        {tensor.numel()}, at::dtype(*dtype));
      return ForEachPiece(tensor, held.begin, held.begin + held.numel,
                          [&](int64_t begin, int64_t count) {
                            WritePiece(tensor, begin,
                                       values.narrow(0, begin, count),
                                       parameters, to);
                            return absl::OkStatus();
                          });
    }));
  }
  return absl::OkStatus();
}

// Restores the average, if the run has one.
absl::Status RestoreEma(const Checkpoint& checkpoint,
                        const TrainingState& state,
                        const StateBuffers& buffers) {
  Ema* const ema = state.optimizer->ema();
  if (ema == nullptr) return absl::OkStatus();
  if (!checkpoint.Tensors(kEmaFile).ok()) return ema->Restart();
  std::vector<StateTensor> averages = EmaTensors(LayoutOf(*state.parameters));
  std::erase_if(averages, [](const StateTensor& tensor) {
    return tensor.of != StateTensor::Of::kEma;
  });
  return ReadTensors(checkpoint, kEmaFile, averages, Dtypes::kSame,
                     state.parameters, buffers);
}

nlohmann::json ExportRandom(at::Device device) {
  nlohmann::json states = nlohmann::json::array();
  RandomState random = RandomState::Now(device);
  for (const at::Tensor& state : random.values()) {
    states.push_back(absl::Base64Escape(absl::string_view(
        static_cast<const char*>(state.const_data_ptr()), state.nbytes())));
  }
  return states;
}

absl::Status ImportRandom(std::vector<std::string> states, at::Device device,
                          JsonFields* fields) {
  RandomState random = RandomState::Now(device);
  const absl::Status status = StatusFromTorch([&] {
    // A run that moves to another kind of device keeps its own generators.
    const size_t count = std::min(states.size(), random.values().size());
    for (size_t i = 0; i < count; ++i) {
      random.values()[i] =
          at::from_blob(states[i].data(),
                        {static_cast<int64_t>(states[i].size())}, at::kByte);
    }
    random.Restore();
  });
  if (status.ok()) return status;
  fields->Fail("random", absl::StrCat("the state of LibTorch's generators (",
                                      status.message(), ")"));
  return fields->status();
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
  for (const at::Tensor& buffer : {exp_avg, exp_avg_sq, ema}) {
    if (buffer.defined()) defined.push_back(buffer);
  }
  return defined;
}

StateBuffers BuffersOf(const TrainingState& state) {
  StateBuffers buffers = {.weights = state.parameters->weights(),
                          .exp_avg = state.optimizer->exp_avg(),
                          .exp_avg_sq = state.optimizer->exp_avg_sq()};
  buffers.weights.shadow.reset();
  if (const Ema* const ema = state.optimizer->ema(); ema != nullptr) {
    buffers.ema = ema->average();
  }
  return buffers;
}

absl::StatusOr<StateFiles> ShareState(const TrainingState& state, int index,
                                      int writers, uint64_t max_file_bytes) {
  const StateLayout layout = LayoutOf(*state.parameters);
  StateFiles files;
  ASSIGN_OR_RETURN(files.model,
                   DivideIntoFiles(kModelFile, SpecsOf(ModelTensors(layout)),
                                   max_file_bytes));
  ASSIGN_OR_RETURN(
      files.optimizer,
      DivideIntoFiles(kOptimizerFile, SpecsOf(OptimizerTensors(layout)),
                      max_file_bytes));
  std::vector<TensorFile> all = files.model;
  all.insert(all.end(), files.optimizer.begin(), files.optimizer.end());
  if (state.optimizer->ema() != nullptr) {
    ASSIGN_OR_RETURN(
        files.ema,
        DivideIntoFiles(kEmaFile, SpecsOf(EmaTensors(layout)), max_file_bytes));
    all.insert(all.end(), files.ema.begin(), files.ema.end());
  }
  std::vector<uint64_t> bytes;
  for (const TensorFile& file : all) bytes.push_back(file.bytes);
  const std::vector<int> shares = ShareFiles(bytes, writers);
  for (size_t i = 0; i < all.size(); ++i) {
    if (shares[i] == index) files.own.push_back(std::move(all[i]));
  }
  return files;
}

StateBuffers::Kept KeptFor(const TrainingState& state,
                           const std::vector<TensorFile>& files) {
  std::vector<std::pair<int64_t, int64_t>> master, halves, exp_avg, exp_avg_sq,
      ema;
  for (const StateTensor& tensor : TensorsOf(*state.parameters, files)) {
    const ParameterSlice& slice = *tensor.slice;
    const auto add = [&](int64_t begin, auto* ranges) {
      ranges->emplace_back(begin, begin + tensor.numel());
    };
    if (tensor.of == StateTensor::Of::kExpAvg) {
      add(tensor.place(), &exp_avg);
    } else if (tensor.of == StateTensor::Of::kEma) {
      add(tensor.place(), &ema);
    } else if (tensor.of != StateTensor::Of::kWeights) {
      add(tensor.place(), &exp_avg_sq);
    } else {
      add(slice.weights.offset, slice.weights.split ? &halves : &master);
    }
  }
  return {.master = KeptRanges(std::move(master)),
          .halves = KeptRanges(std::move(halves)),
          .exp_avg = KeptRanges(std::move(exp_avg)),
          .exp_avg_sq = KeptRanges(std::move(exp_avg_sq)),
          .ema = KeptRanges(std::move(ema))};
}

absl::Status AddTensors(const TrainingState& state, const StateFiles& files,
                        const StateBuffers& from, CheckpointWriter* writer) {
  if (files.own.empty()) return absl::OkStatus();
  const std::vector<at::Tensor> buffers = from.Defined();
  const at::Device device = buffers.empty() ? state.parameters->options().device
                                            : buffers.front().device();
  std::vector<OpenFile> open;
  for (const TensorFile& file : files.own) {
    open.push_back({.tensors = TensorsOf(*state.parameters, {file})});
    ASSIGN_OR_RETURN(open.back().file,
                     writer->AddTensorFile(file.name, file.tensors));
  }
  Synchronize(device);  // the other thread uses its own stream
  std::atomic<size_t> next = 0;
  const auto write = [&]() -> absl::Status {
    at::Tensor staging;
    RETURN_IF_ERROR(StatusFromTorch(
        [&] { staging = HostMemoryFor(device, {kPieceBytes}, at::kByte); }));
    for (size_t i; (i = next++) < open.size();) {
      RETURN_IF_ERROR(WriteTensors(from, open[i], staging));
    }
    return absl::OkStatus();
  };
  // Two threads, because the system writes a file at the speed of one core's
  // copy.
  std::future<absl::Status> other = std::async(std::launch::async, write);
  absl::Status written = write();
  written.Update(other.get());
  return written;
}

absl::Status AddIndices(const StateFiles& files, CheckpointWriter* writer) {
  for (const auto& [name, all] : {std::pair(kModelFile, &files.model),
                                  std::pair(kOptimizerFile, &files.optimizer),
                                  std::pair(kEmaFile, &files.ema)}) {
    if (all->size() <= 1) continue;
    RETURN_IF_ERROR(writer->AddText(IndexName(name), IndexOf(*all)));
  }
  return absl::OkStatus();
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
  RETURN_IF_ERROR(CheckTensors(checkpoint, kModelFile, ModelTensors(layout),
                               Dtypes::kSame));
  RETURN_IF_ERROR(CheckOptimizer(checkpoint, layout));
  if (checkpoint.Tensors(kEmaFile).ok()) {
    RETURN_IF_ERROR(
        CheckTensors(checkpoint, kEmaFile, EmaTensors(layout), Dtypes::kSame));
  }
  return CheckTensors(checkpoint, kOptimizerFile, OptimizerTensors(layout),
                      Dtypes::kSame);
}

absl::Status Restore(const Checkpoint& checkpoint, const TrainingState& state) {
  StateLayout layout = LayoutOf(*state.parameters);
  layout.has_scaler = state.scaler != nullptr;
  RETURN_IF_ERROR(CheckRestore(checkpoint, layout));
  JsonFields fields = StateFields(checkpoint);
  const SavedState saved = ReadState(checkpoint, &fields);
  const at::NoGradGuard no_grad;
  const StateBuffers buffers = BuffersOf(state);
  ParameterStore* const parameters = state.parameters;
  RETURN_IF_ERROR(ReadTensors(checkpoint, kModelFile, ModelTensors(layout),
                              Dtypes::kSame, parameters, buffers));
  RETURN_IF_ERROR(ReadTensors(checkpoint, kOptimizerFile,
                              OptimizerTensors(layout), Dtypes::kSame,
                              parameters, buffers));
  RETURN_IF_ERROR(RestoreEma(checkpoint, state, buffers));
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
  return CheckTensors(checkpoint, kModelFile, ModelTensors(layout),
                      Dtypes::kConverted);
}

absl::Status RestoreParameters(const Checkpoint& checkpoint,
                               ParameterStore* parameters) {
  const StateLayout layout = LayoutOf(*parameters);
  RETURN_IF_ERROR(CheckRestoreParameters(checkpoint, layout));
  const at::NoGradGuard no_grad;
  return ReadTensors(checkpoint, kModelFile, ModelTensors(layout),
                     Dtypes::kConverted, parameters, {});
}

}  // namespace tessera
