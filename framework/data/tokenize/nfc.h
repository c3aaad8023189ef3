#ifndef FRAMEWORK_DATA_TOKENIZE_NFC_H_
#define FRAMEWORK_DATA_TOKENIZE_NFC_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

// Unicode's Normalization Form C of `text`, which must be UTF-8: a view of
// `text` if it certainly has this form, else of `buffer`.
absl::string_view ToNfc(absl::string_view text, std::string* buffer);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_NFC_H_
