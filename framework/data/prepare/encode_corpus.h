#ifndef FRAMEWORK_DATA_PREPARE_ENCODE_CORPUS_H_
#define FRAMEWORK_DATA_PREPARE_ENCODE_CORPUS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "framework/data/prepare/corpus.h"
#include "framework/data/tokenize/tokenizer.h"

namespace tessera {

// Receives a part's tokens, with the end-of-document token if it ends one.
using PartSink = absl::FunctionRef<absl::Status(const Corpus::Part& part,
                                                absl::Span<const int32_t> ids)>;

// Encodes every part on `threads` threads and passes the results to `sink` in
// the corpus's order, on the calling thread. Holds a few megabytes per thread,
// for any length of text. Stops at the first error.
absl::Status EncodeCorpus(const Corpus& corpus, const Tokenizer& tokenizer,
                          int threads, PartSink sink);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_ENCODE_CORPUS_H_
