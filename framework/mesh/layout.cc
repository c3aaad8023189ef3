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

void CheckDegree(Violations violations, absl::string_view field, int degree) {
  violations.Check(degree >= 1, field,
                   absl::StrCat("must be >= 1; is ", degree));
}

void CheckNotBuilt(Violations violations, absl::string_view field, int degree) {
  violations.Check(degree == 1, field,
                   absl::StrCat("is ", degree,
                                ", but only 1 is supported; use layout.replica "
                                "or layout.shard"));
}

// The degrees along which ranks divide sequences.
struct DataDegrees {
  int replica = 1, shard = 1;
};

DataDegrees DataDegreesOf(const LayoutConfig& config, int ranks) {
  if (config.has_shard()) {
    return {config.has_replica() ? config.replica()
                                 : std::max(1, ranks / config.shard()),
            config.shard()};
  }
  if (config.zero() == 0) {
    return {config.has_replica() ? config.replica() : ranks, 1};
  }
  const int replica = config.has_replica() ? config.replica() : 1;
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
  return {.shards = data_ranks(),
          .index = data_rank(),
          .divides_optimizer = zero > 0 && data_ranks() > 1};
}

void Validate(const LayoutConfig& config, Violations violations) {
  violations.Check(config.zero() == 0 || config.zero() == 1, "zero",
                   absl::StrCat("must be 0 or 1; is ", config.zero()));
  if (config.has_replica()) {
    CheckDegree(violations, "replica", config.replica());
  }
  if (config.has_shard()) CheckDegree(violations, "shard", config.shard());
  CheckNotBuilt(violations, "tensor", config.tensor());
  CheckNotBuilt(violations, "context", config.context());
  CheckNotBuilt(violations, "pipeline", config.pipeline());
}

absl::StatusOr<Layout> MakeLayout(const LayoutConfig& config, int ranks,
                                  int rank) {
  const auto [replica, shard] = DataDegreesOf(config, ranks);
  if (int64_t{replica} * shard != ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.", config.has_shard() ? "shard" : "replica", ": replica (",
        replica, ") x shard (", shard, ") is ", int64_t{replica} * shard,
        ", but the run has ", ranks, " rank", ranks == 1 ? "" : "s",
        "; set degrees whose product is that, or remove them"));
  }
  if (config.zero() == 0 && shard > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.shard: is ", shard,
                     ", but with layout.zero 0 no state is "
                     "divided; set layout.zero: 1, or layout.replica: ",
                     ranks));
  }
  if (shard > 1 && replica > 1) {
    return absl::UnimplementedError(absl::StrCat("layout.replica: is ", replica,
                                                 " beside layout.shard ", shard,
                                                 "; one of them must be 1"));
  }
  if (config.zero() > 0 && replica > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.shard: is 1, so that no state is divided, but layout.zero is ",
        config.zero(), "; set layout.shard: ", ranks, " or layout.zero: 0"));
  }
  Layout layout = {.rank = rank, .zero = config.zero()};
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
  if (layout.sharding().divides_optimizer) {
    absl::StrAppend(&text, ", ZeRO ", layout.zero, ": each has 1/",
                    layout.sharding().shards, " of the optimizer's state");
  }
  return text;
}

}  // namespace tessera
