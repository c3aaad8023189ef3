#include "framework/program/executor.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ATen/ATen.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/grad_mode.h"
#include "absl/base/call_once.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "c10/core/StreamGuard.h"
#include "framework/base/check.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_graph.h"
#include "framework/cuda/device.h"

namespace tessera {
namespace {

// A tensor over memory that another tensor owns and that outlives it.
at::Tensor Over(const at::Tensor& memory, int64_t offset,
                const TensorType& type) {
  char* const base = static_cast<char*>(memory.mutable_data_ptr());
  return at::for_blob(base + offset, type.shape)
      .options(memory.options().dtype(type.dtype))
      .target_device(memory.device())
      .make_tensor();
}

OpResults ResultsOf(const Schedule& schedule, const StepRun& run) {
  switch (run.kind) {
    case StepRun::Kind::kForward:
      return OpResults::kActivations;
    case StepRun::Kind::kTask:
      return IsCollective(schedule, run) ? OpResults::kCommunication
                                         : OpResults::kOther;
    default:
      return OpResults::kGradients;
  }
}

// `status` of a run, with the name of its op or task.
absl::Status NameRun(const Schedule& schedule, const StepRun& run,
                     const absl::Status& status) {
  if (status.ok()) return status;
  const std::string name =
      run.op < 0 ? schedule.NameOf(run) : schedule.program->ops()[run.op].name;
  return absl::Status(status.code(), absl::StrCat(run.op < 0 ? "" : "op ", name,
                                                  " (", PhaseName(run.phase),
                                                  "): ", status.message()));
}

// Calls each function of MKL's vector math once, before several threads do.
//
// ATen computes exp(), cos(), sqrt() and others of contiguous tensors on a CPU
// with MKL, in several threads. MKL chooses a function's kernel at its first
// call, and if several threads make that call at the same time, one of them may
// run a kernel that is accurate to half of the digits (oneMKL 2024.2, which
// LibTorch 2.11 contains; https://github.com/pytorch/pytorch/issues/188792).
// Some runs had another RoPE table, and so other bits from the first step on
// (docs/experiments/mkl_first_call).
void ChooseVectorMathKernels() {
  static absl::once_flag once;
  absl::call_once(once, [] {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      // The functions of ATen/cpu/vml.h that call MKL.
      const at::Tensor x = at::full({1}, 0.5, dtype);
      for (const auto function :
           {at::acos, at::asin, at::atan, at::cos, at::erf, at::erfc,
            at::erfinv, at::exp, at::log, at::log10, at::log2, at::sin,
            at::sqrt, at::tan, at::tanh, at::trunc}) {
        function(x);
      }
    }
  });
}

}  // namespace

Executor::Executor(const Schedule& schedule, Lifetimes lifetimes,
                   ParameterStore& store, const ExecutorOptions& options)
    : schedule_(schedule),
      lifetimes_(std::move(lifetimes)),
      store_(store),
      phases_(options.phases),
      tasks_(options.tasks),
      tensors_(schedule.values.size()),
      places_(1),
      random_(schedule.program->ops().size()),
      ended_(schedule.runs.size()),
      first_backward_(schedule.FirstBackward()) {
  ChooseVectorMathKernels();
  const at::Device device = store.options().device;
  for (const ValueInfo& info : schedule.values) {
    options_.push_back(at::device(device).dtype(info.type.dtype));
  }
  if (options.arena.defined()) {
    TESSERA_CHECK(
        static_cast<int64_t>(options.arena.nbytes()) >= lifetimes_.arena_bytes,
        "the arena is too small");
    arena_ = options.arena;
  } else if (lifetimes_.arena_bytes > 0) {
    arena_ = at::empty({lifetimes_.arena_bytes},
                       at::device(device).dtype(at::kByte));
  }
  for (const ProgramConstant& constant : schedule.program->constants()) {
    SetInput(constant.value, options.constants != nullptr
                                 ? options.constants->Get(constant.value)
                                 : constant.make(device));
  }
  BindParameters();
  for (const StepRun& run : schedule.runs) {
    if (run.micro_batch == 1 && schedule.repetitions() > 1) {
      const int index = static_cast<int>(entries_.size());
      if (repeated_end_ == 0) repeated_begin_ = index;
      repeated_end_ = index + 1;
    }
    Entry entry = {.run = &run};
    entry.name = schedule.NameOf(run);
    entry.results = ResultsOf(schedule, run);
    if (run.op >= 0 && run.kind != StepRun::Kind::kAdd) {
      entry.op = schedule.program->ops()[run.op].op.get();
    }
    entry.place = PlaceOf(run);
    BindOutputs(&entry);
    entries_.push_back(std::move(entry));
    for (const int earlier : run.waits) entries_[earlier].signals = true;
    std::optional<c10::Stream>& stream = streams_[static_cast<int>(run.stream)];
    if (run.stream != StepStream::kMain && device.is_cuda() &&
        !stream.has_value()) {
      // What the step waits for comes first: a graph is recorded on a stream of
      // high priority.
      stream = StreamFromPool(device);
    }
  }
}

void Executor::SetInput(int value, at::Tensor tensor) {
  const ValueInfo& info = schedule_.values[value];
  TESSERA_CHECK(info.role == Role::kInput, info.name, " is no input");
  TESSERA_CHECK(tensor.sizes() == at::IntArrayRef(info.type.shape) &&
                    tensor.scalar_type() == info.type.dtype &&
                    tensor.is_contiguous(),
                info.name, " must be ", ToString(info.type));
  tensors_[value] = std::move(tensor);
}

void Executor::BindParameters() {
  const at::NoGradGuard no_grad;
  const auto& blocks = schedule_.program->parameters();
  for (size_t v = 0; v < schedule_.values.size(); ++v) {
    const ValueInfo& info = schedule_.values[v];
    if (info.role != Role::kParameter) continue;
    const Parameter& parameter = store_.Get(blocks[info.parameter].name);
    // Ops do not read what ranks divide, but what was fetched of it.
    if (!parameter.whole()) continue;
    tensors_[v] = parameter.As(info.type.dtype).detach();
  }
}

at::Tensor Executor::FixedTensor(const Buffer& buffer, int64_t offset,
                                 const TensorType& type) const {
  return Over(
      buffer.storage == Storage::kArena ? arena_ : store_.grad().detach(),
      buffer.offset + offset, type);
}

int Executor::PlaceOf(const StepRun& run) {
  std::vector<absl::string_view> place;
  const absl::Span<const ProgramScope> scopes = schedule_.program->scopes();
  for (int s = schedule_.ScopeOf(run); s > 0; s = scopes[s].parent) {
    place.push_back(scopes[s].name);
  }
  place.push_back(PhaseName(run.phase));
  if (run.phase == Phase::kRecompute) {
    place.push_back(PhaseName(Phase::kBackward));
  }
  std::reverse(place.begin(), place.end());
  if (places_.back() != place) places_.push_back(std::move(place));
  return static_cast<int>(places_.size()) - 1;
}

void Executor::BindOutputs(Entry* entry) {
  const StepRun& run = *entry->run;
  const auto bind = [&](int value) {
    if (lifetimes_.buffer_of[value] < 0) return;  // an input, set by a task
    const Buffer& buffer = lifetimes_.buffers[lifetimes_.buffer_of[value]];
    Output output = {.value = value};
    if (buffer.storage == Storage::kArena ||
        buffer.storage == Storage::kGradients) {
      output.from = Output::From::kFixed;
      output.fixed = FixedTensor(buffer, lifetimes_.offset_in_buffer[value],
                                 schedule_.values[value].type);
    } else if (lifetimes_.written_over[value] >= 0) {
      output.from = Output::From::kValue;
      output.over = lifetimes_.written_over[value];
    } else if (buffer.storage == Storage::kOp) {
      output.from = Output::From::kOp;
    }
    entry->outputs.push_back(std::move(output));
  };
  if (run.kind != StepRun::Kind::kBackward) {
    for (const int value : run.results) bind(value);
  }
  const auto& blocks = schedule_.program->parameters();
  for (const GradientWrite& write : run.d_operands) {
    GradTarget target;
    if (write.value >= 0) {
      bind(write.value);
    } else if (write.parameter >= 0) {
      target.grad = store_.Get(blocks[write.parameter].name).grad();
    }
    entry->d_operands.push_back(std::move(target));
  }
}

void Executor::Run(int begin, int end) {
  const at::NoGradGuard no_grad;
  // Dispatches below autograd, which has nothing to record here.
  const at::AutoDispatchBelowADInplaceOrView below;
  // If a run throws (out of memory), no value stays allocated.
  auto release = absl::MakeCleanup([this] {
    for (const Buffer& buffer : lifetimes_.buffers) {
      for (const int value : buffer.values) tensors_[value].reset();
    }
    operands_.clear();
    results_.clear();
    d_results_.clear();
    try {
      // LibTorch does not recover from a recording that ends with an open
      // branch.
      Join();
    } catch (const c10::Error&) {
      // The recording has failed already.
    }
    Enter(0);
  });
  int repetition = 1;
  for (int i = begin; i < end; ++i) {
    if (i == repeated_end_ && i > 0 && repetition < schedule_.repetitions()) {
      ++repetition;
      i = repeated_begin_;
      Join();
    }
    if (i == repeated_begin_ && repeated_end_ > 0) {
      tasks_->BeginRepetition(*this, repetition);
    }
    if (i == first_backward_ && kept_bytes_ == 0) kept_bytes_ = live_bytes();
    Enter(entries_[i].place);
    const OpScope op(phases_, entries_[i].name, entries_[i].results);
    const absl::Status status = StatusFromTorch([&] { RunEntry(i); });
    ThrowIfError(NameRun(schedule_, *entries_[i].run, status));
    for (const int value : lifetimes_.dead_after[i]) tensors_[value].reset();
  }
  Join();
  Enter(0);
  std::move(release).Cancel();
}

void Executor::RunEntry(int run) {
  const int s = static_cast<int>(entries_[run].run->stream);
  if (!streams_[s].has_value()) {
    RunOn(CurrentStream(store_.options().device), run);
    return;
  }
  if (!std::exchange(branched_[s], true)) {
    MakeWait(*streams_[s], CurrentStream(store_.options().device));
  }
  const c10::StreamGuard on(*streams_[s]);
  RunOn(*streams_[s], run);
}

void Executor::RunOn(c10::Stream stream, int run) {
  Entry& entry = entries_[run];
  for (const int earlier : entry.run->waits) {
    if (ended_[earlier].has_value()) ended_[earlier]->block(stream);
  }
  Do(entry);
  // Without other streams, runs take their turn.
  if (!entry.signals || !stream.device().is_cuda()) return;
  ended_[run].emplace(stream.device_type());
  ended_[run]->record(stream);
}

void Executor::Join() {
  for (int s = 0; s < kStepStreams; ++s) {
    if (!std::exchange(branched_[s], false)) continue;
    MakeWait(CurrentStream(streams_[s]->device()), *streams_[s]);
  }
}

void Executor::Enter(int place) {
  if (phases_ == nullptr || place == place_) return;
  const std::vector<absl::string_view>& from = places_[place_];
  const std::vector<absl::string_view>& to = places_[place];
  const size_t common =
      std::mismatch(from.begin(), from.end(), to.begin(), to.end()).first -
      from.begin();
  for (size_t i = from.size(); i > common; --i) phases_->End();
  for (size_t i = common; i < to.size(); ++i) phases_->Begin(to[i]);
  place_ = place;
}

void Executor::Do(Entry& entry) {
  const StepRun& run = *entry.run;
  for (const Output& output : entry.outputs) Allocate(output);
  const auto gather = [this](const std::vector<int>& values,
                             std::vector<at::Tensor>* tensors) {
    tensors->clear();
    for (const int value : values) {
      tensors->push_back(value < 0 ? at::Tensor() : tensors_[value]);
    }
  };
  gather(run.operands, &operands_);
  gather(run.results, &results_);
  switch (run.kind) {
    case StepRun::Kind::kForward:
      Forward(entry);
      break;
    case StepRun::Kind::kBackward:
    case StepRun::Kind::kForwardBackward:
      gather(run.d_results, &d_results_);
      Backward(entry);
      break;
    case StepRun::Kind::kAdd:
      at::add_out(results_[0], operands_[0], operands_[1]);
      break;
    case StepRun::Kind::kTask:
      tasks_->Run(schedule_.tasks[run.task], operands_, results_);
      break;
  }
  operands_.clear();
  results_.clear();
  d_results_.clear();
}

void Executor::Allocate(const Output& output) {
  at::Tensor& tensor = tensors_[output.value];
  const std::vector<int64_t>& shape = schedule_.values[output.value].type.shape;
  switch (output.from) {
    case Output::From::kAllocator:
      tensor = at::empty(shape, options_[output.value]);
      break;
    case Output::From::kOp:
      tensor.reset();
      break;
    case Output::From::kFixed:
      tensor = output.fixed;
      break;
    case Output::From::kValue:
      tensor = tensors_[output.over];
      if (tensor.sizes() != at::IntArrayRef(shape)) tensor = tensor.view(shape);
      break;
  }
}

void Executor::Forward(const Entry& entry) {
  const StepRun& run = *entry.run;
  std::optional<ScopedRandomState> random;
  if (entry.op->random()) {
    const at::Device device = store_.options().device;
    if (run.phase == Phase::kRecompute) {
      random.emplace(random_[run.op], device);
    } else {
      random_[run.op] = RandomState::Now(device);
    }
  }
  entry.op->Forward({.operands = operands_,
                     .results = absl::MakeSpan(results_),
                     .phases = phases_,
                     .spared_multiprocessors = run.spared_multiprocessors});
  if (!entry.op->AllocatesResults()) return;
  for (size_t i = 0; i < run.results.size(); ++i) {
    tensors_[run.results[i]] = results_[i];
  }
}

void Executor::Backward(Entry& entry) {
  const StepRun& run = *entry.run;
  // Also if the op throws: `tensors_` decides how long a gradient lives.
  const absl::Cleanup release = [&] {
    for (size_t i = 0; i < run.d_operands.size(); ++i) {
      if (run.d_operands[i].value >= 0) entry.d_operands[i].grad.reset();
    }
  };
  for (size_t i = 0; i < run.d_operands.size(); ++i) {
    const GradientWrite& write = run.d_operands[i];
    GradTarget& target = entry.d_operands[i];
    if (write.value >= 0) target.grad = tensors_[write.value];
    target.accumulate = write.accumulate;
  }
  std::optional<ScopedRandomState> random;
  if (entry.op->random()) {
    random.emplace(random_[run.op], store_.options().device);
  }
  const BackwardArgs args = {.operands = operands_,
                             .results = results_,
                             .d_results = d_results_,
                             .d_operands = entry.d_operands,
                             .phases = phases_};
  run.kind == StepRun::Kind::kForwardBackward ? entry.op->ForwardBackward(args)
                                              : entry.op->Backward(args);
}

int64_t Executor::live_bytes() const {
  int64_t bytes = 0;
  for (const Buffer& buffer : lifetimes_.buffers) {
    if (buffer.joint) continue;  // weights and gradients
    for (const int value : buffer.values) {
      if (!tensors_[value].defined()) continue;
      bytes += static_cast<int64_t>(tensors_[value].nbytes());
      break;
    }
  }
  return bytes;
}

}  // namespace tessera
