#ifndef ATTENTION_BACKENDS_BACKEND_TABLE_H_
#define ATTENTION_BACKENDS_BACKEND_TABLE_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// Every backend, the fastest on an H200 first (auto_order.h).
absl::Span<const AttentionBackend* const> AttentionBackends();
// The backend with that name, or null.
const AttentionBackend* FindBackend(absl::string_view name);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_BACKEND_TABLE_H_
