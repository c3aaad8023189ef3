#ifndef FRAMEWORK_DATA_PREPARE_DOCUMENT_VALIDATION_SPLIT_H_
#define FRAMEWORK_DATA_PREPARE_DOCUMENT_VALIDATION_SPLIT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "framework/data/prepare/corpus.h"

namespace tessera {

// The validation split of text: whole documents, or parts of long ones, chosen
// by a seeded hash. Token files and synthetic tokens hold out the end of their
// sequence instead (read/token_validation_split.h).
//
// Sets Corpus::Part::is_validation and may cut one part in two:
//
//   text                      held out
//   no fraction asked for     nothing
//   a single document         its last parts and the tail of the one before, of
//                             that fraction of the bytes; both halves end a
//                             document
//   several documents         the round(fraction * parts) parts, at least one,
//                             with the smallest hash
//   the same, if those have   the parts in the order of the hash that fit into
//   more than twice the       the fraction, and the tail of the next for the
//   fraction of the bytes,    bytes that are missing
//   or, of less than 1000
//   parts, less than half
//
// A tail begins at a line if one begins near: half to one and a half times as
// many bytes as asked for are held out then. InvalidArgument if a single
// document is too short to hold out any of it.
absl::Status HoldOutDocuments(double fraction, uint64_t seed, Corpus* corpus);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_DOCUMENT_VALIDATION_SPLIT_H_
