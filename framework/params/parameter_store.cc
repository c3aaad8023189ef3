#include "framework/params/parameter_store.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/params/initial_values.h"

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

// A block and its offset in the buffers.
struct PlacedBlock {
  const ParameterBlockSpec* spec;
  std::vector<int64_t> shape;
  int64_t offset;
};

struct Layout {
  std::vector<PlacedBlock> blocks;  // by offset
  int64_t trainable_extent = 0;
  int64_t extent = 0;
};

absl::StatusOr<Layout> MakeLayout(
    const std::vector<ParameterBlockSpec>& blocks) {
  RETURN_IF_ERROR(CheckNamesDiffer(blocks));
  Layout layout;
  for (const bool trainable : {true, false}) {
    for (const ParameterBlockSpec& block : blocks) {
      if (block.trainable != trainable) continue;
      RETURN_IF_ERROR(CheckBlock(block));
      std::vector<int64_t> shape = BlockShape(block);
      const int64_t end = layout.extent + NumElements(shape);
      layout.blocks.push_back({&block, std::move(shape), layout.extent});
      layout.extent = AlignUp(end);
    }
    if (trainable) layout.trainable_extent = layout.extent;
  }
  return layout;
}

// The members of a block at `offset`.
std::vector<ParameterSlice> SlicesOf(const ParameterBlockSpec& block,
                                     int64_t offset) {
  std::vector<ParameterSlice> slices;
  for (const ParameterSpec& member : block.members) {
    const int64_t numel = NumElements(member.shape);
    slices.push_back(
        {member.name, member.shape, offset, numel, block.trainable});
    offset += numel;
  }
  return slices;
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
    const std::vector<ParameterBlockSpec>& blocks) {
  ASSIGN_OR_RETURN(const Layout layout, MakeLayout(blocks));
  ParameterLayout placed = {.extent = layout.extent,
                            .trainable_extent = layout.trainable_extent};
  placed.block_offsets.resize(blocks.size());
  for (const PlacedBlock& block : layout.blocks) {
    placed.block_offsets[block.spec - blocks.data()] = block.offset;
    for (ParameterSlice& slice : SlicesOf(*block.spec, block.offset)) {
      placed.slices.push_back(std::move(slice));
    }
  }
  return placed;
}

const at::Tensor& Parameter::As(at::ScalarType dtype) const {
  if (master_.scalar_type() == dtype) return master_;
  TESSERA_CHECK(shadow_.defined() && shadow_.scalar_type() == dtype, name_,
                " is not kept in ", c10::toString(dtype));
  return shadow_;
}

absl::StatusOr<std::unique_ptr<ParameterStore>> ParameterStore::Create(
    const std::vector<ParameterBlockSpec>& blocks,
    const ParameterStoreOptions& options) {
  ASSIGN_OR_RETURN(const Layout layout, MakeLayout(blocks));
  std::unique_ptr<ParameterStore> store(new ParameterStore);
  RETURN_IF_ERROR(StatusFromTorch([&] {
    const auto zeros = [&](int64_t numel, at::ScalarType dtype) {
      return at::zeros({numel}, at::device(options.device).dtype(dtype));
    };
    store->options_ = options;
    store->trainable_extent_ = layout.trainable_extent;
    store->master_ = zeros(layout.extent, options.master);
    if (options.compute != options.master) {
      store->shadow_ = zeros(layout.extent, options.compute);
    }
    store->grad_ = zeros(layout.trainable_extent, options.gradient);
    for (const PlacedBlock& block : layout.blocks) {
      store->AddBlock(*block.spec, block.shape, block.offset);
    }
    store->RefreshShadow();
  }));
  return store;
}

void ParameterStore::AddBlock(const ParameterBlockSpec& spec,
                              const std::vector<int64_t>& shape,
                              int64_t offset) {
  const auto view = [&](const at::Tensor& buffer) {
    return buffer.narrow(0, offset, NumElements(shape)).view(shape).detach();
  };
  auto block = std::make_unique<Parameter>();
  block->name_ = spec.name;
  block->master_ = view(master_);
  if (shadow_.defined()) {
    block->shadow_ = view(shadow_);
  }
  if (spec.trainable) {
    block->grad_ = view(grad_);
    const int64_t end = offset + NumElements(shape);
    if (AlignUp(end) != end) {
      gradient_gaps_.push_back(grad_.slice(0, end, AlignUp(end)));
    }
  }
  blocks_.push_back(std::move(block));
  std::vector<ParameterSlice> slices = SlicesOf(spec, offset);
  for (size_t i = 0; i < slices.size(); ++i) {
    FillInitialValues(spec.members[i], options_.seed,
                      master_.narrow(0, slices[i].offset, slices[i].numel));
    num_parameters_ += slices[i].numel;
    slices_.push_back(std::move(slices[i]));
  }
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

void ParameterStore::RefreshShadow() {
  if (shadow_.defined()) shadow_.copy_(master_);
}

}  // namespace tessera
