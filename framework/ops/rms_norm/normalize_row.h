#ifndef FRAMEWORK_OPS_RMS_NORM_NORMALIZE_ROW_H_
#define FRAMEWORK_OPS_RMS_NORM_NORMALIZE_ROW_H_

#include <cstdint>

// CPU loops over one row of FP32, for ops with an RMSNorm (rms_norm.h).

namespace tessera {
namespace cpu {

// Writes y and returns r. y may be x.
float Normalize(const float* x, const float* gain, float eps, int64_t count,
                float* y);

// Writes dx and, unless dgain is null, adds to it. dx may be dy.
void NormalizeGradient(const float* dy, const float* x, const float* gain,
                       float r, int64_t count, float* dx, float* dgain);

}  // namespace cpu
}  // namespace tessera

#endif  // FRAMEWORK_OPS_RMS_NORM_NORMALIZE_ROW_H_
