#include "framework/dist/process_group.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "c10/util/Logging.h"
#include "framework/base/exit_code.h"
#include "framework/base/log.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/dist/c10d_backend.h"
#include "framework/dist/c10d_key_value_store.h"
#include "framework/dist/copy_engine_memory.h"
#include "framework/dist/exchanged_sum.h"
#include "framework/dist/gpu_progress.h"
#include "framework/dist/hang_watch.h"
#include "framework/dist/heartbeat.h"
#include "framework/dist/progress.h"
#include "framework/dist/rank_list.h"
#include "framework/dist/rendezvous.h"
#include "framework/dist/sum_addends.h"

namespace tessera {
namespace {

// The place of `rank` among `ranks`.
int IndexOf(int rank, const std::vector<int>& ranks) {
  return static_cast<int>(absl::c_find(ranks, rank) - ranks.begin());
}

// A world of one rank, so that callers need no special case, or a simulated
// one.
class SingleProcess final : public ProcessGroup {
 public:
  explicit SingleProcess(const WorldInfo& world) : world_(world) {}

  int rank() const override { return world_.rank; }
  int world_size() const override { return world_.world_size; }
  absl::string_view backend() const override {
    return world_.simulated ? "simulated" : "none";
  }
  std::string library() const override { return ""; }
  absl::Status AllReduceSum(const at::Tensor&) override { return {}; }
  absl::Status ReduceScatterSum(const at::Tensor& whole,
                                const at::Tensor& shard) override {
    return StatusFromTorch([&] { Copy(OwnPart(whole), shard); });
  }
  absl::Status AllGather(const at::Tensor& shard,
                         const at::Tensor& whole) override {
    return StatusFromTorch([&] {
      const at::Tensor own = OwnPart(whole);
      if (own.const_data_ptr() == shard.const_data_ptr()) return;
      // Nothing of use is in the other parts, so they get this one, too.
      whole.view({world_.world_size, -1}).copy_(shard.view({1, -1}));
    });
  }
  absl::Status AllToAll(const at::Tensor& from, const at::Tensor& to) override {
    return StatusFromTorch([&] { Copy(from, to); });
  }
  absl::Status Broadcast(const at::Tensor&, int) override { return {}; }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      absl::string_view, const std::vector<int>& ranks) override {
    WorldInfo part = world_;
    part.world_size = static_cast<int>(ranks.size());
    part.rank = IndexOf(world_.rank, ranks);
    return std::make_unique<SingleProcess>(part);
  }
  absl::Status Barrier() override { return {}; }
  absl::Status AgreeOn(absl::string_view, uint64_t) override { return {}; }
  absl::Status Finish() override { return {}; }

 private:
  at::Tensor OwnPart(const at::Tensor& whole) const {
    const int64_t part = whole.numel() / world_.world_size;
    return whole.view({-1}).narrow(0, world_.rank * part, part);
  }
  static void Copy(const at::Tensor& from, const at::Tensor& to) {
    const at::Tensor same_shape = from.view_as(to);
    if (from.const_data_ptr() != to.const_data_ptr()) to.copy_(same_shape);
  }

  const WorldInfo world_;
};

// Longer than any run. Gloo adds it to the time of a clock.
constexpr std::chrono::milliseconds kNoLimit = std::chrono::hours(24 * 365);

// Bytes, because the backends do not support every dtype.
at::Tensor BytesOf(const at::Tensor& tensor) {
  return tensor.detach().view({-1}).view(at::kByte);
}

// Options of an operation that NCCL enqueues on the caller's stream.
template <typename Options>
Options OnCurrentStream() {
  Options options;
  options.asyncOp = false;
  return options;
}

// Some ranks, by a backend of their own.
class C10dCommunicator final : public Communicator {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  // Does `operation`, which may throw, and waits for the work that it returns,
  // if any. `what` names it in an error.
  using Run = std::function<absl::Status(absl::string_view what,
                                         absl::FunctionRef<Work()> operation)>;

  // Connects the same ranks once more, for copies; null on a CPU.
  using ConnectCopies =
      std::function<absl::StatusOr<std::shared_ptr<CopyEngineMemory>>()>;

  // `prefix`: of errors, "rank 1 of 4: ". `among`: the ranks in the names of
  // operations, "the ranks along shard".
  C10dCommunicator(c10::intrusive_ptr<c10d::Backend> backend, int rank,
                   int world_size, at::Device device, std::string prefix,
                   std::string among, Run run, ConnectCopies connect_copies)
      : backend_(std::move(backend)),
        rank_(rank),
        world_size_(world_size),
        device_(device),
        prefix_(std::move(prefix)),
        among_(std::move(among)),
        run_(std::move(run)),
        connect_copies_(std::move(connect_copies)) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  absl::Status AllReduceSum(const at::Tensor& tensor) override;
  absl::Status ReduceScatterSum(const at::Tensor& whole,
                                const at::Tensor& shard) override;
  absl::Status UseCopyEngines(
      absl::FunctionRef<absl::Status()> allocate) override;
  absl::Status ReserveForSums(int64_t numel, at::ScalarType dtype) override;
  absl::Status AllGather(const at::Tensor& shard,
                         const at::Tensor& whole) override;
  absl::Status AllToAll(const at::Tensor& from, const at::Tensor& to) override;
  absl::Status Broadcast(const at::Tensor& tensor, int root) override;

  c10d::Backend& backend() { return *backend_; }

 private:
  bool Exchanges(at::ScalarType dtype) const {
    return IsExchanged(dtype, world_size_, copies_ != nullptr);
  }
  // What gathers and exchanges.
  c10d::Backend& copies() const;
  // ReduceScatterSum() if Exchanges().
  absl::Status ExchangeAndSum(const at::Tensor& whole, const at::Tensor& shard);
  absl::Status CheckTensor(const at::Tensor& tensor) const;
  // Whether `whole` is as large as the shards of all ranks.
  absl::Status CheckShard(const at::Tensor& whole,
                          const at::Tensor& shard) const;

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const int rank_, world_size_;
  const at::Device device_;
  const std::string prefix_, among_;
  const Run run_;
  const ConnectCopies connect_copies_;
  std::shared_ptr<CopyEngineMemory> copies_;  // null without copy engines
  at::Tensor exchanged_;  // what ExchangeAndSum() receives; bytes
};

absl::Status C10dCommunicator::CheckTensor(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.is_contiguous() ||
      tensor.device() != device_) {
    return absl::InvalidArgumentError(absl::StrCat(
        prefix_, "a collective needs a contiguous tensor on ", device_.str(),
        tensor.defined()
            ? absl::StrCat("; got a ", tensor.is_contiguous() ? "" : "strided ",
                           "tensor on ", tensor.device().str())
            : "; got an undefined tensor"));
  }
  return absl::OkStatus();
}

absl::Status C10dCommunicator::AllReduceSum(const at::Tensor& tensor) {
  RETURN_IF_ERROR(CheckTensor(tensor));
  if (tensor.numel() == 0) return absl::OkStatus();
  return run_(
      absl::StrCat("the sum of ", tensor.numel(), " values over ", among_),
      [&] {
        auto options = OnCurrentStream<c10d::AllreduceOptions>();
        std::vector<at::Tensor> tensors = {tensor};
        return backend_->allreduce(tensors, options);
      });
}

absl::Status C10dCommunicator::CheckShard(const at::Tensor& whole,
                                          const at::Tensor& shard) const {
  RETURN_IF_ERROR(CheckTensor(whole));
  RETURN_IF_ERROR(CheckTensor(shard));
  if (whole.numel() == shard.numel() * world_size_ &&
      whole.scalar_type() == shard.scalar_type()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(prefix_, "a shard has ", shard.numel(), " values of ",
                   c10::toString(shard.scalar_type()), ", but the whole has ",
                   whole.numel(), " of ", c10::toString(whole.scalar_type()),
                   ", which is not as much for each rank"));
}

absl::Status C10dCommunicator::ReduceScatterSum(const at::Tensor& whole,
                                                const at::Tensor& shard) {
  RETURN_IF_ERROR(CheckShard(whole, shard));
  if (whole.numel() == 0) return absl::OkStatus();
  if (Exchanges(whole.scalar_type())) {
    return ExchangeAndSum(whole, shard);
  }
  return run_(absl::StrCat("the sum of ", whole.numel(), " values, scattered"),
              [&] {
                auto options = OnCurrentStream<c10d::ReduceScatterOptions>();
                at::Tensor from = whole.view({-1}), to = shard.view({-1});
                return backend_->_reduce_scatter_base(to, from, options);
              });
}

absl::Status C10dCommunicator::UseCopyEngines(
    absl::FunctionRef<absl::Status()> allocate) {
  ASSIGN_OR_RETURN(copies_, connect_copies_());
  return copies_ == nullptr ? allocate() : copies_->Allocate(allocate);
}

c10d::Backend& C10dCommunicator::copies() const {
  if constexpr (kCudaBuild) {
    if (copies_ != nullptr && AllowsCopyEngines(device_)) {
      return copies_->backend();
    }
  }
  return *backend_;
}

absl::Status C10dCommunicator::ReserveForSums(int64_t numel,
                                              at::ScalarType dtype) {
  if (!Exchanges(dtype)) return absl::OkStatus();
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  return StatusFromTorch([&] {
    if (exchanged_.defined() && exchanged_.numel() >= bytes) return;
    exchanged_.reset();
    exchanged_ = at::empty({bytes}, at::dtype(at::kByte).device(device_));
  });
}

absl::Status C10dCommunicator::ExchangeAndSum(const at::Tensor& whole,
                                              const at::Tensor& shard) {
  RETURN_IF_ERROR(ReserveForSums(whole.numel(), whole.scalar_type()));
  const at::Tensor addends =
      exchanged_.narrow(0, 0, static_cast<int64_t>(whole.nbytes()))
          .view(whole.scalar_type());
  RETURN_IF_ERROR(AllToAll(whole, addends));
  return StatusFromTorchOr([&] {
    at::Tensor sum = shard.view({-1});
    const at::Tensor rows = addends.view({world_size_, -1});
    if constexpr (kCudaBuild) {
      if (device_.is_cuda()) return SumAddends(rows, sum);
    }
    at::sum_out(sum, rows, 0);  // adds in FP32, too
    return absl::OkStatus();
  });
}

absl::Status C10dCommunicator::AllGather(const at::Tensor& shard,
                                         const at::Tensor& whole) {
  RETURN_IF_ERROR(CheckShard(whole, shard));
  if (whole.numel() == 0) return absl::OkStatus();
  return run_(absl::StrCat("the gathering of ", whole.nbytes(), " bytes"), [&] {
    auto options = OnCurrentStream<c10d::AllgatherOptions>();
    at::Tensor from = BytesOf(shard), to = BytesOf(whole);
    return copies()._allgather_base(to, from, options);
  });
}

absl::Status C10dCommunicator::AllToAll(const at::Tensor& from,
                                        const at::Tensor& to) {
  RETURN_IF_ERROR(CheckTensor(from));
  RETURN_IF_ERROR(CheckTensor(to));
  if (from.nbytes() != to.nbytes() || from.numel() % world_size_ != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        prefix_, "cannot exchange ", from.numel(), " values for ", to.numel(),
        "; both must be the same multiple of ", world_size_));
  }
  if (from.numel() == 0) return absl::OkStatus();
  return run_(absl::StrCat("the exchange of ", from.nbytes(), " bytes"), [&] {
    auto options = OnCurrentStream<c10d::AllToAllOptions>();
    at::Tensor sent = BytesOf(from), received = BytesOf(to);
    std::vector<int64_t> even;  // equal parts
    return copies().alltoall_base(received, sent, even, even, options);
  });
}

absl::Status C10dCommunicator::Broadcast(const at::Tensor& tensor, int root) {
  RETURN_IF_ERROR(CheckTensor(tensor));
  if (root < 0 || root >= world_size_) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix_, "cannot broadcast from rank ", root));
  }
  if (tensor.numel() == 0) return absl::OkStatus();
  return run_(absl::StrCat("the broadcast of ", tensor.nbytes(),
                           " bytes from rank ", root),
              [&] {
                auto options = OnCurrentStream<c10d::BroadcastOptions>();
                options.rootRank = root;
                std::vector<at::Tensor> tensors = {BytesOf(tensor)};
                return backend_->broadcast(tensors, options);
              });
}

class C10dProcessGroup final : public ProcessGroup {
 public:
  using Work = C10dCommunicator::Work;

  C10dProcessGroup(const WorldInfo& world, at::Device device,
                   const GroupTimeouts& timeouts, RunStores stores)
      : world_(world),
        device_(device),
        timeouts_(timeouts),
        stores_(std::move(stores)),
        interval_(std::min(Heartbeat::Options().interval, timeouts.peer / 4)),
        hang_watch_(&progress_, world.rank, world.world_size,
                    {.first = timeouts.collective, .least = timeouts.stalled},
                    interval_) {}
  ~C10dProcessGroup() override;

  // Watches the other ranks from now on, also while they connect.
  absl::Status Connect();

  int rank() const override { return world_.rank; }
  int world_size() const override { return world_.world_size; }
  absl::string_view backend() const override {
    return device_.is_cuda() ? "nccl" : "gloo";
  }
  std::string library() const override { return LibraryOf(device_); }
  absl::Status AllReduceSum(const at::Tensor& tensor) override {
    return all_->AllReduceSum(tensor);
  }
  absl::Status UseCopyEngines(
      absl::FunctionRef<absl::Status()> allocate) override {
    return all_->UseCopyEngines(allocate);
  }
  absl::Status ReserveForSums(int64_t numel, at::ScalarType dtype) override {
    return all_->ReserveForSums(numel, dtype);
  }
  absl::Status ReduceScatterSum(const at::Tensor& whole,
                                const at::Tensor& shard) override {
    return all_->ReduceScatterSum(whole, shard);
  }
  absl::Status AllGather(const at::Tensor& shard,
                         const at::Tensor& whole) override {
    return all_->AllGather(shard, whole);
  }
  absl::Status AllToAll(const at::Tensor& from, const at::Tensor& to) override {
    return all_->AllToAll(from, to);
  }
  absl::Status Broadcast(const at::Tensor& tensor, int root) override {
    return all_->Broadcast(tensor, root);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      absl::string_view axis, const std::vector<int>& ranks) override;
  absl::Status Barrier() override;
  absl::Status AgreeOn(absl::string_view what, uint64_t value) override;
  void SetStep(int64_t step) override {
    progress_.SetStep(step);
    if (!timeouts_.count_whole_steps) return;
    in_whole_step_ = true;
    progress_.Begin("the communications");
  }
  void EndStep() override {
    if (std::exchange(in_whole_step_, false)) progress_.End();
  }
  void SetOperation(absl::string_view operation) override {
    operation_ = std::string(operation);
  }
  void SetReportFolder(absl::string_view folder) override {
    hang_watch_.SetFolder(folder);
  }
  std::string SetExcuse(absl::string_view work) override {
    return progress_.SetHost(work, /*excused=*/!work.empty());
  }
  absl::Status Finish() override;

 private:
  // "rank 1 of 4: "
  std::string Prefix() const;
  // From now on operations are counted as the device does them.
  absl::Status CountOnDevice();
  // Connects `ranks`; `part` names them.
  absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> ConnectBackendOf(
      const std::string& part, const std::vector<int>& ranks,
      bool copy_engines = false);
  absl::StatusOr<std::shared_ptr<CopyEngineMemory>> ConnectCopies(
      const std::string& among, const std::vector<int>& ranks);
  // Connects `ranks`, which errors call `among`.
  absl::StatusOr<std::unique_ptr<C10dCommunicator>> ConnectRanks(
      const std::string& among, const std::vector<int>& ranks);
  // Ends this process because a rank is lost or hangs.
  [[noreturn]] void End(absl::string_view why) const;
  // Counts `operation`, which may throw, and waits for the work that it
  // returns, if any. `what` names it in an error.
  absl::Status Collective(absl::string_view what,
                          absl::FunctionRef<Work()> operation);
  // Waits until every rank has called this as often, however long that takes:
  // the heartbeat ends the process if a rank is lost.
  absl::Status Meet();
  absl::Status Leave();
  // Counts this rank among those that have reached `place`. Then waits at most
  // `timeout` until `count` have.
  absl::Status Arrive(const char* place, int64_t count, absl::Duration timeout);

  const WorldInfo world_;
  const at::Device device_;
  const GroupTimeouts timeouts_;
  RunStores stores_;
  const absl::Duration interval_;  // of the heartbeat
  Progress progress_;
  HangWatch hang_watch_;
  std::string operation_;
  bool is_watched_ = false;     // otherwise c10d limits waits
  bool in_whole_step_ = false;  // with count_whole_steps
  int64_t meetings_ = 0;
  std::unique_ptr<Heartbeat> heartbeat_;
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends_;  // of all and parts
  std::vector<std::shared_ptr<CopyEngineMemory>> copies_;
  std::unique_ptr<C10dCommunicator> all_;
  bool finished_ = false;
};

C10dProcessGroup::~C10dProcessGroup() {
  if (finished_) return;
  if (heartbeat_ != nullptr) {
    heartbeat_->Stop();
    heartbeat_->Announce(
        absl::StrCat("rank ", world_.rank, " of ", world_.world_size,
                     " ended before the run was finished; its output says "
                     "why"));
  }
  // Frees the device from kernels that wait for ranks that are gone.
  for (const auto& backend : backends_) {
    StatusFromTorch([&] { backend->abort(); }).IgnoreError();
  }
}

absl::Status C10dProcessGroup::Connect() {
  Heartbeat::Options options;
  options.rank = world_.rank;
  options.world_size = world_.world_size;
  options.interval = interval_;
  options.timeout = timeouts_.peer;
  options.poll = [this](KeyValueStore& store) {
    auto why = hang_watch_.Poll(store);
    if (timeouts_.count_whole_steps && why.ok() && why->has_value()) {
      absl::StrAppend(&**why,
                      " To learn which communication it is, set "
                      "observe.watch_communications=true.");
    }
    return why;
  };
  heartbeat_ =
      std::make_unique<Heartbeat>(MakeKeyValueStore(stores_.heartbeat), options,
                                  [this](absl::string_view why) { End(why); });
  // All ranks have met. From now on the heartbeat detects missing ranks, and a
  // device may take long to start.
  for (const auto& store : {stores_.control, stores_.heartbeat}) {
    store->setTimeout(absl::ToChronoMilliseconds(timeouts_.collective));
  }
  std::vector<int> all(world_.world_size);
  absl::c_iota(all, 0);
  RETURN_IF_ERROR(CountOnDevice());
  ASSIGN_OR_RETURN(all_, ConnectRanks("the ranks", all));
  return absl::OkStatus();
}

absl::Status C10dProcessGroup::CountOnDevice() {
  is_watched_ = true;
  if constexpr (kCudaBuild) {
    if (!device_.is_cuda()) return absl::OkStatus();
    const absl::Status counts =
        StatusFromTorch([&] { progress_.CountOn(MakeGpuWriter(device_)); });
    is_watched_ = counts.ok();
    if (!counts.ok() && !timeouts_.count_whole_steps) {
      return absl::FailedPreconditionError(absl::StrCat(
          Prefix(), "observe.watch_communications cannot be used here: ",
          counts.message()));
    }
    if (!counts.ok()) {
      LogWarning(absl::StrCat(
          Prefix(),
          "a rank that hangs is noticed only outside of CUDA graphs, "
          "after ",
          absl::FormatDuration(timeouts_.collective), ", because ",
          counts.message()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<c10::intrusive_ptr<c10d::Backend>>
C10dProcessGroup::ConnectBackendOf(const std::string& part,
                                   const std::vector<int>& ranks,
                                   bool copy_engines) {
  auto connected = ConnectBackend(world_, ranks, part, device_, stores_.control,
                                  timeouts_.collective, copy_engines);
  if (absl::IsInternal(connected.status())) {
    // Reached if a rank ends before the heartbeat misses it.
    return absl::UnavailableError(absl::StrCat(
        Prefix(),
        "cannot connect to the other ranks: ", ReasonOf(connected.status()),
        "; if one of them has ended, its output says why"));
  }
  RETURN_IF_ERROR(connected.status());
  backends_.push_back(*connected);
  // From now on the watch limits waits: it excuses ranks, and names the one
  // that is missing.
  RETURN_IF_ERROR(StatusFromTorch([&] {
    if (is_watched_) (*connected)->setTimeout(kNoLimit);
  }));
  return connected;
}

absl::StatusOr<std::shared_ptr<CopyEngineMemory>>
C10dProcessGroup::ConnectCopies(const std::string& among,
                                const std::vector<int>& ranks) {
  if constexpr (kCudaBuild) {
    if (device_.is_cuda()) {
      ASSIGN_OR_RETURN(
          auto backend,
          ConnectBackendOf(absl::StrCat("copies of ", among), ranks,
                           /*copy_engines=*/true));
      copies_.push_back(MakeCopyEngineMemory(std::move(backend), device_));
      return copies_.back();
    }
  }
  return nullptr;
}

absl::StatusOr<std::unique_ptr<C10dCommunicator>>
C10dProcessGroup::ConnectRanks(const std::string& among,
                               const std::vector<int>& ranks) {
  ASSIGN_OR_RETURN(auto backend, ConnectBackendOf(among, ranks));
  return std::make_unique<C10dCommunicator>(
      std::move(backend), IndexOf(world_.rank, ranks),
      static_cast<int>(ranks.size()), device_, Prefix(), among,
      [this](absl::string_view what, absl::FunctionRef<Work()> operation) {
        return Collective(what, operation);
      },
      [=, this] { return ConnectCopies(among, ranks); });
}

absl::StatusOr<std::unique_ptr<Communicator>> C10dProcessGroup::Split(
    absl::string_view axis, const std::vector<int>& ranks) {
  // All ranks count as many operations, so the watch compares them as before.
  return ConnectRanks(absl::StrCat("the ranks along ", axis), ranks);
}

void C10dProcessGroup::End(absl::string_view why) const {
  std::string report;
  if (IsHang(why)) report = hang_watch_.WriteReport(why);
  // The main thread may be waiting for a device that never finishes. So no
  // destructor runs, and no checkpoint is written: ranks no longer agree on its
  // contents.
  std::_Exit(ReportAndExitCode(absl::UnavailableError(
      absl::StrCat(Prefix(), "must end: ", why, report))));
}

std::string C10dProcessGroup::Prefix() const {
  return absl::StrCat("rank ", world_.rank, " of ", world_.world_size, ": ");
}

absl::Status C10dProcessGroup::Collective(absl::string_view what,
                                          absl::FunctionRef<Work()> operation) {
  const std::string name = operation_.empty()
                               ? std::string(what)
                               : absl::StrCat(operation_, ": ", what);
  const absl::Status status = StatusFromTorch([&] {
    if (!in_whole_step_) progress_.Begin(name);
    // Null for NCCL, which enqueues on the caller's stream.
    if (const Work work = operation()) work->wait();
    if (!in_whole_step_) progress_.End();
  });
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  heartbeat_->AwaitReport();
  return absl::UnavailableError(absl::StrCat(
      Prefix(), what,
      " failed, most likely because another rank ended: ", ReasonOf(status)));
}

absl::Status C10dProcessGroup::Barrier() {
  RETURN_IF_ERROR(Meet());
  return Collective("the barrier", [&] {
    c10d::BarrierOptions options;
    if (device_.is_cuda()) options.device = device_;
    return all_->backend().barrier(options);
  });
}

absl::Status C10dProcessGroup::AgreeOn(absl::string_view what, uint64_t value) {
  RETURN_IF_ERROR(Meet());
  at::Tensor values;  // (world); each rank's value, zero elsewhere
  RETURN_IF_ERROR(StatusFromTorch([&] {
    values = at::zeros({world_.world_size}, at::kLong);
    values[world_.rank].fill_(static_cast<int64_t>(value));
    values = values.to(device_);
  }));
  RETURN_IF_ERROR(AllReduceSum(values));
  RETURN_IF_ERROR(StatusFromTorch([&] { values = values.cpu(); }));
  const int64_t* held = values.const_data_ptr<int64_t>();
  std::vector<int> differing;
  for (int rank = 1; rank < world_.world_size; ++rank) {
    if (held[rank] != held[0]) differing.push_back(rank);
  }
  if (differing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s differs: rank 0 has %016x, but %s not (rank %d has %016x); every "
      "rank must be started with the same config, data and program",
      what, static_cast<uint64_t>(held[0]),
      absl::StrCat(RankList(differing),
                   differing.size() == 1 ? " does" : " do"),
      differing[0], static_cast<uint64_t>(held[differing[0]])));
}

absl::Status C10dProcessGroup::Arrive(const char* place, int64_t count,
                                      absl::Duration timeout) {
  return StatusFromTorchOr([&]() -> absl::Status {
    const absl::Time deadline = MonotonicNow() + timeout;
    int64_t arrived = stores_.control->add(place, 1);
    // Poll, because the backend's threads use this connection, too.
    while (arrived < count) {
      if (MonotonicNow() > deadline) {
        return absl::DeadlineExceededError(absl::StrCat(
            "only ", arrived, " of ", count, " ranks arrived within ",
            absl::FormatDuration(timeout)));
      }
      absl::SleepFor(absl::Milliseconds(50));
      arrived = stores_.control->add(place, 0);
    }
    return absl::OkStatus();
  });
}

absl::Status C10dProcessGroup::Meet() {
  progress_.SetHost("waits for all ranks to meet", /*excused=*/false);
  const absl::Cleanup met_all = [this] { progress_.SetHost("", false); };
  // A rank that is here for the n-th time has met all others n - 1 times.
  const absl::Status met = Arrive("meetings", ++meetings_ * world_.world_size,
                                  absl::InfiniteDuration());
  if (met.ok()) return met;
  return absl::UnavailableError(absl::StrCat(
      Prefix(), "waiting for the other ranks failed: ", met.message()));
}

absl::Status C10dProcessGroup::Leave() {
  RETURN_IF_ERROR(Meet());
  heartbeat_->Stop();
  if (device_.is_cuda()) {
    for (const auto& memory : copies_) RETURN_IF_ERROR(memory->Release());
    RETURN_IF_ERROR(StatusFromTorch([&] {
      for (const auto& backend : backends_) backend->shutdown();
    }));
  }
  // Rank 0 leaves last, because the store ends with it.
  return Arrive("left", world_.rank == 0 ? world_.world_size : 0,
                timeouts_.collective);
}

absl::Status C10dProcessGroup::Finish() {
  if (finished_) return absl::OkStatus();
  const absl::Status left = Leave();
  if (!left.ok()) {
    return absl::UnavailableError(absl::StrCat(
        Prefix(), "waiting for all ranks to finish failed: ", ReasonOf(left)));
  }
  finished_ = true;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::Create(
    const WorldInfo& world, at::Device device, const GroupTimeouts& timeouts) {
  if (world.world_size == 1 || world.simulated) {
    return std::make_unique<SingleProcess>(world);
  }
  // c10d logs a stack trace for each lost connection; this program reports the
  // same in its own errors. A level that the user has set is kept.
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  c10::initLogging();  // reads the variable
  ASSIGN_OR_RETURN(RunStores stores, MeetAllRanks(world, timeouts.peer));
  auto group = std::make_unique<C10dProcessGroup>(world, device, timeouts,
                                                  std::move(stores));
  RETURN_IF_ERROR(group->Connect());
  return group;
}

}  // namespace tessera
