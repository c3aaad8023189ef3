#ifndef FRAMEWORK_DATA_READ_PERMUTATION_H_
#define FRAMEWORK_DATA_READ_PERMUTATION_H_

#include <array>
#include <cstdint>

namespace tessera {

// Mixes 64 bits (SplitMix64's finalizer; Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", OOPSLA 2014).
constexpr uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
// Mixes an ordered pair.
constexpr uint64_t Mix(uint64_t a, uint64_t b) { return Mix(Mix(a) ^ b); }

// A pseudorandom permutation of [0, size), chosen by `key`, that can be
// evaluated at any index in constant time and memory: a Feistel network on the
// next power of two, repeated while its value is outside (Black and Rogaway,
// "Ciphers with arbitrary finite domains", CT-RSA 2002, section 4). The power
// of two is less than twice `size`, so fewer than two evaluations are expected.
class Permutation {
 public:
  // `size` >= 1.
  Permutation(int64_t size, uint64_t key);

  // `index` in [0, size).
  int64_t operator()(int64_t index) const;
  // The inverse: Inverse(permutation(i)) == i.
  int64_t Inverse(int64_t image) const;

 private:
  // Four rounds of good round functions give a strong pseudorandom permutation
  // of a large domain (Luby and Rackoff, 1988). Tiny domains need more rounds
  // until all orders are about equally likely.
  static constexpr int kRounds = 10;

  int64_t size_;
  int low_bits_ = 0;
  uint64_t low_mask_ = 0;
  uint64_t high_mask_ = 0;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_READ_PERMUTATION_H_
