#ifndef TRAINERS_RUN_STATE_COPY_H_
#define TRAINERS_RUN_STATE_COPY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "c10/core/Event.h"
#include "c10/core/Stream.h"
#include "trainers/run/training_state.h"

namespace tessera {

// A copy in host memory of what a rank writes of a run's weights and moments,
// from which a checkpoint is written while training continues. From a GPU it is
// made by a stream of its own, into page-locked memory. If ranks divide the
// state, all take part in Begin() (gather_state.h). May be made again and
// again.
class StateCopy {
 public:
  // Takes the memory for the tensors of `files`. ResourceExhausted if that
  // leaves less than a tenth of `free_bytes` of host memory, or if it cannot be
  // page-locked; Cancelled soon after `stop` is set. The state outlives the
  // copy.
  static absl::StatusOr<std::unique_ptr<StateCopy>> Allocate(
      const TrainingState& state, const std::vector<TensorFile>& files,
      int64_t free_bytes, const std::atomic<bool>& stop);
  ~StateCopy();
  StateCopy(const StateCopy&) = delete;
  StateCopy& operator=(const StateCopy&) = delete;

  // Begins to copy what the state is once the current stream has done its work;
  // on a CPU the copy is complete on return. Nothing may change the state until
  // the copy is complete. An earlier copy must be.
  absl::Status Begin();
  // Makes the current stream wait until the copy is complete. Throws LibTorch's
  // exceptions.
  void MakeCurrentStreamWait();
  // Waits until the copy is complete. May be called on another thread.
  absl::Status Wait() const;

  // The copied values, once the copy is complete.
  const StateBuffers& buffers() const { return copy_; }
  // How long the stream of MakeCurrentStreamWait() has waited for this copy;
  // zero if it has not, or is not done. Does not wait.
  absl::Duration StreamWaited() const;

 private:
  explicit StateCopy(const TrainingState& state);
  bool on_gpu() const { return stream_.has_value(); }

  const TrainingState source_;
  const StateBuffers state_;
  StateBuffers copy_;
  std::optional<c10::Stream> stream_;  // null on a CPU, like the events
  std::optional<c10::Event> copied_, wait_begin_, wait_end_;
  bool stream_waits_ = false;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_STATE_COPY_H_
