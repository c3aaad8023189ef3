#ifndef FRAMEWORK_PARAMS_PARAMETER_STORE_H_
#define FRAMEWORK_PARAMS_PARAMETER_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera {

// How a parameter starts. Truncated normals are cut at three standard
// deviations (CS336 assignment 1, section 3.4.1).
enum class Init {
  kLinear,     // [out, in]: mean 0, variance 2 / (in + out)
  kEmbedding,  // mean 0, variance 1
  // [vocab, width]: mean 0, variance 1 / width, which gives logits variance 1.
  kTiedEmbedding,
  kOnes,
  kZeros,
};

// One tensor as checkpoints, optimizer patterns and parameter counts know it.
struct ParameterSpec {
  std::string name;  // "layers.0.attn.q_proj.weight"
  std::vector<int64_t> shape;
  Init init = Init::kZeros;
};

// What one op consumes: a single parameter, or several stacked along
// dimension 0 so that one matrix product serves them all (W_q, W_k, W_v).
// Members lie back to back without padding.
struct ParameterBlockSpec {
  std::string name;  // "layers.0.attn.qkv"; a single member's own name
  std::vector<ParameterSpec> members;
  bool trainable = true;
};

// The shape of a block: its member's, or the members' stacked along dimension
// 0.
std::vector<int64_t> BlockShape(const ParameterBlockSpec& block);

// Parameters of a block, or of several.
int64_t CountParameters(const ParameterBlockSpec& block);
int64_t CountParameters(absl::Span<const ParameterBlockSpec> blocks);

// One block of the store as the ops see it. Views into the store's buffers:
// valid while the store lives.
class Parameter {
 public:
  const std::string& name() const { return name_; }
  bool trainable() const { return grad_.defined(); }

  // The value in `dtype`: the FP32 master or the compute-dtype shadow. Dies
  // when the store keeps no copy in `dtype`.
  const at::Tensor& As(at::ScalarType dtype) const;
  // The value in the compute dtype: the shadow where there is one.
  const at::Tensor& value() const {
    return shadow_.defined() ? shadow_ : master_;
  }
  const at::Tensor& master() const { return master_; }

  // The gradient's place in the flat gradient buffer; undefined when frozen.
  const at::Tensor& grad() const { return grad_; }

 private:
  friend class ParameterStore;
  std::string name_;
  at::Tensor master_, shadow_, grad_;
};

// A member's place, for checkpoints and optimizer groups. Elements, not bytes.
struct ParameterSlice {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // into master(); into grad() too when trainable
  int64_t numel = 0;
  bool trainable = true;
};

// Where a store keeps its blocks. Elements, not bytes.
struct ParameterLayout {
  std::vector<ParameterSlice> slices;  // in the order of their offsets
  std::vector<int64_t> block_offsets;  // in the order of the blocks given
  // Of the flat buffers, alignment included; of the gradient buffer.
  int64_t extent = 0, trainable_extent = 0;
};
// The layout of a store of `blocks`, without making one. InvalidArgument as
// ParameterStore::Create().
absl::StatusOr<ParameterLayout> PlaceParameters(
    const std::vector<ParameterBlockSpec>& blocks);

// Every block starts at a multiple of so many elements: 256 bytes of a 2-byte
// dtype, and the same layout whatever the dtypes.
inline constexpr int64_t kBlockAlignment = 128;
inline constexpr int64_t AlignUp(int64_t offset) {
  return (offset + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

struct ParameterStoreOptions {
  at::Device device = at::kCPU;
  // FP32, or the compute dtype for a policy without master weights.
  at::ScalarType master = at::kFloat;
  // Equal to `master`: no shadow is kept.
  at::ScalarType compute = at::kFloat;
  at::ScalarType gradient = at::kFloat;
  uint64_t seed = 0;  // of the initial values; the same on every device
};

// Every parameter of a model in three contiguous buffers: the master values,
// a shadow in the compute dtype that the optimizer writes and no step casts,
// and the gradient. Blocks lie in execution order, trainable ones first, each
// start aligned to 256 bytes in every buffer; the gaps hold zeros.
//
// So the optimizer is one launch, the gradient norm one reduction, and buckets
// and shards are slices (docs/design.md, decision 1).
class ParameterStore {
 public:
  // Allocates, initialises and fills the shadow. InvalidArgument when two
  // members share a name or a block is malformed.
  static absl::StatusOr<std::unique_ptr<ParameterStore>> Create(
      const std::vector<ParameterBlockSpec>& blocks,
      const ParameterStoreOptions& options);

  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // The block of that name; dies when there is none. Stable addresses.
  Parameter& Get(absl::string_view block_name);

  const ParameterStoreOptions& options() const { return options_; }
  // Flat buffers, padding included. shadow() is undefined when not kept;
  // grad() covers the trainable blocks, the first trainable_extent() elements.
  const at::Tensor& master() const { return master_; }
  const at::Tensor& shadow() const { return shadow_; }
  const at::Tensor& grad() const { return grad_; }
  int64_t trainable_extent() const { return trainable_extent_; }

  absl::Span<const ParameterSlice> slices() const { return slices_; }
  int64_t num_parameters() const { return num_parameters_; }

  // Zeroes the gaps of grad(), where activations may have lain (lifetime.h).
  void ZeroGradientGaps();
  // shadow = master rounded; after a load. The optimizer keeps it so.
  void RefreshShadow();

 private:
  ParameterStore() = default;
  void AddBlock(const ParameterBlockSpec& spec,
                const std::vector<int64_t>& shape, int64_t offset);

  ParameterStoreOptions options_;
  at::Tensor master_, shadow_, grad_;
  int64_t trainable_extent_ = 0;
  int64_t num_parameters_ = 0;
  std::vector<std::unique_ptr<Parameter>> blocks_;
  std::vector<at::Tensor> gradient_gaps_;  // views of grad_
  std::vector<ParameterSlice> slices_;
};

}  // namespace tessera

#endif  // FRAMEWORK_PARAMS_PARAMETER_STORE_H_
