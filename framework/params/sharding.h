#ifndef FRAMEWORK_PARAMS_SHARDING_H_
#define FRAMEWORK_PARAMS_SHARDING_H_

#include <cstdint>

namespace tessera {

// How ranks share the state of trained parameters. The flat buffers consist of
// sections (ParameterSection), and each section of `shards` equal parts, one
// for each rank. Ranks sum the gradients of a section part by part, so a
// gradient has the same bits whether or not state is divided.
struct Sharding {
  int shards = 1;
  int index = 0;  // this rank's part
  // ZeRO stage 1 (Rajbhandari et al., "ZeRO: Memory Optimizations Toward
  // Training Trillion Parameter Models", 2020): a rank has moments and the low
  // halves of weights only for its parts, updates those, and gathers the rest
  // of what ops read.
  bool divides_optimizer = false;

  // Part `shard` of the range [begin, end).
  int64_t PartBegin(int64_t begin, int64_t end, int shard) const {
    return begin + (end - begin) / shards * shard;
  }
  // By how many elements this rank's part of the section [begin, end) of a
  // whole buffer lies further back in a buffer that ranks divide.
  int64_t Shift(int64_t begin, int64_t end) const {
    if (!divides_optimizer) return 0;
    return PartBegin(begin, end, index) - begin / shards;
  }
  // How many elements of `extent` a rank has in a buffer that ranks divide.
  int64_t Held(int64_t extent) const {
    return divides_optimizer ? extent / shards : extent;
  }
};

}  // namespace tessera

#endif  // FRAMEWORK_PARAMS_SHARDING_H_
