#ifndef FRAMEWORK_DIST_PROCESS_GROUP_H_
#define FRAMEWORK_DIST_PROCESS_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "c10/core/Device.h"
#include "framework/dist/world.h"

namespace tessera {

struct GroupTimeouts {
  // How long a rank may be missing, at the start or during a run, before the
  // others end. With the time that processes take to start and to end, this is
  // under half a minute.
  absl::Duration peer = absl::Seconds(20);
  // How long a sum or a broadcast waits for a rank that lives, until two steps
  // have begun (SetStep()).
  absl::Duration collective = absl::Minutes(10);
  // How long it waits afterwards: 10 median steps, at least this.
  absl::Duration stalled = absl::Seconds(60);
  // Whether the operations of a step count as one (SetStep() to EndStep()). On
  // a GPU each count is a write to host memory that the next operation waits
  // for.
  bool count_whole_steps = false;
};

// Ranks that communicate: all ranks of a run (ProcessGroup) or some of them
// (ProcessGroup::Split()).
//
// Every operation below is collective: each of the ranks calls it, in the same
// order, with tensors of the same size and dtype on the device given to
// ProcessGroup::Create(). Tensors must be contiguous and of fitting sizes (else
// InvalidArgument).
//
// On CUDA an operation is enqueued on the current stream and does not make the
// host wait. It may be captured in a CUDA graph after one has run outside of a
// graph. On a CPU it is complete on return.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // Among these ranks.
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // tensor = sum over ranks, added in the tensor's dtype.
  virtual absl::Status AllReduceSum(const at::Tensor& tensor) = 0;

  // shard = this rank's part of the sum of `whole` over the ranks. `whole` has
  // world_size() times as many elements as `shard`, which may be its own part
  // of `whole`; the other parts are then undefined. Sums of BF16 and FP16 are
  // rounded once: where a ring would round at each rank, or would take
  // multiprocessors (IsExchanged()), the ranks exchange their addends and each
  // adds its part in FP32, in a fixed order. That takes a buffer as large as
  // `whole`.
  virtual absl::Status ReduceScatterSum(const at::Tensor& whole,
                                        const at::Tensor& shard) = 0;

  // Runs `allocate`, and makes copy engines move what AllGather() and
  // AllToAll() send and receive, if all of that is in tensors that `allocate`
  // has made on this thread: unlike NCCL's kernels they take no multiprocessors
  // from what computes beside them. Between two ranks sums of BF16 and FP16 are
  // then exchanged, too. All ranks are on one machine and make the same tensors
  // except temporary ones (TemporaryMemoryScope). The tensors live until
  // Finish(). Call it at most once. Without effect on a CPU and in a world of
  // one.
  virtual absl::Status UseCopyEngines(
      absl::FunctionRef<absl::Status()> allocate) {
    return allocate();
  }

  // Allocates the buffer for sums of at most `numel` elements, so that a larger
  // sum does not replace it later.
  virtual absl::Status ReserveForSums(int64_t /*numel*/,
                                      at::ScalarType /*dtype*/) {
    return absl::OkStatus();
  }

  // whole = the shards of all ranks in order, bit for bit; any dtype. `shard`
  // may be its own part of `whole`.
  virtual absl::Status AllGather(const at::Tensor& shard,
                                 const at::Tensor& whole) = 0;

  // Part r of `to` = this rank's part of `from` on rank r, bit for bit; any
  // dtype. `from` and `to` do not overlap; both divide by world_size().
  virtual absl::Status AllToAll(const at::Tensor& from,
                                const at::Tensor& to) = 0;

  // tensor = the tensor of rank `root`, bit for bit; any dtype.
  virtual absl::Status Broadcast(const at::Tensor& tensor, int root) = 0;
};

// The ranks of a run and their communication: NCCL between CUDA devices, Gloo
// between CPUs, nothing in a world of one. A thin layer over LibTorch's c10d
// backends.
//
// In a simulated world (WorldInfo::simulated) every operation is complete at
// once, without other ranks: a sum is this rank's own addend, a gathered whole
// has this rank's shard in every part, unless the shard is already its own part
// of it, and an exchange returns what this rank sends.
//
// The operations below are collective, too; Barrier() and AgreeOn() make the
// host wait.
//
// A rank that dies, or ends without Finish(), ends the run. On the other ranks,
// operations fail with Unavailable; if the host is waiting for its device, a
// thread of the group ends the process with that status's exit code and an
// error that names the missing rank. This takes at most the peer timeout and
// five seconds.
//
// If a rank lives but does not take part in a sum or a broadcast, all ranks end
// after the time that GroupTimeouts gives, and one error names the rank, the
// operation and the step, or only the step with
// GroupTimeouts::count_whole_steps. Ranks wait without limit in Barrier(),
// AgreeOn() and Finish(), which ranks call after work that may take long
// (preparing data, reading and writing checkpoints), and for a rank with
// ExcusedWork.
//
// Not thread-safe.
class ProcessGroup : public Communicator {
 public:
  // Collective. DeadlineExceeded names the ranks that did not arrive within
  // `timeouts.peer`, or what listens in place of rank 0. InvalidArgument names
  // ranks with a different world size or secret, or a device that has no
  // backend in this build.
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Create(
      const WorldInfo& world, at::Device device,
      const GroupTimeouts& timeouts = {});

  // "nccl", "gloo", "none" or "simulated".
  virtual absl::string_view backend() const = 0;
  // What communicates: "NCCL 2.28.9", "Gloo"; empty in a world of one.
  virtual std::string library() const = 0;

  // Connects `ranks`, ascending, of which this one is a member. Each rank calls
  // it with its own part of the world, all as often and with the same `axis`,
  // which names the part in errors: "shard". The group must outlive the result.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Split(
      absl::string_view axis, const std::vector<int>& ranks) = 0;

  // Returns once every rank has called it and its device has finished all work
  // that was enqueued before.
  virtual absl::Status Barrier() = 0;

  // FailedPrecondition, on every rank, unless all ranks pass the same `value`.
  // The message names `what` ("the config's hash") and the ranks that differ
  // from rank 0.
  virtual absl::Status AgreeOn(absl::string_view what, uint64_t value) = 0;

  // For the error that names a missing rank:
  // The work that is enqueued on the current stream from now on, until
  // EndStep(), belongs to `step`, the first of which is 1. Not in a graph.
  virtual void SetStep(int64_t /*step*/) {}
  virtual void EndStep() {}
  // Precedes the names of the operations that are enqueued from now on:
  // "operation 2 of 5 (gradients)". Empty: nothing.
  virtual void SetOperation(absl::string_view /*operation*/) {}
  // The folder for hang_rank_R.json, which each rank writes when it ends with
  // that error.
  virtual void SetReportFolder(absl::string_view /*folder*/) {}
  // See ExcusedWork; empty: none. Returns the work before.
  virtual std::string SetExcuse(absl::string_view /*work*/) { return ""; }

  // Ends the group after a successful run; returns once every rank has called
  // it. Destroy CUDA graphs that hold an operation first: NCCL waits for them
  // forever. A group that is destroyed without Finish() reports to the other
  // ranks that this one failed, and they end, too.
  virtual absl::Status Finish() = 0;
};

// While it exists, other ranks wait without limit for this one, because its
// host is busy with `work`: "writes a checkpoint".
class ExcusedWork {
 public:
  ExcusedWork(ProcessGroup* group, absl::string_view work)
      : group_(group), before_(group->SetExcuse(work)) {}
  ~ExcusedWork() { group_->SetExcuse(before_); }
  ExcusedWork(const ExcusedWork&) = delete;
  ExcusedWork& operator=(const ExcusedWork&) = delete;

 private:
  ProcessGroup* const group_;
  const std::string before_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_PROCESS_GROUP_H_
