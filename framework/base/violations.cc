#include "framework/base/violations.h"

#include <limits>

namespace tessera {

Violations Violations::In(absl::string_view field) const {
  Violations nested = *this;
  nested.prefix_ = absl::StrCat(prefix_, field, ".");
  return nested;
}

void Violations::Add(absl::string_view field, absl::string_view message) const {
  list_->push_back({absl::StrCat(prefix_, field), std::string(message)});
}

void Violations::Check(bool holds, absl::string_view field,
                       absl::string_view message) const {
  if (!holds) Add(field, message);
}

void Violations::CheckPositiveInFp32(double value,
                                     absl::string_view field) const {
  using Fp32 = std::numeric_limits<float>;
  if (!(value > 0)) {
    Add(field, absl::StrCat("must be > 0; is ", value));
    return;
  }
  Check(value >= Fp32::min() && value <= Fp32::max(), field,
        absl::StrCat("must be in the range of FP32, ", Fp32::min(), " to ",
                     Fp32::max(), "; is ", value));
}

void Violations::CheckNotNegativeInFp32(double value,
                                        absl::string_view field) const {
  if (!(value >= 0)) {
    Add(field, absl::StrCat("must be >= 0; is ", value));
    return;
  }
  constexpr float kMost = std::numeric_limits<float>::max();
  Check(value <= kMost, field,
        absl::StrCat("must be in the range of FP32, at most ", kMost, "; is ",
                     value));
}

absl::Status FirstViolation(absl::Span<const Violation> violations,
                            absl::string_view prefix) {
  if (violations.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(prefix, violations[0].path, ": ", violations[0].message));
}

}  // namespace tessera
