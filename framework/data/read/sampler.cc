#include "framework/data/read/sampler.h"

#include <algorithm>

#include "framework/base/check.h"

namespace tessera {

WindowSampler::WindowSampler(int64_t tokens, int64_t context_length,
                             bool shuffle, uint64_t seed)
    : tokens_(tokens),
      context_length_(context_length),
      windows_((tokens - 1 + context_length - 1) / context_length),
      shuffle_(shuffle),
      seed_(seed) {
  TESSERA_CHECK(tokens >= 2 && context_length >= 1, tokens, " tokens, context ",
                context_length);
}

Permutation WindowSampler::Order(int64_t epoch) const {
  return Permutation(windows_, Mix(seed_, static_cast<uint64_t>(epoch)));
}

int64_t WindowSampler::Window(int64_t sample) const {
  const int64_t place = sample % windows_;
  return shuffle_ ? Order(sample / windows_)(place) : place;
}

int64_t WindowSampler::ValidTargets(int64_t window) const {
  return std::min(context_length_, tokens_ - 1 - window * context_length_);
}

int64_t WindowSampler::ValidTargets(int64_t begin, int64_t end) const {
  if (begin >= end) return 0;
  int64_t valid = (end - begin) * context_length_;
  // Only the last window of each epoch may be short.
  const int64_t missing = context_length_ - ValidTargets(windows_ - 1);
  if (missing == 0) return valid;
  for (int64_t epoch = begin / windows_; epoch * windows_ < end; ++epoch) {
    const int64_t place =
        shuffle_ ? Order(epoch).Inverse(windows_ - 1) : windows_ - 1;
    const int64_t sample = epoch * windows_ + place;
    if (sample >= begin && sample < end) valid -= missing;
  }
  return valid;
}

}  // namespace tessera
