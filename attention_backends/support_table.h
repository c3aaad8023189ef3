#ifndef ATTENTION_BACKENDS_SUPPORT_TABLE_H_
#define ATTENTION_BACKENDS_SUPPORT_TABLE_H_

#include <string>

#include "absl/types/span.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// The Markdown table of docs/attention_backends.md: what each backend supports.
// Built by asking Supports() and Plan() about a causal BF16 problem with one
// property changed at a time, so it cannot disagree with what runs.
std::string SupportTable(absl::Span<const AttentionBackend* const> backends);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_SUPPORT_TABLE_H_
