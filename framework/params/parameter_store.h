#ifndef FRAMEWORK_PARAMS_PARAMETER_STORE_H_
#define FRAMEWORK_PARAMS_PARAMETER_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/params/sharding.h"

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
  // ProgramBuilder fills these in. The dtypes in which ops read the block;
  // empty: in both the master's and the compute dtype. The part of the model to
  // which it belongs, "block_3".
  std::vector<at::ScalarType> reads;
  std::string unit;
  // Whether Muon updates the block, not AdamW: its members are matrices, and it
  // is trainable.
  bool muon = false;
  bool row_moments = false;  // and has a second moment per row (NorMuon)
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
  bool trainable() const { return trainable_; }
  // False if this rank has only its part of the weights.
  bool whole() const { return master_.defined() || rounded_.defined(); }

  // The value in `dtype`: the master or its rounding to the compute dtype. Dies
  // if the store does not keep the whole block in `dtype`.
  const at::Tensor& As(at::ScalarType dtype) const;

  // The gradient's range of the flat gradient buffer; undefined when frozen, or
  // if ranks divide gradients.
  const at::Tensor& grad() const { return grad_; }
  // What this rank has of it, 1-D; undefined when frozen.
  const at::Tensor& held_grad() const { return held_grad_; }

 private:
  friend class ParameterStore;
  std::string name_;
  bool trainable_ = false;
  at::Tensor master_;   // undefined if split
  at::Tensor rounded_;  // the shadow or the high half; undefined without them
  at::Tensor grad_, held_grad_;
};

// The dtypes of a store's weights.
struct WeightDtypes {
  // FP32, or the compute dtype for a policy without master weights.
  at::ScalarType master = at::kFloat;
  at::ScalarType compute = at::kFloat;  // of products
  // For weights that come from a checkpoint and never change. They get no
  // initial values and no low halves, so master values of split weights cannot
  // be read.
  bool read_only = false;
};

// Where the weights of a block or a member are, in elements of WeightBuffers as
// they are if no rank divides them.
struct WeightPlace {
  bool split = false;
  int64_t offset = 0;  // in `high` and `low` if split, otherwise in `master`
  std::optional<int64_t> shadow;  // in `shadow`
};

// The location of a member, in elements, for checkpoints and optimizer groups.
struct ParameterSlice {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // in grad(), or beyond its end if frozen
  int64_t numel = 0;
  bool trainable = true;
  WeightPlace weights;
  bool muon = false;         // ParameterBlockSpec::muon
  int64_t block_offset = 0;  // where its block begins
  // NorMuon: where the second moments of its rows are in a buffer of
  // second_moments(), which the optimizer does not divide.
  std::optional<int64_t> row_moments;
};

// Sizes of WeightBuffers, with alignment; of this rank, if ranks divide them.
struct WeightBytes {
  int64_t master = 0;
  int64_t shadow = 0;
  int64_t high = 0;
  int64_t low = 0;

  // What the weights themselves take: all but the shadow.
  int64_t parameters() const { return master + high + low; }
};

// Neighbouring trainable blocks of one unit that are in the same WeightBuffers.
// Ranks sum, update and gather a section at a time. It ends at the first block
// that makes it large enough. With several shards, a section of Muon may have
// blocks of several units, and every matrix lies in the part of one rank
// (matrix_sections.h).
struct ParameterSection {
  int64_t begin = 0, end = 0;  // elements of the gradient buffer
  WeightPlace weights;         // of the first
  bool divided = false;        // whether ranks divide the weights
  // Elements of the second moments as they are if no rank divides them: one per
  // element; of a section of Muon one per row of NorMuon's matrices.
  int64_t second_begin = 0, second_end = 0;

  int64_t size() const { return end - begin; }
};

// The elements of the largest section; 0 without sections.
int64_t LargestSection(absl::Span<const ParameterSection> sections);

// The locations of a store's blocks, in elements, and the sizes of its buffers.
struct ParameterLayout {
  std::vector<ParameterSlice> slices;  // by offset
  std::vector<int64_t> block_offsets;  // in the order of the argument
  int64_t trainable_extent = 0;        // of the gradient buffer
  int64_t adamw_extent = 0;            // the part of it before Muon's blocks
  int64_t second_moments = 0;          // one per element of that, and of rows
  WeightBytes weights;
  WeightBytes trainable_weights, adamw_weights;  // of all ranks
  std::vector<ParameterSection> sections;  // of the gradient buffer, in order
};
// The layout of a store of `blocks`, without allocating one. The same errors as
// ParameterStore::Create().
absl::StatusOr<ParameterLayout> PlaceParameters(
    const std::vector<ParameterBlockSpec>& blocks,
    const WeightDtypes& dtypes = {}, const Sharding& sharding = {});

struct ParameterStoreOptions {
  at::Device device = at::kCPU;
  WeightDtypes weights;
  at::ScalarType gradient = at::kFloat;
  uint64_t seed = 0;  // of the initial values
  Sharding sharding;
};

// The flat buffers of the weights, padding included; undefined if no block is
// in them. How a block is kept follows from the dtypes in which ops read it:
//
//   master, compute   reads           kept
//   FP32, BF16        BF16 only       `high`, which ops read, and `low`, which
//                                     restores the master (split_float.h);
//                                     none if the weights are read_only
//                     FP32 only       `master`
//                     both            `master`, and its rounding in `shadow`
//   the same dtype    that dtype      `master`
//   others            any             `master`, and its rounding in `shadow`
//
// Ranks may divide `low`, or all of them (Sharding).
// Frozen blocks, too: a checkpoint holds their master values. The optimizer
// writes all buffers, so a step never casts weights. Everything else gets a
// block in a dtype from Parameter::As() and master values from
// ParameterStore::Read(), and does not depend on this table.
struct WeightBuffers {
  at::Tensor master;
  at::Tensor shadow;  // in the compute dtype
  at::Tensor high;    // BF16
  at::Tensor low;     // INT16

  std::vector<at::Tensor> Defined() const;
};

// Copies the master values [begin, begin + to.numel()) of a slice to `to`: 1-D,
// contiguous, in host memory and of the master's dtype. `weights` are a store's
// buffers, or copies of them; the shadow is not read. Takes no device memory.
void ReadMaster(const WeightBuffers& weights, const ParameterSlice& slice,
                int64_t begin, at::Tensor to);

// What a rank has of a slice in a buffer that ranks divide: elements [begin,
// begin + numel) of the slice, and their place in the rank's buffer.
struct HeldRange {
  int64_t begin = 0, numel = 0, place = 0;
};
// Writes what the rank has of `values`, elements from `begin` on of the slice.
void WriteHeld(const at::Tensor& buffer, const HeldRange& held, int64_t begin,
               const at::Tensor& values);

// Every parameter of a model in contiguous buffers: the weights and the
// gradient. Blocks are in execution order: first the trainable ones that AdamW
// updates, then those of Muon, which has no second moments, then frozen ones.
// With several shards, vectors come before matrices, so that there are few
// sections, and those of Muon are not in order. Each block starts at a multiple
// of 256 bytes in every buffer, and each section at a multiple of that for each
// shard; the gaps are zero.
//
// So the optimizer is one launch, and buckets and shards are slices
// (docs/design.md, decision 1).
class ParameterStore {
 public:
  // Allocates the parameters and, unless they are read_only, gives them their
  // initial values; without them they are zero. InvalidArgument if two members
  // have the same name or a block is malformed.
  static absl::StatusOr<std::unique_ptr<ParameterStore>> Create(
      const std::vector<ParameterBlockSpec>& blocks,
      const ParameterStoreOptions& options);

  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // The block with that name; dies if there is none. The address is stable.
  Parameter& Get(absl::string_view block_name);

  const ParameterStoreOptions& options() const { return options_; }
  const WeightBuffers& weights() const { return weights_; }
  // Flat, padding included: the trainable blocks, trainable_extent() elements;
  // if ranks divide gradients, this rank's parts.
  const at::Tensor& grad() const { return grad_; }
  int64_t trainable_extent() const { return trainable_extent_; }
  // The part of it that AdamW updates; Muon updates the rest.
  int64_t adamw_extent() const { return adamw_extent_; }
  // The number of second moments that the optimizer has: one per element of
  // AdamW's part, then one per row of NorMuon's matrices.
  int64_t second_moments() const { return second_moments_; }

  absl::Span<const ParameterSection> sections() const { return sections_; }
  const Sharding& sharding() const { return options_.sharding; }
  // The section that begins at or before `element` of the flat buffer.
  const ParameterSection& SectionOf(int64_t element) const;

  // How this rank has the moments, the gradients, and each of weights().
  struct Divisions {
    Division moments, second_moments, gradients, master, shadow, high, low;
  };
  const Divisions& divisions() const { return divisions_; }
  // What this rank has of a trainable slice in a buffer like the moments or
  // gradients.
  HeldRange HeldOf(const Division& division, const ParameterSlice& slice) const;
  // The elements of a slice of whose weights this rank has any: what Write()
  // needs.
  HeldRange HeldOf(const ParameterSlice& slice) const;
  // What this rank has of the second moments of a slice's rows (NorMuon).
  HeldRange HeldRowsOf(const ParameterSlice& slice) const;
  // Whether this rank has only its part of one of the buffers in weights().
  bool IsDivided(const at::Tensor& buffer) const;

  // This rank's part of a section of grad(), which ranks divide.
  at::Tensor HeldGradient(const ParameterSection& section) const;
  // The weights of a section in all buffers that every rank has whole.
  std::vector<at::Tensor> WholeWeights(const ParameterSection& section) const;
  // This rank's part of a divided section of the weights that ops read in
  // `dtype`.
  at::Tensor HeldWeights(const ParameterSection& section,
                         at::ScalarType dtype) const;

  absl::Span<const ParameterSlice> slices() const { return slices_; }
  int64_t num_parameters() const { return num_parameters_; }

  // ReadMaster() of this store's weights, which are whole. Dies for split
  // read_only weights.
  void Read(const ParameterSlice& slice, int64_t begin, at::Tensor to) const;
  // Overwrites master values of a slice, from `begin` on, and what is derived
  // from them. `values` are 1-D, of any floating-point dtype on any device, and
  // are rounded to the master's. Takes no device memory.
  void Write(const ParameterSlice& slice, int64_t begin,
             const at::Tensor& values);

  // Zeroes the gaps of grad(), which activations may have used (lifetime.h).
  void ZeroGradientGaps();

 private:
  ParameterStore() = default;
  // What this rank has of a slice that lies at `offset` of the whole buffer.
  // Its section begins at `first` there.
  HeldRange HeldAt(const Division& division, const ParameterSlice& slice,
                   int64_t offset, int64_t first) const;
  // In the master, `high` or `low`, whose division it gets; and in the shadow.
  HeldRange HeldWeightsOf(const Division& division,
                          const ParameterSlice& slice) const;
  HeldRange HeldShadow(const ParameterSlice& slice) const;
  // The weights at the beginning of its section.
  WeightPlace FirstOf(const ParameterSlice& slice) const;
  // Writes initial values to the weights of a slice.
  void Initialize(const ParameterSpec& spec, const ParameterSlice& slice);
  void AddBlock(const ParameterBlockSpec& spec,
                const std::vector<int64_t>& shape, int64_t offset,
                const WeightPlace& weights,
                const std::vector<int64_t>& row_moments);
  // Elements [begin, end) of grad() belong to no parameter.
  void AddGradientGap(int64_t begin, int64_t end);

  ParameterStoreOptions options_;
  WeightBuffers weights_;
  at::Tensor grad_;
  int64_t trainable_extent_ = 0;
  int64_t adamw_extent_ = 0;
  int64_t second_moments_ = 0;
  Divisions divisions_;
  int64_t num_parameters_ = 0;
  std::vector<ParameterSection> sections_;
  std::vector<std::unique_ptr<Parameter>> blocks_;
  std::vector<at::Tensor> gradient_gaps_;  // views of grad_
  std::vector<ParameterSlice> slices_;
};

}  // namespace tessera

#endif  // FRAMEWORK_PARAMS_PARAMETER_STORE_H_
