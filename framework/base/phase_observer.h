#ifndef FRAMEWORK_BASE_PHASE_OBSERVER_H_
#define FRAMEWORK_BASE_PHASE_OBSERVER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera {

// What the tensors are that a run of an op leaves.
enum class OpResults { kOther, kActivations, kGradients, kCommunication };

// Receives which part of training the host is issuing. Steps contain phases,
// phases contain phases and ops, and an op may contain phases. A phase is named
// by its own segment, which the observer joins: "forward" > "block_3" >
// "attention" > the op "sdpa" > "softmax". Evaluation and checkpoints are
// phases outside any step.
//
// An observer does not disturb the work: it does not throw, also if the device
// has failed. It keeps its first error until it is asked for what it has seen
// (Instrument::AddTo() or Collect()). Ends are called while an exception passes
// through the scopes below.
//
// Implementations live in framework/observe (NVTX ranges, timers, the trace).
// Everything below that folder sees only this interface, and it may be null: a
// scope without an observer costs one comparison.
class PhaseObserver {
 public:
  virtual ~PhaseObserver() = default;

  // Optimizer step `step`; the first is 1.
  virtual void BeginStep(int64_t /*step*/) noexcept {}
  virtual void EndStep() noexcept {}
  virtual void Begin(absl::string_view segment) noexcept = 0;
  virtual void End() noexcept = 0;
  // One run of an op, by its name within the innermost phase: "qkv".
  virtual void BeginOp(absl::string_view /*name*/,
                       OpResults /*results*/) noexcept {}
  virtual void EndOp() noexcept {}
};

// Passes everything on to several observers: begins in order, ends in reverse.
class PhaseObserverList : public PhaseObserver {
 public:
  explicit PhaseObserverList(std::vector<PhaseObserver*> observers)
      : observers_(std::move(observers)) {}

  // Between two steps.
  void Set(std::vector<PhaseObserver*> observers) {
    observers_ = std::move(observers);
  }

  void BeginStep(int64_t step) noexcept override {
    for (PhaseObserver* observer : observers_) observer->BeginStep(step);
  }
  void EndStep() noexcept override { InReverse(&PhaseObserver::EndStep); }
  void Begin(absl::string_view segment) noexcept override {
    for (PhaseObserver* observer : observers_) observer->Begin(segment);
  }
  void End() noexcept override { InReverse(&PhaseObserver::End); }
  void BeginOp(absl::string_view name, OpResults results) noexcept override {
    for (PhaseObserver* observer : observers_) observer->BeginOp(name, results);
  }
  void EndOp() noexcept override { InReverse(&PhaseObserver::EndOp); }

 private:
  void InReverse(void (PhaseObserver::*end)() noexcept) {
    for (auto it = observers_.rbegin(); it != observers_.rend(); ++it) {
      ((*it)->*end)();
    }
  }

  std::vector<PhaseObserver*> observers_;
};

class PhaseScope {
 public:
  PhaseScope(PhaseObserver* observer, absl::string_view segment)
      : observer_(observer) {
    if (observer_ != nullptr) observer_->Begin(segment);
  }
  ~PhaseScope() {
    if (observer_ != nullptr) observer_->End();
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  PhaseObserver* const observer_;
};

class StepScope {
 public:
  StepScope(PhaseObserver* observer, int64_t step) : observer_(observer) {
    if (observer_ != nullptr) observer_->BeginStep(step);
  }
  ~StepScope() {
    if (observer_ != nullptr) observer_->EndStep();
  }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  PhaseObserver* const observer_;
};

class OpScope {
 public:
  OpScope(PhaseObserver* observer, absl::string_view name,
          OpResults results = OpResults::kOther)
      : observer_(observer) {
    if (observer_ != nullptr) observer_->BeginOp(name, results);
  }
  ~OpScope() {
    if (observer_ != nullptr) observer_->EndOp();
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  PhaseObserver* const observer_;
};

}  // namespace tessera

#endif  // FRAMEWORK_BASE_PHASE_OBSERVER_H_
