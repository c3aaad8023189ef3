#include "trainers/run/numbers_of_ranks.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {

absl::StatusOr<std::vector<int64_t>> NumbersOfRanks(int64_t own,
                                                    c10::Device device,
                                                    ProcessGroup* group) {
  std::vector<int64_t> numbers(group->world_size(), own);
  if (numbers.size() == 1) return numbers;
  RETURN_IF_ERROR(StatusFromTorch([&] {
    const auto options = at::device(device).dtype(at::kLong);
    at::Tensor all = at::empty({group->world_size()}, options);
    ThrowIfError(group->AllGather(at::full({1}, own, options), all));
    all = all.cpu();
    std::copy_n(all.const_data_ptr<int64_t>(), numbers.size(), numbers.begin());
  }));
  return numbers;
}

}  // namespace tessera
