#ifndef FRAMEWORK_DIST_PROCESS_GROUP_H_
#define FRAMEWORK_DIST_PROCESS_GROUP_H_

#include <cstdint>
#include <memory>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "c10/core/Device.h"
#include "framework/dist/world.h"

namespace tessera {

// How long a rank may be missing, at the start or during a run, before the
// others end: under half a minute with the time that processes need to start
// and to end.
inline constexpr absl::Duration kDefaultPeerTimeout = absl::Seconds(20);

// The ranks of a run and what they say to each other: NCCL between CUDA
// devices, Gloo between CPUs, nothing in a world of one. A thin layer over
// LibTorch's c10d backends.
//
// Every operation below is collective: each rank calls it, in the same order,
// with tensors of the same size and dtype on the device given to Create().
// Tensors are contiguous (InvalidArgument otherwise) and changed in place.
//
// On CUDA an operation is enqueued on the current stream and does not make the
// host wait, except in Barrier() and AgreeOn(); it may be captured in a CUDA
// graph once one was run outside. On a CPU it is complete on return.
//
// A rank that dies, or ends without Finish(), ends the run: the others fail
// with Unavailable inside an operation, or, where the host is stuck waiting for
// its device, are ended from a thread of the group with that status's exit code
// and an error that names the missing rank. Either takes at most the peer
// timeout and five seconds; a rank that lives but never enters a collective, 10
// minutes.
//
// Not thread-safe.
class ProcessGroup {
 public:
  // Collective. DeadlineExceeded names the ranks that did not arrive within
  // `peer_timeout`, or says what listens in place of rank 0; InvalidArgument
  // names ranks that believe in another world size or have another secret, and
  // a device that has no backend in this build.
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Create(
      const WorldInfo& world, at::Device device,
      absl::Duration peer_timeout = kDefaultPeerTimeout);

  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // "nccl", "gloo" or "none".
  virtual absl::string_view backend() const = 0;

  // tensor = sum over ranks, added in the tensor's dtype.
  virtual absl::Status AllReduceSum(const at::Tensor& tensor) = 0;

  // The same for a flat tensor (1-D), in slices of at most `bucket_bytes`.
  virtual absl::Status AllReduceInBuckets(const at::Tensor& flat,
                                          int64_t bucket_bytes) = 0;

  // tensor = that of rank `root`, bit for bit; any dtype.
  virtual absl::Status Broadcast(const at::Tensor& tensor, int root) = 0;

  // Returns once every rank has called it and its device has done what was
  // enqueued before.
  virtual absl::Status Barrier() = 0;

  // FailedPrecondition, on every rank alike, unless all hold the same `value`;
  // names `what` ("the config's hash") and the ranks that differ from rank 0.
  virtual absl::Status AgreeOn(absl::string_view what, uint64_t value) = 0;

  // Ends the group after a run that succeeded: returns once every rank has
  // called it. A group destroyed without it tells the other ranks that this
  // one failed, and they end too.
  virtual absl::Status Finish() = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_PROCESS_GROUP_H_
