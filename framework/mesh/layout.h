#ifndef FRAMEWORK_MESH_LAYOUT_H_
#define FRAMEWORK_MESH_LAYOUT_H_

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/params/sharding.h"

namespace tessera {

// The ways to divide a run among ranks, from the outermost on: neighbouring
// ranks are neighbours along the last axis with more than one.
enum class MeshAxis { kPipeline, kReplica, kShard, kContext, kTensor };
inline constexpr int kMeshAxes = 5;
absl::string_view MeshAxisName(MeshAxis axis);

// The ranks of a run, arranged along axes.
struct Mesh {
  std::array<int, kMeshAxes> degrees = {1, 1, 1, 1, 1};

  int degree(MeshAxis axis) const { return degrees[static_cast<int>(axis)]; }
  int ranks() const;
  // The place of `rank` along an axis.
  int CoordinateOf(int rank, MeshAxis axis) const;
};

// What layout_config.proto asks for.
struct LayoutOptions {
  int zero = 0;
  std::optional<int> replica, shard;  // degrees, >= 1
};

// What a rank has of the run's work and state. No other code concludes from a
// rank's number which sequences it trains on, what it holds or what it writes.
struct Layout {
  Mesh mesh;
  int rank = 0;
  int zero = 0;  // LayoutOptions::zero

  // Ranks that train on different sequences, and this one's place among them.
  int data_ranks() const;
  int data_rank() const;
  // Whether this rank writes the run's files and log.
  bool is_writer() const { return rank == 0; }
  // The ranks that write a checkpoint's tensors: those that together have one
  // copy of the state, the first replica's. If no state is divided, every rank
  // has a copy, and all write. Ascending; the first one is_writer().
  std::vector<int> checkpoint_ranks() const;
  // How the data ranks share the state of the model's parameters.
  Sharding sharding() const;
  // The ranks that differ from this one along `axis` only, and this one.
  std::vector<int> RanksAlong(MeshAxis axis) const;
};

// The layout of one of `ranks`. InvalidArgument, beginning with the field
// ("layout.shard: ..."), for degrees whose product is not the number of ranks,
// or that divide nothing.
absl::StatusOr<Layout> MakeLayout(const LayoutOptions& options, int ranks,
                                  int rank);

// "4 ranks: 4 shards, ZeRO 1".
std::string Describe(const Layout& layout);

}  // namespace tessera

#endif  // FRAMEWORK_MESH_LAYOUT_H_
