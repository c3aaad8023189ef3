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
#include "framework/observe/run_observer.h"
#include "framework/observe/step_record.h"

namespace tessera {

// `data` as a TFRecord: u64 length, masked CRC-32C of those 8 bytes, the data,
// its masked CRC-32C; little-endian.
std::string TfRecord(absl::string_view data);

struct Scalar {
  absl::string_view tag;  // "train/loss"
  double value = 0;
};

// A TensorBoard event file: TFRecords of Event messages, appended only, each
// by one write().
class TensorboardWriter : public RunObserver {
 public:
  using Clock = std::function<absl::Time()>;

  // Creates `folder`/events.out.tfevents.SECONDS.HOST.PID. A resumed run
  // starts a further file, which TensorBoard joins to those before it, in the
  // order of their names: SECONDS are those of the clock, or one more than the
  // last file's if that is later.
  static absl::StatusOr<std::unique_ptr<TensorboardWriter>> Create(
      const std::string& folder, Clock clock = absl::Now);
  ~TensorboardWriter() override;
  TensorboardWriter(const TensorboardWriter&) = delete;
  TensorboardWriter& operator=(const TensorboardWriter&) = delete;

  // To be called before anything is written by a run that replays steps:
  // TensorBoard then drops what earlier files say of `step` and later ones.
  absl::Status SupersedeFrom(int64_t step);

  // train/loss, train/grad_norm, train/lr, perf/..., phase/... and gpu/...
  absl::Status OnStepLogged(const StepRecord& record) override;
  // eval/loss.
  absl::Status OnValidationEnd(const EvalRecord& record) override;

  absl::Status Write(int64_t step, absl::Span<const Scalar> scalars);

  const std::string& path() const { return path_; }

 private:
  TensorboardWriter(std::string path, int descriptor, Clock clock);

  absl::Status Append(absl::string_view event);
  double UnixSeconds() const;

  const std::string path_;
  const int descriptor_;
  const Clock clock_;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TENSORBOARD_H_
