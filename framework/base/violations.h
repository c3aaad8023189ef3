#ifndef FRAMEWORK_BASE_VIOLATIONS_H_
#define FRAMEWORK_BASE_VIOLATIONS_H_

#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera {

// A broken rule of a config.
struct Violation {
  std::string path;     // "optimizer.adamw.beta2", from the root message
  std::string message;  // "must be in [0, 1); is 1.5"
};

// Collects all broken rules of a config, so that the user sees them at once.
//
//   void Validate(const OptimizerConfig& config, Violations violations) {
//     Validate(config.adamw(), violations.In("adamw"));
//     violations.Check(config.clip_norm() > 0, "clip_norm", "must be > 0");
//
// A cheap handle: copies add to the same list, which outlives them.
class Violations {
 public:
  explicit Violations(std::vector<Violation>* list) : list_(list) {}

  // The same list, with `field.` prepended to every path.
  Violations In(absl::string_view field) const;

  void Add(absl::string_view field, absl::string_view message) const;
  // Adds a violation unless `holds`.
  void Check(bool holds, absl::string_view field,
             absl::string_view message) const;
  // Requires value >= least.
  template <typename T>
  void CheckAtLeast(std::type_identity_t<T> least, T value,
                    absl::string_view field) const {
    Check(value >= least, field,
          absl::StrCat("must be >= ", least, "; is ", value));
  }
  // Requires that `value`, rounded to FP32, is finite and > 0.
  void CheckPositiveInFp32(double value, absl::string_view field) const;
  // Requires that `value`, rounded to FP32, is finite and >= 0.
  void CheckNotNegativeInFp32(double value, absl::string_view field) const;

 private:
  std::vector<Violation>* list_;
  std::string prefix_;
};

// The first as InvalidArgument, its path after `prefix`; OK if there is none.
absl::Status FirstViolation(absl::Span<const Violation> violations,
                            absl::string_view prefix = "");

}  // namespace tessera

#endif  // FRAMEWORK_BASE_VIOLATIONS_H_
