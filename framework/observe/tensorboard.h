#ifndef FRAMEWORK_OBSERVE_TENSORBOARD_H_
#define FRAMEWORK_OBSERVE_TENSORBOARD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "framework/base/file_descriptor.h"
#include "framework/observe/run_observer.h"
#include "framework/observe/step_record.h"

namespace tessera {

// `data` as a TFRecord, little-endian: u64 length, masked CRC-32C of those 8
// bytes, data, masked CRC-32C of the data.
std::string TfRecord(absl::string_view data);

struct Scalar {
  std::string tag;  // "train/loss"
  double value = 0;
};

// Writes a TensorBoard event file: TFRecords of Event messages, append-only,
// each in one write().
class TensorboardWriter : public RunObserver {
 public:
  using Clock = std::function<absl::Time()>;

  // Creates `folder`/events.out.tfevents.SECONDS.HOST.PID. A resumed run
  // creates another file. TensorBoard joins the files in the order of their
  // names, so SECONDS is the current time, or one more than the newest file's
  // if that is later.
  static absl::StatusOr<std::unique_ptr<TensorboardWriter>> Create(
      const std::string& folder, Clock clock = absl::Now);

  // Makes TensorBoard drop events of `step` and later from earlier files. Call
  // it before anything else is written if the run repeats steps.
  absl::Status SupersedeFrom(int64_t step);

  // train/loss, train/grad_norm, train/lr, perf/..., phase/... and gpu/...
  absl::Status OnStepLogged(const StepRecord& record) override;
  // Writes eval/loss.
  absl::Status OnValidationEnd(const EvalRecord& record) override;

  absl::Status Write(int64_t step, absl::Span<const Scalar> scalars);

  const std::string& path() const { return path_; }

 private:
  TensorboardWriter(std::string path, int descriptor, Clock clock);

  absl::Status Append(absl::string_view event);
  double UnixSeconds() const;

  const std::string path_;
  const FileDescriptor descriptor_;
  const Clock clock_;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TENSORBOARD_H_
