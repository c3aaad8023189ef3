#include "bench/measure/over_ranks.h"

#include <ATen/ATen.h>

#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {

absl::StatusOr<std::vector<double>> MaxOverRanks(std::vector<double> values,
                                                 ProcessGroup* group,
                                                 c10::Device device) {
  if (group->world_size() == 1 || values.empty()) return values;
  RETURN_IF_ERROR(StatusFromTorchOr([&]() -> absl::Status {
    const int64_t n = static_cast<int64_t>(values.size());
    const at::Tensor own =
        at::from_blob(values.data(), {n}, at::kDouble).to(device);
    const at::Tensor all = at::empty({group->world_size(), n}, own.options());
    RETURN_IF_ERROR(group->AllGather(own, all));
    const at::Tensor largest = all.amax(0).cpu();
    const double* data = largest.const_data_ptr<double>();
    values.assign(data, data + n);
    return absl::OkStatus();
  }));
  return values;
}

}  // namespace tessera
