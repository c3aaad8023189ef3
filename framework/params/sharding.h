#ifndef FRAMEWORK_PARAMS_SHARDING_H_
#define FRAMEWORK_PARAMS_SHARDING_H_

#include <cstdint>

namespace tessera {

// Every block of a ParameterStore starts at a multiple of this number of
// elements: 256 bytes of a 2-byte dtype, so the layout is the same for all
// dtypes.
inline constexpr int64_t kBlockAlignment = 128;
inline constexpr int64_t AlignUp(int64_t offset) {
  return (offset + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// How ranks divide a flat buffer. It consists of sections; each section has
// `shards` equal parts, one per rank. A rank stores its parts contiguously.
struct Division {
  int shards = 1;  // 1: this rank has the whole buffer
  int index = 0;   // this rank's part
  // The elements [replicated, trained) are divided. Every rank has the others.
  int64_t replicated = 0, trained = 0;

  // Elements of the divided sections that this rank does not have.
  int64_t elsewhere() const {
    return (trained - replicated) - (trained - replicated) / shards;
  }
  // The place in the rank's buffer of its part of the section that begins at
  // `begin` of the whole buffer.
  int64_t HeldBegin(int64_t begin) const {
    return replicated + (begin - replicated) / shards;
  }
  // Elements between the place of this rank's part of the section [begin, end)
  // in the whole buffer and its place in the rank's buffer.
  int64_t Shift(int64_t begin, int64_t end) const {
    if (begin < replicated) return 0;
    return begin + (end - begin) / shards * index - HeldBegin(begin);
  }
};

// How ranks share the state of trained parameters. Ranks sum the gradients of a
// section part by part, so a gradient has the same bits whether or not state is
// divided.
struct Sharding {
  int shards = 1;
  int index = 0;  // this rank's part
  // The stage of ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations Toward
  // Training Trillion Parameter Models", 2020). A rank has only its parts of
  //   1  the moments and the low halves of weights. It updates its part of the
  //      weights, and gathers the rest of what ops read;
  //   2  also the summed gradients;
  //   3  also the weights, which ranks gather before ops read them. Vectors and
  //      frozen weights stay whole.
  // 0 if there is one shard.
  int zero = 0;
  // Groups of `shards` ranks with the same state, which sum their gradients. Of
  // sums over more than two groups, BF16 and FP16 are rounded at each.
  int replicas = 1;
  // Whether the copy engines of one machine's GPUs move what ranks gather and
  // exchange (Communicator::UseCopyEngines()).
  bool copy_engines = false;

  bool divides_optimizer() const { return zero >= 1; }
  bool divides_gradients() const { return zero >= 2; }
  bool divides_weights() const { return zero >= 3; }

  // Part `shard` of the range [begin, end).
  int64_t PartBegin(int64_t begin, int64_t end, int shard) const {
    return begin + (end - begin) / shards * shard;
  }
  // How this rank has a buffer whose sections have `trained` elements. If
  // `divided`, ranks divide those from `replicated` on.
  Division Divide(bool divided, int64_t trained, int64_t replicated = 0) const {
    if (!divided) return {.trained = trained};
    return {.shards = shards,
            .index = index,
            .replicated = replicated,
            .trained = trained};
  }
  // How many of `extent` elements of the moments or gradients a rank has.
  int64_t HeldMoments(int64_t extent) const {
    return divides_optimizer() ? extent / shards : extent;
  }
  int64_t HeldGradients(int64_t extent) const {
    return divides_gradients() ? extent / shards : extent;
  }
};

}  // namespace tessera

#endif  // FRAMEWORK_PARAMS_SHARDING_H_
