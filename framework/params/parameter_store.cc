#include "framework/params/parameter_store.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/params/initial_values.h"
#include "framework/params/split_tensor.h"

namespace tessera {
namespace {

int64_t NumElements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1},
                         std::multiplies<int64_t>());
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status CheckMember(const ParameterSpec& member) {
  if (member.name.empty()) {
    return absl::InvalidArgumentError("a parameter has no name");
  }
  for (const int64_t size : member.shape) {
    if (size >= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("parameter ", member.name, " has the shape ",
                     ShapeText(member.shape), "; each size must be >= 1"));
  }
  if (member.init == Init::kLinear && member.shape.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter ", member.name, " has the shape ", ShapeText(member.shape),
        "; a linear weight's initial values need [out, in]"));
  }
  return absl::OkStatus();
}

// Members are stacked along dimension 0.
absl::Status CheckBlock(const ParameterBlockSpec& block) {
  if (block.members.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter block ", block.name, " has no members"));
  }
  const std::vector<int64_t>& first = block.members[0].shape;
  for (const ParameterSpec& member : block.members) {
    RETURN_IF_ERROR(CheckMember(member));
    const bool stackable =
        &member == &block.members[0] ||
        (!first.empty() && member.shape.size() == first.size() &&
         std::equal(first.begin() + 1, first.end(), member.shape.begin() + 1));
    if (!stackable) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter block ", block.name, ": ", member.name, " ",
                       ShapeText(member.shape), " cannot be stacked under ",
                       block.members[0].name, " ", ShapeText(first),
                       "; all sizes but the first must agree"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNamesDiffer(const std::vector<ParameterBlockSpec>& blocks) {
  std::set<std::string> block_names, member_names;
  for (const ParameterBlockSpec& block : blocks) {
    if (!block_names.insert(block.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two parameter blocks are named ", block.name));
    }
    for (const ParameterSpec& member : block.members) {
      if (!member_names.insert(member.name).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("two parameters are named ", member.name));
      }
    }
  }
  return absl::OkStatus();
}

// A block and its offset in the gradient buffer, or after it if frozen.
struct PlacedBlock {
  const ParameterBlockSpec* spec;
  std::vector<int64_t> shape;
  int64_t offset;
  WeightPlace weights;
};

// Sizes of WeightBuffers in elements.
struct WeightExtents {
  int64_t master = 0;
  int64_t shadow = 0;
  int64_t half = 0;
};

struct Layout {
  std::vector<PlacedBlock> blocks;  // by offset
  int64_t trainable_extent = 0;
  WeightExtents weights, trainable_weights;
};

// Places a block at the end of the buffers in which its readers need it.
WeightPlace PlaceWeights(const ParameterBlockSpec& block, int64_t numel,
                         const WeightDtypes& dtypes, WeightExtents* extents) {
  const auto is_read = [&](at::ScalarType dtype) {
    return block.reads.empty() || absl::c_linear_search(block.reads, dtype);
  };
  const auto append = [numel](int64_t* extent) {
    return std::exchange(*extent, *extent + AlignUp(numel));
  };
  const bool splittable =
      dtypes.master == at::kFloat && dtypes.compute == at::kBFloat16;
  if (splittable && !is_read(at::kFloat)) {
    return {.split = true, .offset = append(&extents->half)};
  }
  WeightPlace place = {.offset = append(&extents->master)};
  const bool needs_shadow = !splittable || is_read(at::kBFloat16);
  if (dtypes.compute != dtypes.master && needs_shadow) {
    place.shadow = append(&extents->shadow);
  }
  return place;
}

absl::StatusOr<Layout> MakeLayout(const std::vector<ParameterBlockSpec>& blocks,
                                  const WeightDtypes& dtypes) {
  RETURN_IF_ERROR(CheckNamesDiffer(blocks));
  Layout layout;
  int64_t extent = 0;
  for (const bool trainable : {true, false}) {
    for (const ParameterBlockSpec& block : blocks) {
      if (block.trainable != trainable) continue;
      RETURN_IF_ERROR(CheckBlock(block));
      std::vector<int64_t> shape = BlockShape(block);
      const int64_t numel = NumElements(shape);
      layout.blocks.push_back(
          {&block, std::move(shape), extent,
           PlaceWeights(block, numel, dtypes, &layout.weights)});
      extent += AlignUp(numel);
    }
    if (trainable) {
      layout.trainable_extent = extent;
      layout.trainable_weights = layout.weights;
    }
  }
  return layout;
}

// The members of a block at `offset`.
std::vector<ParameterSlice> SlicesOf(const ParameterBlockSpec& block,
                                     int64_t offset, WeightPlace weights) {
  std::vector<ParameterSlice> slices;
  for (const ParameterSpec& member : block.members) {
    const int64_t numel = NumElements(member.shape);
    slices.push_back(
        {member.name, member.shape, offset, numel, block.trainable, weights});
    offset += numel;
    weights.offset += numel;
    if (weights.shadow.has_value()) *weights.shadow += numel;
  }
  return slices;
}

WeightBytes BytesOf(const WeightExtents& extents, const WeightDtypes& dtypes) {
  const auto bytes = [](int64_t numel, at::ScalarType dtype) {
    return numel * static_cast<int64_t>(c10::elementSize(dtype));
  };
  return {.master = bytes(extents.master, dtypes.master),
          .shadow = bytes(extents.shadow, dtypes.compute),
          .half = bytes(extents.half, at::kBFloat16)};
}

WeightBuffers AllocateWeights(const WeightExtents& extents,
                              const ParameterStoreOptions& options) {
  const auto zeros = [&](int64_t numel, at::ScalarType dtype) {
    if (numel == 0) return at::Tensor();
    return at::zeros({numel}, at::device(options.device).dtype(dtype));
  };
  return {.master = zeros(extents.master, options.weights.master),
          .shadow = zeros(extents.shadow, options.weights.compute),
          .high = zeros(extents.half, at::kBFloat16),
          .low = zeros(extents.half, at::kShort)};
}

// Host memory for a piece of weights, pinned if they are on a GPU, so that
// copies are fast.
at::Tensor HostPiece(int64_t numel, at::ScalarType dtype, at::Device device) {
  return at::empty({numel}, at::dtype(dtype).pinned_memory(device.is_cuda()));
}

}  // namespace

int64_t CountParameters(const ParameterBlockSpec& block) {
  int64_t count = 0;
  for (const ParameterSpec& p : block.members) {
    count += std::accumulate(p.shape.begin(), p.shape.end(), int64_t{1},
                             std::multiplies<>());
  }
  return count;
}

int64_t CountParameters(absl::Span<const ParameterBlockSpec> blocks) {
  int64_t count = 0;
  for (const ParameterBlockSpec& block : blocks) {
    count += CountParameters(block);
  }
  return count;
}

std::vector<int64_t> BlockShape(const ParameterBlockSpec& block) {
  std::vector<int64_t> shape = block.members.front().shape;
  for (size_t i = 1; i < block.members.size(); ++i) {
    shape[0] += block.members[i].shape[0];
  }
  return shape;
}

absl::StatusOr<ParameterLayout> PlaceParameters(
    const std::vector<ParameterBlockSpec>& blocks, const WeightDtypes& dtypes) {
  ASSIGN_OR_RETURN(const Layout layout, MakeLayout(blocks, dtypes));
  ParameterLayout placed = {
      .trainable_extent = layout.trainable_extent,
      .weights = BytesOf(layout.weights, dtypes),
      .trainable_weights = BytesOf(layout.trainable_weights, dtypes)};
  placed.block_offsets.resize(blocks.size());
  for (const PlacedBlock& block : layout.blocks) {
    placed.block_offsets[block.spec - blocks.data()] = block.offset;
    for (ParameterSlice& slice :
         SlicesOf(*block.spec, block.offset, block.weights)) {
      placed.slices.push_back(std::move(slice));
    }
  }
  return placed;
}

std::vector<at::Tensor> WeightBuffers::Defined() const {
  std::vector<at::Tensor> defined;
  for (const at::Tensor& buffer : {master, shadow, high, low}) {
    if (buffer.defined()) defined.push_back(buffer);
  }
  return defined;
}

const at::Tensor& Parameter::As(at::ScalarType dtype) const {
  if (master_.defined() && master_.scalar_type() == dtype) return master_;
  TESSERA_CHECK(rounded_.defined() && rounded_.scalar_type() == dtype, name_,
                " is not kept in ", c10::toString(dtype));
  return rounded_;
}

absl::StatusOr<std::unique_ptr<ParameterStore>> ParameterStore::Create(
    const std::vector<ParameterBlockSpec>& blocks,
    const ParameterStoreOptions& options) {
  ASSIGN_OR_RETURN(const Layout layout, MakeLayout(blocks, options.weights));
  std::unique_ptr<ParameterStore> store(new ParameterStore);
  RETURN_IF_ERROR(StatusFromTorch([&] {
    store->options_ = options;
    store->trainable_extent_ = layout.trainable_extent;
    store->weights_ = AllocateWeights(layout.weights, options);
    store->grad_ =
        at::zeros({layout.trainable_extent},
                  at::device(options.device).dtype(options.gradient));
    for (const PlacedBlock& block : layout.blocks) {
      store->AddBlock(*block.spec, block.shape, block.offset, block.weights);
    }
  }));
  return store;
}

void ParameterStore::AddBlock(const ParameterBlockSpec& spec,
                              const std::vector<int64_t>& shape, int64_t offset,
                              const WeightPlace& weights) {
  const auto view = [&](const at::Tensor& buffer, int64_t begin) {
    return buffer.narrow(0, begin, NumElements(shape)).view(shape).detach();
  };
  auto block = std::make_unique<Parameter>();
  block->name_ = spec.name;
  if (weights.split) {
    block->rounded_ = view(weights_.high, weights.offset);
  } else {
    block->master_ = view(weights_.master, weights.offset);
    if (weights.shadow.has_value()) {
      block->rounded_ = view(weights_.shadow, *weights.shadow);
    }
  }
  if (spec.trainable) {
    block->grad_ = view(grad_, offset);
    const int64_t end = offset + NumElements(shape);
    if (AlignUp(end) != end) {
      gradient_gaps_.push_back(grad_.slice(0, end, AlignUp(end)));
    }
  }
  std::vector<ParameterSlice> slices = SlicesOf(spec, offset, weights);
  for (size_t i = 0; i < slices.size(); ++i) {
    const ParameterSlice& slice = slices[i];
    const auto part = [&slice](const at::Tensor& buffer) {
      return buffer.narrow(0, slice.weights.offset, slice.numel);
    };
    if (slice.weights.split) {
      FillInitialValues(spec.members[i], options_.seed, part(weights_.high),
                        part(weights_.low));
    } else {
      FillInitialValues(spec.members[i], options_.seed, part(weights_.master));
    }
    num_parameters_ += slice.numel;
    slices_.push_back(std::move(slices[i]));
  }
  if (weights.shadow.has_value()) block->rounded_.copy_(block->master_);
  blocks_.push_back(std::move(block));
}

Parameter& ParameterStore::Get(absl::string_view block_name) {
  for (const std::unique_ptr<Parameter>& block : blocks_) {
    if (block->name() == block_name) return *block;
  }
  CheckFailed(__FILE__, __LINE__,
              absl::StrCat("no parameter block is named ", block_name));
}

void ParameterStore::ZeroGradientGaps() {
  if (!gradient_gaps_.empty()) at::_foreach_zero_(gradient_gaps_);
}

void ParameterStore::Read(const ParameterSlice& slice, int64_t begin,
                          at::Tensor to) const {
  const int64_t offset = slice.weights.offset + begin, count = to.numel();
  if (!slice.weights.split) {
    to.copy_(weights_.master.narrow(0, offset, count));
    return;
  }
  const at::Tensor high = HostPiece(count, at::kBFloat16, options_.device);
  const at::Tensor low = HostPiece(count, at::kShort, options_.device);
  high.copy_(weights_.high.narrow(0, offset, count));
  low.copy_(weights_.low.narrow(0, offset, count));
  JoinHalves(high, low, to);
}

void ParameterStore::Write(const ParameterSlice& slice, int64_t begin,
                           const at::Tensor& values) {
  const int64_t offset = slice.weights.offset + begin, count = values.numel();
  if (slice.weights.split) {
    const at::Tensor high = HostPiece(count, at::kBFloat16, options_.device);
    const at::Tensor low = HostPiece(count, at::kShort, options_.device);
    SplitInHalves(values.to(at::kCPU, at::kFloat).contiguous(), high, low);
    weights_.high.narrow(0, offset, count).copy_(high);
    weights_.low.narrow(0, offset, count).copy_(low);
    return;
  }
  at::Tensor master = weights_.master.narrow(0, offset, count);
  master.copy_(values);
  if (slice.weights.shadow.has_value()) {
    weights_.shadow.narrow(0, *slice.weights.shadow + begin, count)
        .copy_(master);
  }
}

}  // namespace tessera
