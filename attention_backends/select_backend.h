#ifndef ATTENTION_BACKENDS_SELECT_BACKEND_H_
#define ATTENTION_BACKENDS_SELECT_BACKEND_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

struct BackendChoice {
  const AttentionBackend* backend = nullptr;
  // Why this backend was chosen and the ones before it were not; for the log.
  std::string reason;
};

// The backend that a run asks for; attention_config.proto explains the fields.
struct BackendRequest {
  std::string name = "AUTO";
  int naive_held_score_tensors = 1;
};

// The backend and variant that `request` names, or for AUTO the first backend
// in AutoOrderFor() that supports the problem. The error names the requirement
// that is not met and lists every backend that would run.
absl::StatusOr<BackendChoice> SelectBackend(const BackendRequest& request,
                                            const AttentionProblem& problem);
// Selects from `table` instead of AttentionBackends().
absl::StatusOr<BackendChoice> SelectBackend(
    const BackendRequest& request, const AttentionProblem& problem,
    absl::Span<const AttentionBackend* const> table);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_SELECT_BACKEND_H_
