#ifndef BENCH_DIST_COLLECTIVE_H_
#define BENCH_DIST_COLLECTIVE_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/dist/process_group.h"

namespace tessera {

// The tensors of a collective on this rank.
struct Operands {
  at::Tensor whole;
  at::Tensor own;    // this rank's part of `whole`
  at::Tensor other;  // as large as `whole`; undefined if not needed
};

// An operation of ProcessGroup, as the bench calls it. ReduceScatterSum() and
// AllGather() have their shard at its place in the whole.
struct Collective {
  absl::string_view name;  // "all_reduce"
  // Bytes that a link of each rank carries in one direction, in units of the
  // bytes of `whole`, if the operation moves as few as possible. It makes
  // bandwidths of different operations and worlds comparable, as in nccl-tests.
  double (*bus_factor)(int world);
  bool needs_other = false;
  bool sums_in_place = false;
  absl::Status (*call)(ProcessGroup& group, const Operands& operands);
};

absl::Span<const Collective> Collectives();
// InvalidArgument lists the names.
absl::StatusOr<const Collective*> FindCollective(absl::string_view name);

// Operands of at most `bytes` bytes per tensor: as many elements as divide by
// the world, at least one for each rank. Random, but zeros for a sum in place,
// which would grow from call to call.
absl::StatusOr<Operands> MakeOperands(const Collective& collective,
                                      int64_t bytes, at::ScalarType dtype,
                                      c10::Device device,
                                      const ProcessGroup& group);

}  // namespace tessera

#endif  // BENCH_DIST_COLLECTIVE_H_
