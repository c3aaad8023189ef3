#ifndef TRAINERS_RUN_BATCH_H_
#define TRAINERS_RUN_BATCH_H_

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace tessera {

// One rank's share of a step's global batch, in host memory or on the device: M
// micro-batches of B sequences of S tokens.
struct Batch {
  at::Tensor ids_mbs;  // int64; 0 where padded
  // int64; kIgnoredTarget where padded, and as DataSource::Options says.
  at::Tensor targets_mbs;
  // int64; places of the tokens in their documents (DataSource::Fill()): a
  // document begins where it is 0. Undefined if documents are joined.
  at::Tensor positions_mbs;
  // Number of targets that count, over all ranks and micro-batches: the divisor
  // of the summed losses.
  int64_t valid_targets = 0;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_BATCH_H_
