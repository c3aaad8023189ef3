#include "framework/autograd/saved_tensors.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "framework/base/check.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/saved_variable_hooks.h"

namespace tessera {

// Which storages are held, and by how many saved tensors. A storage cannot be
// freed, and its address not used again, before its last saved tensor is.
class SavedTensorMeter::Ledger {
 public:
  explicit Ledger(absl::Span<const at::Tensor> not_counted) {
    for (const at::Tensor& tensor : not_counted) {
      if (tensor.defined()) not_counted_.insert(Key(tensor));
    }
  }

  void Add(const at::Tensor& tensor) {
    if (!tensor.has_storage() || not_counted_.contains(Key(tensor))) return;
    const absl::MutexLock lock(&mutex_);
    if (++holders_[Key(tensor)] > 1) return;
    live_bytes_ += Bytes(tensor);
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  }

  void Remove(const at::Tensor& tensor) {
    if (!tensor.has_storage() || not_counted_.contains(Key(tensor))) return;
    const absl::MutexLock lock(&mutex_);
    const auto it = holders_.find(Key(tensor));
    if (--it->second > 0) return;
    holders_.erase(it);
    live_bytes_ -= Bytes(tensor);
  }

  int64_t live_bytes() const {
    const absl::MutexLock lock(&mutex_);
    return live_bytes_;
  }
  int64_t peak_bytes() const {
    const absl::MutexLock lock(&mutex_);
    return peak_bytes_;
  }

 private:
  static const void* Key(const at::Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl();
  }
  static int64_t Bytes(const at::Tensor& tensor) {
    return static_cast<int64_t>(tensor.storage().nbytes());
  }

  absl::flat_hash_set<const void*> not_counted_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<const void*, int64_t> holders_ ABSL_GUARDED_BY(mutex_);
  int64_t live_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

namespace {

using Ledger = SavedTensorMeter::Ledger;

// One saved tensor: holds it as autograd itself would.
class CountedTensor : public torch::autograd::SavedVariableHooks {
 public:
  explicit CountedTensor(std::shared_ptr<Ledger> ledger)
      : ledger_(std::move(ledger)) {}
  ~CountedTensor() override {
    if (tensor_.defined()) ledger_->Remove(tensor_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor;
    if (tensor_.defined()) ledger_->Add(tensor_);
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  const std::shared_ptr<Ledger> ledger_;
  at::Tensor tensor_;
};

// Without Python the engine is the only place that LibTorch asks for hooks on
// every tensor it saves. It answers that and leaves every backward pass to the
// ordinary engine, whose threads own the devices.
class MeteringEngine : public torch::autograd::Engine {
 public:
  // Never destroyed: its threads last as long as the process.
  static MeteringEngine& Get() {
    static MeteringEngine& engine = *new MeteringEngine();
    return engine;
  }

  void SetLedger(std::shared_ptr<Ledger> ledger) {
    const absl::MutexLock lock(&mutex_);
    TESSERA_CHECK(ledger == nullptr || ledger_ == nullptr,
                  "a SavedTensorMeter is already in scope");
    ledger_ = std::move(ledger);
  }

  torch::autograd::variable_list execute(
      const torch::autograd::edge_list& roots,
      const torch::autograd::variable_list& inputs, bool keep_graph,
      bool create_graph, bool accumulate_grad,
      const torch::autograd::edge_list& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph,
                                     accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
      std::shared_ptr<torch::autograd::Node> graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    return get_base_engine().execute_with_graph_task(
        graph_task, std::move(graph_root), std::move(input_buffer));
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks>
  get_default_saved_variable_hooks() override {
    const absl::MutexLock lock(&mutex_);
    if (ledger_ == nullptr) return nullptr;
    return std::make_unique<CountedTensor>(ledger_);
  }

 private:
  MeteringEngine() = default;

  absl::Mutex mutex_;
  std::shared_ptr<Ledger> ledger_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

SavedTensorMeter::SavedTensorMeter(absl::Span<const at::Tensor> not_counted)
    : ledger_(std::make_shared<Ledger>(not_counted)) {
  static const bool installed = [] {
    torch::autograd::set_default_engine_stub(
        []() -> torch::autograd::Engine& { return MeteringEngine::Get(); });
    return true;
  }();
  static_cast<void>(installed);
  MeteringEngine::Get().SetLedger(ledger_);
}

SavedTensorMeter::~SavedTensorMeter() {
  MeteringEngine::Get().SetLedger(nullptr);
}

int64_t SavedTensorMeter::live_bytes() const { return ledger_->live_bytes(); }
int64_t SavedTensorMeter::peak_bytes() const { return ledger_->peak_bytes(); }

}  // namespace tessera
