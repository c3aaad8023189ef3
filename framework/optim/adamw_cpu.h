#ifndef FRAMEWORK_OPTIM_ADAMW_CPU_H_
#define FRAMEWORK_OPTIM_ADAMW_CPU_H_

#include <cstdint>

#include "framework/optim/adamw_update.h"
#include "framework/optim/ema_math.h"

namespace tessera {

// Updates the elements of chunks [begin, end) on the calling thread, with the
// coefficients of each group. Returns false for dtypes that VisitAdamWDtypes()
// does not support.
bool UpdateAdamWChunks(const AdamWBuffers& buffers,
                       const AdamWCoefficients* coefficients, int64_t begin,
                       int64_t end);

// A pass over weights and averages, likewise. Does not read EmaBuffers::skips.
bool PassEmaChunks(const AdamWBuffers& buffers, const EmaBuffers& ema,
                   EmaPass pass, int64_t begin, int64_t end);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_ADAMW_CPU_H_
