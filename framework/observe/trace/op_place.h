#ifndef FRAMEWORK_OBSERVE_TRACE_OP_PLACE_H_
#define FRAMEWORK_OBSERVE_TRACE_OP_PLACE_H_

#include <string>
#include <vector>

#include "framework/observe/trace/trace.h"

namespace tessera {

// What the host was doing when it issued an activity, in the words of a
// program's rows (StepRow): the range "backward > recompute > block_3 >
// attention > sdpa > softmax" is
//   phase "recompute", group "block_3/attention", op "sdpa", part "softmax".
struct OpPlace {
  std::string phase = "outside";  // of all phases
  std::string group;              // phases around the op, without `phase`
  std::string op;                 // empty outside of ops
  std::string part;               // phases inside the op
  // Index of the step's range; -1 in evaluation, a checkpoint and the like.
  int step = -1;

  // "block_3", or "outside" for what belongs to no block.
  std::string block() const;
};

// Of every range of the trace.
std::vector<OpPlace> PlacesOf(const Trace& trace);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_OP_PLACE_H_
