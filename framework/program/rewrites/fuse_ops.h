#ifndef FRAMEWORK_PROGRAM_REWRITES_FUSE_OPS_H_
#define FRAMEWORK_PROGRAM_REWRITES_FUSE_OPS_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "framework/program/program.h"

namespace tessera {

struct FusedProgram {
  Program program;
  std::vector<Value> renumbered;  // by the old value; undefined if it is gone
};

// Rewrites a program: an op and the next one, which reads its result, become
// one (Op::FuseWith()), which saves launches and memory traffic. The new op
// belongs to the scope of the first; its name joins theirs:
// "head/lm_head+cross_entropy". A result that does not remain must have no
// other reader.
//
// `wanted`: whether these two ops shall become one.
using WantsFusion = absl::FunctionRef<bool(
    Fusion fusion, const OpNode& producer, const OpNode& reader)>;
FusedProgram FuseOps(Program program, WantsFusion wanted);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_FUSE_OPS_H_
