#ifndef FRAMEWORK_DATA_READ_SAMPLER_H_
#define FRAMEWORK_DATA_READ_SAMPLER_H_

#include <cstdint>

#include "framework/data/read/permutation.h"

namespace tessera {

// Divides a sequence of T tokens into windows of C inputs with the next tokens
// as targets: window w has inputs [wC, wC + C) and targets [wC + 1, wC + C +
// 1). The targets of an epoch are tokens 1 .. T-1, each once; missing targets
// of the last window are padding.
//
// Numbers the samples of a run: sample n is window order(n / W, n mod W) of
// epoch n / W, with W windows per epoch and a permutation `order` per epoch. So
// the position in the data is one number, and seeking is free.
class WindowSampler {
 public:
  // `tokens` >= 2, `context_length` >= 1.
  WindowSampler(int64_t tokens, int64_t context_length, bool shuffle,
                uint64_t seed);

  int64_t windows() const { return windows_; }
  int64_t context_length() const { return context_length_; }

  // Any `sample` >= 0.
  int64_t Window(int64_t sample) const;

  // Number of targets of window `window`, in [1, context_length].
  int64_t ValidTargets(int64_t window) const;
  // Total number of targets of samples [begin, end), in constant time per
  // epoch.
  int64_t ValidTargets(int64_t begin, int64_t end) const;

 private:
  Permutation Order(int64_t epoch) const;

  const int64_t tokens_;
  const int64_t context_length_;
  const int64_t windows_;
  const bool shuffle_;
  const uint64_t seed_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_READ_SAMPLER_H_
