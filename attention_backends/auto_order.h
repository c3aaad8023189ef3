#ifndef ATTENTION_BACKENDS_AUTO_ORDER_H_
#define ATTENTION_BACKENDS_AUTO_ORDER_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// The order in which AUTO tries backends for a problem.
struct AutoOrder {
  std::vector<const AttentionBackend*> backends;
  // Why the first backend is not the table's first; empty if it is.
  std::string reason;
};

// The order of the table (fastest on an H200 first), except for problems on
// which bench/rank_attention.py measured another backend to be faster
// (docs/results/attention_h200) and for GPUs that were not measured. Backends
// that hold [B, H, S, T] tensors, even if they are faster, come after all that
// do not, except FLASH_TILED: these tensors are the first for which a model
// runs out of memory.
AutoOrder AutoOrderFor(const AttentionProblem& problem,
                       absl::Span<const AttentionBackend* const> table);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_AUTO_ORDER_H_
