#ifndef FRAMEWORK_DATA_PREPARE_DOCUMENT_VALIDATION_SPLIT_H_
#define FRAMEWORK_DATA_PREPARE_DOCUMENT_VALIDATION_SPLIT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "framework/data/prepare/corpus.h"

namespace tessera {

// The validation split of text: whole documents, or parts of long ones, chosen
// by a seeded hash. For token files and synthetic tokens see
// read/token_validation_split.h, which holds out the end of the sequence.
//
// Sets Corpus::Part::is_validation. May divide one part in two.
//
//   text                      held out
//   the fraction is 0         nothing
//   a single document         that fraction of the bytes at its end: the last
//                             parts and the tail of the part before; both
//                             halves end a document
//   several documents         the round(fraction * parts) parts, at least one,
//                             with the smallest hashes
//   the same, if those have   parts in the order of their hashes, as long as
//   more than twice the       they fit into the fraction, and the tail of the
//   fraction of the bytes,    next part for the remaining bytes
//   or, with less than 1000
//   parts, less than half
//
// A tail begins at a line if one starts nearby, so it has between half and one
// and a half times the intended bytes. InvalidArgument if a single document is
// too short to hold out any of it.
absl::Status HoldOutDocuments(double fraction, uint64_t seed, Corpus* corpus);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_DOCUMENT_VALIDATION_SPLIT_H_
