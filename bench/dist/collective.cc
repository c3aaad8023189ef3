#include "bench/dist/collective.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

double Once(int) { return 1; }
// Each rank already has its own part.
double OtherParts(int world) { return (world - 1.0) / world; }
double OtherPartsTwice(int world) { return 2 * OtherParts(world); }

constexpr Collective kCollectives[] = {
    {.name = "all_reduce",
     .bus_factor = OtherPartsTwice,
     .sums_in_place = true,
     .call = [](ProcessGroup& group,
                const Operands& o) { return group.AllReduceSum(o.whole); }},
    {.name = "reduce_scatter",
     .bus_factor = OtherParts,
     .call =
         [](ProcessGroup& group, const Operands& o) {
           return group.ReduceScatterSum(o.whole, o.own);
         }},
    {.name = "all_gather",
     .bus_factor = OtherParts,
     .call = [](ProcessGroup& group,
                const Operands& o) { return group.AllGather(o.own, o.whole); }},
    {.name = "all_to_all",
     .bus_factor = OtherParts,
     .needs_other = true,
     .call =
         [](ProcessGroup& group, const Operands& o) {
           return group.AllToAll(o.whole, o.other);
         }},
    {.name = "broadcast",
     .bus_factor = Once,
     .call =
         [](ProcessGroup& group, const Operands& o) {
           return group.Broadcast(o.whole, /*root=*/0);
         }},
};

}  // namespace

absl::Span<const Collective> Collectives() { return kCollectives; }

absl::StatusOr<const Collective*> FindCollective(absl::string_view name) {
  for (const Collective& collective : kCollectives) {
    if (collective.name == name) return &collective;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no operation '", name, "'; the operations are ",
      absl::StrJoin(kCollectives, ", ", [](std::string* out, const auto& c) {
        absl::StrAppend(out, c.name);
      })));
}

absl::StatusOr<Operands> MakeOperands(const Collective& collective,
                                      int64_t bytes, at::ScalarType dtype,
                                      c10::Device device,
                                      const ProcessGroup& group) {
  Operands operands;
  RETURN_IF_ERROR(StatusFromTorch([&] {
    const int64_t element = static_cast<int64_t>(c10::elementSize(dtype));
    const int64_t part =
        std::max<int64_t>(1, bytes / element / group.world_size());
    operands.whole = at::zeros({part * group.world_size()},
                               at::TensorOptions(device).dtype(dtype));
    if (!collective.sums_in_place) operands.whole.normal_();
    operands.own = operands.whole.narrow(0, part * group.rank(), part);
    if (collective.needs_other) {
      operands.other = at::empty_like(operands.whole);
    }
  }));
  return operands;
}

}  // namespace tessera
