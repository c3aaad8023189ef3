#include "framework/base/torch_status.h"
#include "framework/cuda/float_type_of.h"
#include "framework/cuda/launch.h"
#include "framework/params/truncated_normal_fill.h"
#include "framework/params/truncated_normal_launch.h"

namespace tessera {
namespace cuda {

void FillTruncatedNormal(const TruncatedNormal& normal,
                         const at::Tensor& values) {
  ThrowIfError(Launch(values, "the initial values' kernel",
                      LaunchTruncatedNormal, normal, FloatTypeOf(values),
                      values.numel(), values.mutable_data_ptr()));
}

void FillTruncatedNormal(const TruncatedNormal& normal, const at::Tensor& high,
                         const at::Tensor& low) {
  ThrowIfError(Launch(high, "the initial values' kernel",
                      LaunchSplitTruncatedNormal, normal, high.numel(),
                      static_cast<uint16_t*>(high.mutable_data_ptr()),
                      low.mutable_data_ptr<int16_t>()));
}

}  // namespace cuda
}  // namespace tessera
