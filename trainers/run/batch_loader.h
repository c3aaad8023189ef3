#ifndef TRAINERS_RUN_BATCH_LOADER_H_
#define TRAINERS_RUN_BATCH_LOADER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "framework/data/read/data_source.h"
#include "trainers/run/batch.h"

namespace tessera {

// Makes this rank's share of a global batch, in host memory from which a device
// can copy asynchronously.
class BatchLoader {
 public:
  // `request` says how a global batch is divided; Load() sets its samples.
  // `micro_batches` divides the rank's share. `source` outlives the loader.
  BatchLoader(const DataSource* source, BatchRequest request,
              int64_t micro_batches, c10::Device device)
      : source_(source),
        request_(request),
        micro_batches_(micro_batches),
        page_locked_(device.is_cuda()) {}

  // The batch of samples [first_sample, first_sample + global_batch). Samples
  // from `end_sample` on are padding.
  absl::StatusOr<Batch> Load(int64_t first_sample, int64_t end_sample) const;
  absl::StatusOr<Batch> Load(int64_t first_sample) const {
    return Load(first_sample, request_.end_sample);
  }

  int64_t global_batch() const { return request_.global_batch; }

 private:
  const DataSource* const source_;
  const BatchRequest request_;
  const int64_t micro_batches_;
  const bool page_locked_;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_BATCH_LOADER_H_
