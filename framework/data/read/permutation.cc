#include "framework/data/read/permutation.h"

#include <bit>

#include "framework/base/check.h"

namespace tessera {

Permutation::Permutation(int64_t size, uint64_t key) : size_(size) {
  TESSERA_CHECK(size >= 1, "size ", size);
  const int bits = std::bit_width(static_cast<uint64_t>(size - 1));
  low_bits_ = bits / 2;
  low_mask_ = (uint64_t{1} << low_bits_) - 1;
  high_mask_ = (uint64_t{1} << (bits - low_bits_)) - 1;
  for (int round = 0; round < kRounds; ++round) {
    keys_[round] = Mix(key, round);
  }
}

int64_t Permutation::operator()(int64_t index) const {
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t high = value >> low_bits_;
    uint64_t low = value & low_mask_;
    for (int round = 0; round < kRounds; round += 2) {
      high ^= Mix(low ^ keys_[round]) & high_mask_;
      low ^= Mix(high ^ keys_[round + 1]) & low_mask_;
    }
    value = high << low_bits_ | low;
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

int64_t Permutation::Inverse(int64_t image) const {
  auto value = static_cast<uint64_t>(image);
  do {
    uint64_t high = value >> low_bits_;
    uint64_t low = value & low_mask_;
    for (int round = kRounds - 2; round >= 0; round -= 2) {
      low ^= Mix(high ^ keys_[round + 1]) & low_mask_;
      high ^= Mix(low ^ keys_[round]) & high_mask_;
    }
    value = high << low_bits_ | low;
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

}  // namespace tessera
