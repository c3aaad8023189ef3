#ifndef FRAMEWORK_OBSERVE_MEMORY_PICKLE_H_
#define FRAMEWORK_OBSERVE_MEMORY_PICKLE_H_

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Writes one value in Python's pickle format, protocol 2, with the opcodes that
// the reader of pytorch.org/memory_viz knows. A container is begun, then each
// element is put and added:
//
//   PickleWriter pickle;
//   pickle.BeginDict();
//   pickle.Key("sizes");
//   pickle.BeginList();
//   pickle.Int(1);
//   pickle.Append();
//   pickle.SetItem();
//   std::string bytes = std::move(pickle).Finish();  // {"sizes": [1]}
class PickleWriter {
 public:
  PickleWriter();

  void Bool(bool value) { Opcode(value ? '\x88' : '\x89'); }
  void Int(int64_t value);
  // `value` is UTF-8. A text that was written before costs five bytes.
  void String(absl::string_view value);

  void BeginList() { Opcode(']'); }
  void Append() { Opcode('a'); }  // the last value, to the list before it
  void BeginDict() { Opcode('}'); }
  void Key(absl::string_view key) { String(key); }
  void SetItem() { Opcode('s'); }    // the last two values, in the dict before
  void Tuple2() { Opcode('\x86'); }  // of the last two values

  // Numbers the last value, to be written again by Repeat(): the same object,
  // as Python sees it.
  uint32_t Remember();
  void Repeat(uint32_t number);

  std::string Finish() &&;

 private:
  void Opcode(char opcode) { bytes_.push_back(opcode); }
  void LittleEndian(uint64_t value, int num_bytes);

  std::string bytes_;
  uint32_t remembered_ = 0;
  absl::flat_hash_map<std::string, uint32_t> strings_;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_MEMORY_PICKLE_H_
