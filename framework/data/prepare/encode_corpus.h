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

// Gets a part's tokens, the end-of-document token included where it ends one.
using PartSink = absl::FunctionRef<absl::Status(const Corpus::Part& part,
                                                absl::Span<const int32_t> ids)>;

// Encodes every part on `threads` threads, 256 at most, and hands the results
// to `sink` in the corpus's order, on the calling thread. Holds some megabytes
// per thread, however long the text is. Stops at the first error.
absl::Status EncodeCorpus(const Corpus& corpus, const Tokenizer& tokenizer,
                          int threads, PartSink sink);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_ENCODE_CORPUS_H_
