#ifndef FRAMEWORK_OPTIM_EMA_H_
#define FRAMEWORK_OPTIM_EMA_H_

#include <cstdint>
#include <memory>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "framework/optim/adamw.h"
#include "framework/optim/ema_math.h"
#include "framework/params/parameter_store.h"

namespace tessera {

// The moving average (ema_math.h) of all trained weights of a ParameterStore,
// in FP32 under every precision policy. It lies like store.divisions().moments:
// if ranks divide the state, a rank averages the weights that it updates.
//
// A pass of its own after each update, of AdamW and Muon alike. With FP32
// weights or two halves it moves 12 bytes per parameter: it reads the weight
// and the average and writes the average. In AdamW's kernel it would be 8, for
// a second version of that kernel and a third of Muon's.
class Ema {
 public:
  // Allocates the average, equal to the weights. ResourceExhausted if out of
  // memory. `store` and `adamw` must outlive it.
  static absl::StatusOr<std::unique_ptr<Ema>> Create(const EmaOptions& options,
                                                     ParameterStore& store,
                                                     const AdamW& adamw);

  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  // Averages the weights that Update(begin, end) of AdamW or Muon has updated;
  // changes nothing in a step that they skip.
  absl::Status Update(int64_t begin, int64_t end) {
    return Pass(EmaPass::kUpdate, begin, end);
  }
  // Exchanges the weights of a range of Update(), in every form in which the
  // store keeps them, and their average. A second call restores both bit for
  // bit. The caller gathers what other ranks have of these weights.
  absl::Status Exchange(int64_t begin, int64_t end) {
    return Pass(EmaPass::kExchange, begin, end);
  }
  // Makes the average equal to the weights.
  absl::Status Restart();

  const at::Tensor& average() const { return average_; }

 private:
  Ema(const EmaOptions& options, ParameterStore& store, const AdamW& adamw)
      : options_(options), store_(store), adamw_(adamw) {}
  absl::Status Pass(EmaPass pass, int64_t begin, int64_t end);

  const EmaOptions options_;
  ParameterStore& store_;
  const AdamW& adamw_;
  at::Tensor average_;
};

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_EMA_H_
