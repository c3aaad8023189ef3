#ifndef FRAMEWORK_DIST_EXCHANGED_SUM_H_
#define FRAMEWORK_DIST_EXCHANGED_SUM_H_

#include "c10/core/ScalarType.h"

namespace tessera {

// Whether ranks exchange the addends of a scattered sum and add them in FP32
// (Communicator::ReduceScatterSum()): because a ring would round at each of
// them, or because it would take multiprocessors from what computes beside it,
// which copy engines do not. Between two ranks a ring rounds once, too.
inline bool IsExchanged(at::ScalarType dtype, int ranks, bool copy_engines) {
  return (ranks > 2 || (ranks == 2 && copy_engines)) &&
         (dtype == at::kBFloat16 || dtype == at::kHalf);
}

}  // namespace tessera

#endif  // FRAMEWORK_DIST_EXCHANGED_SUM_H_
