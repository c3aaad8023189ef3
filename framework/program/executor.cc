#include "framework/program/executor.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "ATen/ATen.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "c10/core/StreamGuard.h"
#include "framework/base/check.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_graph.h"
#include "framework/cuda/device.h"

namespace tessera {
namespace {

// What `stream` is given from now on waits for what `other` has been given.
void MakeWait(c10::Stream stream, c10::Stream other) {
  c10::Event given(other.device_type());
  given.record(other);
  given.block(stream);
}

// A tensor over memory that another tensor owns and that outlives it.
at::Tensor Over(const at::Tensor& memory, int64_t offset,
                const TensorType& type) {
  char* const base = static_cast<char*>(memory.mutable_data_ptr());
  return at::for_blob(base + offset, type.shape)
      .options(memory.options().dtype(type.dtype))
      .target_device(memory.device())
      .make_tensor();
}

// `status` of a run, with the name of its op.
absl::Status NameOp(const Program& program, const OpRun& run,
                    const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("op ", program.ops()[run.op].name, " (",
                   PhaseName(run.phase), "): ", status.message()));
}

}  // namespace

Executor::Executor(const Schedule& schedule, Lifetimes lifetimes,
                   ParameterStore& store, PhaseObserver* phases,
                   const SharedMemory& shared)
    : schedule_(schedule),
      lifetimes_(std::move(lifetimes)),
      store_(store),
      phases_(phases),
      tensors_(schedule.values.size()),
      random_(schedule.program->ops().size()) {
  const at::Device device = store.options().device;
  for (const ValueInfo& info : schedule.values) {
    options_.push_back(at::device(device).dtype(info.type.dtype));
  }
  if (shared.arena.defined()) {
    TESSERA_CHECK(
        static_cast<int64_t>(shared.arena.nbytes()) >= lifetimes_.arena_bytes,
        "the arena is too small");
    arena_ = shared.arena;
  } else if (lifetimes_.arena_bytes > 0) {
    arena_ = at::empty({lifetimes_.arena_bytes},
                       at::device(device).dtype(at::kByte));
  }
  for (const ProgramConstant& constant : schedule.program->constants()) {
    SetInput(constant.value, shared.constants != nullptr
                                 ? shared.constants->Get(constant.value)
                                 : constant.make(device));
  }
  BindParameters();
  for (size_t run = 0; run < schedule.runs.size(); ++run) {
    Entry entry = {.run = &schedule.runs[run]};
    entry.name = schedule.NameOf(*entry.run);
    if (entry.run->kind != OpRun::Kind::kAdd) {
      entry.op = schedule.program->ops()[entry.run->op].op.get();
    }
    BindOutputs(static_cast<int>(run), &entry);
    entries_.push_back(std::move(entry));
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
    tensors_[v] = parameter.As(info.type.dtype).detach();
  }
}

at::Tensor Executor::FixedTensor(const Buffer& buffer,
                                 const TensorType& type) const {
  return Over(
      buffer.storage == Storage::kArena ? arena_ : store_.grad().detach(),
      buffer.offset, type);
}

void Executor::BindOutputs(int run_index, Entry* entry) {
  const OpRun& run = *entry->run;
  const auto bind = [&](int value) {
    const Buffer& buffer = lifetimes_.buffers[lifetimes_.buffer_of[value]];
    Output output = {.value = value};
    if (buffer.storage == Storage::kArena ||
        buffer.storage == Storage::kGradients) {
      output.from = Output::From::kFixed;
      output.fixed = FixedTensor(buffer, schedule_.values[value].type);
    } else if (lifetimes_.written_over[value] >= 0) {
      output.from = Output::From::kValue;
      output.over = lifetimes_.written_over[value];
    } else if (buffer.storage == Storage::kOp) {
      output.from = Output::From::kOp;
    }
    entry->outputs.push_back(std::move(output));
  };
  if (run.kind != OpRun::Kind::kBackward) {
    for (const int value : run.results) bind(value);
  }
  const auto& blocks = schedule_.program->parameters();
  for (const GradientWrite& write : run.d_operands) {
    GradTarget target;
    if (write.parameter >= 0) {
      target.grad = store_.Get(blocks[write.parameter].name).grad();
    } else if (write.value >= 0) {
      bind(write.value);
    }
    entry->d_operands.push_back(std::move(target));
  }
}

void Executor::RunForward() {
  RunEntries(0, schedule_.first_backward, /*accumulate=*/false);
}

void Executor::RunBackward(bool accumulate) {
  RunEntries(schedule_.first_backward, static_cast<int>(entries_.size()),
             accumulate);
}

void Executor::RunEntries(int begin, int end, bool accumulate) {
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
    AbandonRunsBeside();
    EnterScope(0, false);
  });
  const bool recorded = IsCapturing(store_.options().device);
  for (int i = begin; i < end; ++i) {
    Entry& entry = entries_[i];
    EnterScope(schedule_.program->ops()[entry.run->op].scope,
               entry.run->phase == Phase::kRecompute);
    const OpScope op(phases_, entry.name);
    const absl::Status status = StatusFromTorch([&] {
      WaitForRunsBeside(i);
      recorded&& entry.run->beside_until > i ? RunBeside(entry, accumulate)
                                             : RunEntry(entry, accumulate);
    });
    ThrowIfError(NameOp(*schedule_.program, *entry.run, status));
    for (const int value : lifetimes_.dead_after[i]) tensors_[value].reset();
  }
  WaitForRunsBeside(static_cast<int>(entries_.size()));
  branched_ = false;
  EnterScope(0, false);
  std::move(release).Cancel();
}

void Executor::RunBeside(Entry& entry, bool accumulate) {
  const c10::Device device = store_.options().device;
  // What the step waits for comes first: a graph is recorded on a stream of
  // high priority.
  if (!side_stream_.has_value()) side_stream_ = StreamFromPool(device);
  MakeWait(*side_stream_, CurrentStream(device));
  branched_ = true;
  c10::Event done(device.type());
  {
    const c10::StreamGuard on(*side_stream_);
    RunEntry(entry, accumulate);
    done.record(*side_stream_);
  }
  beside_.push_back({entry.run->beside_until, std::move(done)});
}

void Executor::AbandonRunsBeside() {
  beside_.clear();
  if (!std::exchange(branched_, false)) return;
  // LibTorch does not recover from a recording that ends with an open branch.
  try {
    MakeWait(CurrentStream(side_stream_->device()), *side_stream_);
  } catch (const c10::Error&) {
    // The recording has failed already.
  }
}

void Executor::WaitForRunsBeside(int run) {
  for (; !beside_.empty() && beside_.front().until <= run;
       beside_.pop_front()) {
    beside_.front().done.block(CurrentStream(store_.options().device));
  }
}

void Executor::EnterScope(int scope, bool recomputes) {
  if (phases_ == nullptr) return;
  if (recomputes != recomputes_) {
    if (scope_ != 0) EnterScope(0, recomputes_);
    recomputes_ = recomputes;
    recomputes ? phases_->Begin("recompute") : phases_->End();
  }
  if (scope == scope_) return;
  const absl::Span<const ProgramScope> scopes = schedule_.program->scopes();
  // A scope has a higher number than the scope that contains it.
  std::vector<int> opened;
  for (int s = scope; s != scope_;) {
    if (s > scope_) {
      opened.push_back(s);
      s = scopes[s].parent;
    } else {
      phases_->End();
      scope_ = scopes[scope_].parent;
    }
  }
  for (auto s = opened.rbegin(); s != opened.rend(); ++s) {
    phases_->Begin(scopes[*s].name);
  }
  scope_ = scope;
}

void Executor::RunEntry(Entry& entry, bool accumulate) {
  const OpRun& run = *entry.run;
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
    case OpRun::Kind::kForward:
      Forward(entry);
      break;
    case OpRun::Kind::kBackward:
    case OpRun::Kind::kForwardBackward:
      gather(run.d_results, &d_results_);
      Backward(entry, accumulate);
      break;
    case OpRun::Kind::kAdd:
      at::add_out(results_[0], operands_[0], operands_[1]);
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
  const OpRun& run = *entry.run;
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
                     .phases = phases_});
  if (!entry.op->AllocatesResults()) return;
  for (size_t i = 0; i < run.results.size(); ++i) {
    tensors_[run.results[i]] = results_[i];
  }
}

void Executor::Backward(Entry& entry, bool accumulate) {
  const OpRun& run = *entry.run;
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
    target.accumulate =
        write.parameter >= 0 && (accumulate || write.accumulate);
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
  run.kind == OpRun::Kind::kForwardBackward ? entry.op->ForwardBackward(args)
                                            : entry.op->Backward(args);
}

int64_t Executor::live_bytes() const {
  int64_t bytes = 0;
  for (const Buffer& buffer : lifetimes_.buffers) {
    for (const int value : buffer.values) {
      if (!tensors_[value].defined()) continue;
      bytes += static_cast<int64_t>(tensors_[value].nbytes());
      break;
    }
  }
  return bytes;
}

}  // namespace tessera
