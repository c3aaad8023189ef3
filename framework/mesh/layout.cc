#include "framework/mesh/layout.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "framework/base/check.h"

namespace tessera {
namespace {

constexpr std::array<MeshAxis, kMeshAxes> kAxes = {
    MeshAxis::kPipeline, MeshAxis::kReplica, MeshAxis::kShard,
    MeshAxis::kContext, MeshAxis::kTensor};

// The degrees along which ranks divide sequences.
struct DataDegrees {
  int replica = 1, shard = 1;
};

DataDegrees DataDegreesOf(const LayoutOptions& options, int ranks) {
  if (options.shard.has_value()) {
    return {options.replica.has_value() ? *options.replica
                                        : std::max(1, ranks / *options.shard),
            *options.shard};
  }
  if (options.zero == 0) {
    return {options.replica.has_value() ? *options.replica : ranks, 1};
  }
  const int replica = options.replica.has_value() ? *options.replica : 1;
  return {replica, std::max(1, ranks / replica)};
}

}  // namespace

absl::string_view MeshAxisName(MeshAxis axis) {
  switch (axis) {
    case MeshAxis::kPipeline:
      return "pipeline";
    case MeshAxis::kReplica:
      return "replica";
    case MeshAxis::kShard:
      return "shard";
    case MeshAxis::kContext:
      return "context";
    case MeshAxis::kTensor:
      return "tensor";
  }
  CheckFailed(__FILE__, __LINE__, "no such axis");
}

int Mesh::ranks() const {
  int ranks = 1;
  for (const int degree : degrees) ranks *= degree;
  return ranks;
}

int Mesh::CoordinateOf(int rank, MeshAxis axis) const {
  for (int a = kMeshAxes - 1; a > static_cast<int>(axis); --a) {
    rank /= degrees[a];
  }
  return rank % degree(axis);
}

int Layout::data_ranks() const {
  return mesh.degree(MeshAxis::kReplica) * mesh.degree(MeshAxis::kShard);
}

int Layout::data_rank() const {
  return mesh.CoordinateOf(rank, MeshAxis::kReplica) *
             mesh.degree(MeshAxis::kShard) +
         mesh.CoordinateOf(rank, MeshAxis::kShard);
}

Sharding Layout::sharding() const {
  if (zero == 0 || data_ranks() == 1) {
    return {.shards = data_ranks(), .index = data_rank()};
  }
  return {.shards = mesh.degree(MeshAxis::kShard),
          .index = mesh.CoordinateOf(rank, MeshAxis::kShard),
          .zero = zero,
          .replicas = mesh.degree(MeshAxis::kReplica)};
}

std::vector<int> Layout::checkpoint_ranks() const {
  Layout first = *this;
  first.rank = 0;
  return first.RanksAlong(zero == 0 ? MeshAxis::kReplica : MeshAxis::kShard);
}

std::vector<int> Layout::RanksAlong(MeshAxis axis) const {
  int stride = 1;
  for (int a = kMeshAxes - 1; a > static_cast<int>(axis); --a) {
    stride *= mesh.degrees[a];
  }
  std::vector<int> ranks;
  for (int i = 0; i < mesh.degree(axis); ++i) {
    ranks.push_back(rank + (i - mesh.CoordinateOf(rank, axis)) * stride);
  }
  return ranks;
}

absl::StatusOr<Layout> MakeLayout(const LayoutOptions& options, int ranks,
                                  int rank) {
  const auto [replica, shard] = DataDegreesOf(options, ranks);
  if (int64_t{replica} * shard != ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.", options.shard.has_value() ? "shard" : "replica",
                     ": replica (", replica, ") x shard (", shard, ") is ",
                     int64_t{replica} * shard, ", but the run has ", ranks,
                     " rank", ranks == 1 ? "" : "s",
                     "; set degrees whose product is that, or remove them"));
  }
  if (options.zero == 0 && shard > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.shard: is ", shard,
                     ", but with layout.zero 0 no state is "
                     "divided; set layout.zero: 1, or layout.replica: ",
                     ranks));
  }
  if (options.zero > 0 && shard == 1 && replica > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.shard: is 1, so that no state is divided, but layout.zero is ",
        options.zero,
        "; remove layout.replica and layout.shard, or set layout.zero: 0"));
  }
  Layout layout = {.rank = rank, .zero = options.zero};
  layout.mesh.degrees[static_cast<int>(MeshAxis::kReplica)] = replica;
  layout.mesh.degrees[static_cast<int>(MeshAxis::kShard)] = shard;
  return layout;
}

std::string Describe(const Layout& layout) {
  const int ranks = layout.mesh.ranks();
  std::string text = absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks");
  const char* separator = ": ";
  for (const MeshAxis axis : kAxes) {
    const int degree = layout.mesh.degree(axis);
    if (degree == 1) continue;
    absl::StrAppend(&text, separator, MeshAxisName(axis), " ", degree);
    separator = " x ";
  }
  constexpr absl::string_view kDivided[] = {
      "optimizer's state", "optimizer's state and gradients",
      "optimizer's state, gradients and weights"};
  if (const Sharding sharding = layout.sharding(); sharding.zero > 0) {
    absl::StrAppend(&text, ", ZeRO ", sharding.zero, ": each has 1/",
                    sharding.shards, " of the ", kDivided[sharding.zero - 1]);
  }
  return text;
}

}  // namespace tessera
