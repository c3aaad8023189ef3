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
  // Why the first is not the table's first; empty where it is.
  std::string reason;
};

// That of the table, which goes by speed on an H200, but for problems on which
// bench/rank_attention.py measured another backend to be faster there
// (docs/results/attention_h200), and for GPUs on which nobody measured.
// Backends that hold [B, H, S, T] tensors stay behind those that do not but for
// FLASH_TILED, even where they are faster: what they hold is what a model runs
// out of first.
AutoOrder AutoOrderFor(const AttentionProblem& problem,
                       absl::Span<const AttentionBackend* const> table);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_AUTO_ORDER_H_
