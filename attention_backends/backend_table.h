#ifndef ATTENTION_BACKENDS_BACKEND_TABLE_H_
#define ATTENTION_BACKENDS_BACKEND_TABLE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// Every backend, the fastest on an H200 first (auto_order.h).
absl::Span<const AttentionBackend* const> AttentionBackends();
// The one of that name, or null.
const AttentionBackend* FindBackend(absl::string_view name);

struct BackendChoice {
  const AttentionBackend* backend = nullptr;
  // Why this one and why not those before it; for the log.
  std::string reason;
};

// What a run asks for; attention_config.proto says what it means.
struct BackendRequest {
  std::string name = "AUTO";
  int naive_held_score_tensors = 1;
};

// The backend that `request` names, in the variant that it describes, or for
// AUTO the first in AutoOrderFor() that supports the problem. The error lists
// the requirement that was not met and every backend that would run.
absl::StatusOr<BackendChoice> SelectBackend(const BackendRequest& request,
                                            const AttentionProblem& problem);
// The same over another table, in its order.
absl::StatusOr<BackendChoice> SelectBackend(
    const BackendRequest& request, const AttentionProblem& problem,
    absl::Span<const AttentionBackend* const> table);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_BACKEND_TABLE_H_
