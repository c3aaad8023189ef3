#include "framework/observe/memory/pickle.h"

#include <limits>
#include <utility>

namespace tessera {

PickleWriter::PickleWriter() : bytes_("\x80\x02") {}

void PickleWriter::Int(int64_t value) {
  if (value >= std::numeric_limits<int32_t>::min() &&
      value <= std::numeric_limits<int32_t>::max()) {
    Opcode('J');
    LittleEndian(static_cast<uint64_t>(value), 4);
    return;
  }
  Opcode('\x8a');
  Opcode(8);
  LittleEndian(static_cast<uint64_t>(value), 8);
}

void PickleWriter::String(absl::string_view value) {
  const auto found = strings_.find(value);
  if (found != strings_.end()) return Repeat(found->second);
  Opcode('X');
  LittleEndian(value.size(), 4);
  bytes_.append(value.data(), value.size());
  strings_.emplace(value, Remember());
}

uint32_t PickleWriter::Remember() {
  Opcode('r');
  LittleEndian(remembered_, 4);
  return remembered_++;
}

void PickleWriter::Repeat(uint32_t number) {
  Opcode('j');
  LittleEndian(number, 4);
}

std::string PickleWriter::Finish() && {
  Opcode('.');
  return std::move(bytes_);
}

void PickleWriter::LittleEndian(uint64_t value, int num_bytes) {
  for (int byte = 0; byte < num_bytes; ++byte) {
    bytes_.push_back(static_cast<char>(value >> (8 * byte)));
  }
}

}  // namespace tessera
