#ifndef TRAINERS_RUN_BATCH_PREFETCHER_H_
#define TRAINERS_RUN_BATCH_PREFETCHER_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "c10/core/Event.h"
#include "c10/core/Stream.h"
#include "c10/core/thread_pool.h"
#include "trainers/run/batch.h"
#include "trainers/run/batch_loader.h"

namespace tessera {

// Loads each batch while the step before it runs: a thread reads the tokens,
// and a stream of its own copies them to the GPU.
class BatchPrefetcher {
 public:
  // `loader` outlives the prefetcher.
  BatchPrefetcher(const BatchLoader* loader, c10::Device device);

  // The batch of samples [first_sample, first_sample + global_batch), on the
  // device, and begins to load the one that follows it. On a GPU its memory is
  // reused two calls later, after the work that the current stream has at the
  // next call. The error is that of this batch.
  absl::StatusOr<Batch> Next(int64_t first_sample);

 private:
  // A batch on a GPU.
  struct Slot {
    explicit Slot(c10::Device device)
        : filled(device.type()), read(device.type()) {}
    Batch batch;
    c10::Event filled, read;
  };

  void Begin(int64_t first_sample);
  absl::StatusOr<Batch> Load(int64_t first_sample, Slot* slot) const;

  const BatchLoader* const loader_;
  const c10::Device device_;
  std::optional<c10::Stream> stream_;         // null on a CPU
  std::array<std::optional<Slot>, 2> slots_;  // null on a CPU
  int filling_ = 0;                           // index of the slot of loaded_
  int64_t sample_ = -1;                       // first of loaded_; -1: none
  absl::StatusOr<Batch> loaded_;
  c10::ThreadPool thread_{1};  // last: ends before what it uses
};

}  // namespace tessera

#endif  // TRAINERS_RUN_BATCH_PREFETCHER_H_
