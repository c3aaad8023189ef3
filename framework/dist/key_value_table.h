#ifndef FRAMEWORK_DIST_KEY_VALUE_TABLE_H_
#define FRAMEWORK_DIST_KEY_VALUE_TABLE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace tessera {

// A request to a KeyValueTable, or its answer: a list of byte strings.
using Fields = std::vector<std::string>;

// Encodes a list: its size, then each field's size and bytes. Sizes are 32-bit
// little-endian.
std::string EncodeFields(const Fields& fields);

// Removes an encoded list from the front of `bytes`. Returns nullopt if the
// list is not complete yet, and InvalidArgument if it is longer than any valid
// request.
absl::StatusOr<absl::optional<Fields>> TakeFields(std::string& bytes);

// The table behind the store of a run. It never waits: clients poll.
//
//   request                        answer
//   set KEY VALUE                  -
//   get KEY                        VALUE, or nothing if the key is missing
//   add KEY NUMBER                 the sum; a missing key counts as 0
//   compare_set KEY EXPECTED NEW   the value afterwards; a missing key is set
//                                  if EXPECTED is empty
//   check KEY...                   1 if the table has all keys, else 0
//   delete KEY                     1 if the key existed, else 0
//   size                           the number of keys
class KeyValueTable {
 public:
  // InvalidArgument for an unknown request.
  absl::StatusOr<Fields> Apply(const Fields& request);

 private:
  absl::StatusOr<Fields> Add(const std::string& key, absl::string_view number);
  Fields CompareSet(const std::string& key, const std::string& expected,
                    const std::string& desired);

  std::map<std::string, std::string> values_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_KEY_VALUE_TABLE_H_
