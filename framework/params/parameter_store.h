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

// Initial distribution of a parameter. Normals are truncated at three standard
// deviations (CS336 assignment 1, section 3.4.1).
enum class Init {
  kLinear,     // [out, in]: mean 0, variance 2 / (in + out)
  kEmbedding,  // mean 0, variance 1
  // [vocab, width]: mean 0, variance 1 / width, so that logits have variance 1.
  kTiedEmbedding,
  kOnes,
  kZeros,
};

// One tensor as named in checkpoints, optimizer patterns and parameter counts.
struct ParameterSpec {
  std::string name;  // "layers.0.attn.q_proj.weight"
  std::vector<int64_t> shape;
  Init init = Init::kZeros;
};

// What one op reads: a single parameter, or several stacked along dimension 0
// so that one matrix product serves all of them (W_q, W_k, W_v). Members are
// contiguous, without padding.
struct ParameterBlockSpec {
  std::string name;  // "layers.0.attn.qkv"; or the single member's name
  std::vector<ParameterSpec> members;
  bool trainable = true;
};

// The shape of a block: that of its member, or of the stacked members.
std::vector<int64_t> BlockShape(const ParameterBlockSpec& block);

// Number of parameters in a block, or in several.
int64_t CountParameters(const ParameterBlockSpec& block);
int64_t CountParameters(absl::Span<const ParameterBlockSpec> blocks);

// One block of the store as ops see it: views into the store's buffers, valid
// during the store's lifetime.
class Parameter {
 public:
  const std::string& name() const { return name_; }
  bool trainable() const { return grad_.defined(); }

  // The value in `dtype`: the FP32 master or the compute-dtype shadow. Dies if
  // the store has no copy in `dtype`.
  const at::Tensor& As(at::ScalarType dtype) const;
  // The value in the compute dtype: the shadow if there is one.
  const at::Tensor& value() const {
    return shadow_.defined() ? shadow_ : master_;
  }
  const at::Tensor& master() const { return master_; }

  // The gradient's range of the flat gradient buffer; undefined when frozen.
  const at::Tensor& grad() const { return grad_; }

 private:
  friend class ParameterStore;
  std::string name_;
  at::Tensor master_, shadow_, grad_;
};

// The location of a member, in elements, for checkpoints and optimizer groups.
struct ParameterSlice {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // in master(), and in grad() if trainable
  int64_t numel = 0;
  bool trainable = true;
};

// The locations of a store's blocks, in elements.
struct ParameterLayout {
  std::vector<ParameterSlice> slices;  // by offset
  std::vector<int64_t> block_offsets;  // in the order of the argument
  // Sizes of the flat buffers, with alignment, and of the gradient buffer.
  int64_t extent = 0, trainable_extent = 0;
};
// The layout of a store of `blocks`, without allocating one. The same errors as
// ParameterStore::Create().
absl::StatusOr<ParameterLayout> PlaceParameters(
    const std::vector<ParameterBlockSpec>& blocks);

// Every block starts at a multiple of this number of elements: 256 bytes of a
// 2-byte dtype, so the layout is the same for all dtypes.
inline constexpr int64_t kBlockAlignment = 128;
inline constexpr int64_t AlignUp(int64_t offset) {
  return (offset + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

struct ParameterStoreOptions {
  at::Device device = at::kCPU;
  // FP32, or the compute dtype for a policy without master weights.
  at::ScalarType master = at::kFloat;
  // If equal to `master`, there is no shadow.
  at::ScalarType compute = at::kFloat;
  at::ScalarType gradient = at::kFloat;
  uint64_t seed = 0;  // of the initial values
};

// Every parameter of a model in three contiguous buffers: the master values, a
// shadow in the compute dtype, which the optimizer writes (a step never casts
// weights), and the gradient. Blocks are in execution order, trainable ones
// first. Each starts at a multiple of 256 bytes in every buffer; the gaps are
// zero.
//
// So the optimizer is one launch, the gradient norm one reduction, and buckets
// and shards are slices (docs/design.md, decision 1).
class ParameterStore {
 public:
  // Allocates and initialises the parameters and their shadow. InvalidArgument
  // if two members have the same name or a block is malformed.
  static absl::StatusOr<std::unique_ptr<ParameterStore>> Create(
      const std::vector<ParameterBlockSpec>& blocks,
      const ParameterStoreOptions& options);

  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // The block with that name; dies if there is none. The address is stable.
  Parameter& Get(absl::string_view block_name);

  const ParameterStoreOptions& options() const { return options_; }
  // Flat buffers, padding included. shadow() is undefined if there is none;
  // grad() covers the trainable blocks, the first trainable_extent() elements.
  const at::Tensor& master() const { return master_; }
  const at::Tensor& shadow() const { return shadow_; }
  const at::Tensor& grad() const { return grad_; }
  int64_t trainable_extent() const { return trainable_extent_; }

  absl::Span<const ParameterSlice> slices() const { return slices_; }
  int64_t num_parameters() const { return num_parameters_; }

  // Zeroes the gaps of grad(), which activations may have used (lifetime.h).
  void ZeroGradientGaps();
  // Rounds the master to the shadow, after a load. The optimizer keeps it
  // current.
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
