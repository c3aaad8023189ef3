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
  int64_t half = 0;  // of `high`
  int64_t low = 0;   // less than that if ranks divide it
};

struct PlacedBlocks {
  std::vector<PlacedBlock> blocks;  // by offset
  int64_t trainable_extent = 0;
  WeightExtents weights, trainable_weights;
  std::vector<ParameterSection> sections;
};

// The buffers in which a block is kept (WeightBuffers).
struct Form {
  bool split = false, shadow = false;

  bool operator==(const Form&) const = default;
};

Form FormOf(const ParameterBlockSpec& block, const WeightDtypes& dtypes) {
  const auto is_read = [&](at::ScalarType dtype) {
    return block.reads.empty() || absl::c_linear_search(block.reads, dtype);
  };
  const bool splittable =
      dtypes.master == at::kFloat && dtypes.compute == at::kBFloat16;
  if (splittable && !is_read(at::kFloat)) return {.split = true};
  const bool needs_shadow = !splittable || is_read(at::kBFloat16);
  return {.shadow = dtypes.compute != dtypes.master && needs_shadow};
}

// A section ends with the block that gives it so many elements: 32 MiB of BF16
// are enough for NCCL's bandwidth, and the next exchange begins early.
constexpr int64_t kSectionElements = int64_t{1} << 24;

// Places blocks one after another.
class Placement {
 public:
  Placement(const WeightDtypes& dtypes, const Sharding& sharding)
      : dtypes_(dtypes),
        sharding_(sharding),
        alignment_(kBlockAlignment * sharding.shards) {}

  absl::Status Add(const ParameterBlockSpec& block) {
    RETURN_IF_ERROR(CheckBlock(block));
    const Form form = FormOf(block, dtypes_);
    if (block.trainable && BeginsSection(block, form)) {
      EndSection();
      placed_.sections.push_back({.begin = extent_, .weights = Next(form)});
      form_ = form;
      unit_ = block.unit;
    }
    std::vector<int64_t> shape = BlockShape(block);
    const int64_t room = AlignUp(NumElements(shape));
    placed_.blocks.push_back({&block, std::move(shape), extent_, Next(form)});
    extent_ += room;
    (form.split ? placed_.weights.half : placed_.weights.master) += room;
    if (form.shadow) placed_.weights.shadow += room;
    return absl::OkStatus();
  }

  // After the last trainable block.
  void EndTrainable() {
    EndSection();
    placed_.trainable_extent = extent_;
    placed_.trainable_weights = placed_.weights;
  }

  PlacedBlocks Take() && {
    WeightExtents& trained = placed_.trainable_weights;
    trained.low = sharding_.Held(trained.half);
    placed_.weights.low = trained.low + placed_.weights.half - trained.half;
    return std::move(placed_);
  }

 private:
  bool BeginsSection(const ParameterBlockSpec& block, const Form& form) const {
    return placed_.sections.empty() || form != form_ || block.unit != unit_ ||
           extent_ - placed_.sections.back().begin >= kSectionElements;
  }

  // Pads the section to equal parts of whole chunks.
  void EndSection() {
    for (int64_t* extent : {&extent_, &placed_.weights.master,
                            &placed_.weights.shadow, &placed_.weights.half}) {
      *extent = (*extent + alignment_ - 1) / alignment_ * alignment_;
    }
    if (!placed_.sections.empty()) placed_.sections.back().end = extent_;
  }

  // The place of the next block.
  WeightPlace Next(const Form& form) const {
    const WeightExtents& extents = placed_.weights;
    WeightPlace place = {.split = form.split,
                         .offset = form.split ? extents.half : extents.master};
    if (form.shadow) place.shadow = extents.shadow;
    return place;
  }

  const WeightDtypes dtypes_;
  const Sharding sharding_;
  const int64_t alignment_;
  int64_t extent_ = 0;
  Form form_;         // of the last section
  std::string unit_;  // of the last section
  PlacedBlocks placed_;
};

bool IsVector(const ParameterBlockSpec& block) {
  return absl::c_all_of(block.members, [](const ParameterSpec& member) {
    return member.shape.size() <= 1;
  });
}

absl::StatusOr<PlacedBlocks> PlaceBlocks(
    const std::vector<ParameterBlockSpec>& blocks, const WeightDtypes& dtypes,
    const Sharding& sharding) {
  RETURN_IF_ERROR(CheckNamesDiffer(blocks));
  Placement placement(dtypes, sharding);
  const auto add = [&](auto wanted) -> absl::Status {
    for (const ParameterBlockSpec& block : blocks) {
      if (wanted(block)) RETURN_IF_ERROR(placement.Add(block));
    }
    return absl::OkStatus();
  };
  // Norms' gains would divide the matrices of each block into two sections.
  const auto comes_first = [&sharding](const ParameterBlockSpec& block) {
    return sharding.shards > 1 && IsVector(block);
  };
  RETURN_IF_ERROR(add([&](const ParameterBlockSpec& block) {
    return block.trainable && comes_first(block);
  }));
  RETURN_IF_ERROR(add([&](const ParameterBlockSpec& block) {
    return block.trainable && !comes_first(block);
  }));
  placement.EndTrainable();
  RETURN_IF_ERROR(
      add([](const ParameterBlockSpec& block) { return !block.trainable; }));
  return std::move(placement).Take();
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
          .high = bytes(extents.half, at::kBFloat16),
          .low = bytes(extents.low, at::kShort)};
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
          .low = zeros(extents.low, at::kShort)};
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
    const std::vector<ParameterBlockSpec>& blocks, const WeightDtypes& dtypes,
    const Sharding& sharding) {
  ASSIGN_OR_RETURN(PlacedBlocks layout, PlaceBlocks(blocks, dtypes, sharding));
  ParameterLayout placed = {
      .trainable_extent = layout.trainable_extent,
      .weights = BytesOf(layout.weights, dtypes),
      .trainable_weights = BytesOf(layout.trainable_weights, dtypes),
      .sections = std::move(layout.sections)};
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

void ReadMaster(const WeightBuffers& weights, const ParameterSlice& slice,
                int64_t begin, at::Tensor to) {
  const int64_t offset = slice.weights.offset + begin, count = to.numel();
  const auto part = [&](const at::Tensor& buffer) {
    return buffer.narrow(0, offset, count);
  };
  if (!slice.weights.split) {
    to.copy_(part(weights.master));
    return;
  }
  if (weights.high.is_cpu()) {
    JoinHalves(part(weights.high), part(weights.low), to);
    return;
  }
  const at::Device device = weights.high.device();
  const at::Tensor high = HostPiece(count, at::kBFloat16, device);
  const at::Tensor low = HostPiece(count, at::kShort, device);
  high.copy_(part(weights.high));
  low.copy_(part(weights.low));
  JoinHalves(high, low, to);
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
  ASSIGN_OR_RETURN(PlacedBlocks layout,
                   PlaceBlocks(blocks, options.weights, options.sharding));
  std::unique_ptr<ParameterStore> store(new ParameterStore);
  RETURN_IF_ERROR(StatusFromTorch([&] {
    store->options_ = options;
    store->trainable_extent_ = layout.trainable_extent;
    store->trainable_halves_ = layout.trainable_weights.half;
    store->sections_ = std::move(layout.sections);
    store->weights_ = AllocateWeights(layout.weights, options);
    store->grad_ =
        at::zeros({layout.trainable_extent},
                  at::device(options.device).dtype(options.gradient));
    for (const PlacedBlock& block : layout.blocks) {
      store->AddBlock(*block.spec, block.shape, block.offset, block.weights);
    }
    int64_t end = 0;  // of the gradients so far
    for (const PlacedBlock& block : layout.blocks) {
      const int64_t begin = std::min(block.offset, layout.trainable_extent);
      store->AddGradientGap(end, begin);
      end = begin + NumElements(block.shape);
    }
    store->AddGradientGap(end, layout.trainable_extent);
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
  }
  std::vector<ParameterSlice> slices = SlicesOf(spec, offset, weights);
  for (size_t i = 0; i < slices.size(); ++i) {
    const ParameterSlice& slice = slices[i];
    const auto part = [&slice](const at::Tensor& buffer) {
      return buffer.narrow(0, slice.weights.offset, slice.numel);
    };
    if (slice.weights.split) {
      const bool whole = HeldLow(slice).numel == slice.numel;
      const at::Tensor low =
          whole ? LowOf(slice, 0, slice.numel)
                : at::empty({slice.numel}, weights_.low.options());
      FillInitialValues(spec.members[i], options_.seed, part(weights_.high),
                        low);
      if (!whole) WriteLow(slice, 0, low);
    } else {
      FillInitialValues(spec.members[i], options_.seed, part(weights_.master));
    }
    num_parameters_ += slice.numel;
    slices_.push_back(std::move(slices[i]));
  }
  if (weights.shadow.has_value()) block->rounded_.copy_(block->master_);
  blocks_.push_back(std::move(block));
}

void ParameterStore::AddGradientGap(int64_t begin, int64_t end) {
  if (begin < end) gradient_gaps_.push_back(grad_.slice(0, begin, end));
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

const ParameterSection& ParameterStore::SectionOf(int64_t element) const {
  const auto after = std::upper_bound(
      sections_.begin(), sections_.end(), element,
      [](int64_t e, const ParameterSection& s) { return e < s.begin; });
  TESSERA_CHECK(after != sections_.begin(), "no section before ", element);
  return *std::prev(after);
}

int64_t ParameterStore::Shift(int64_t element) const {
  const ParameterSection& section = SectionOf(element);
  return options_.sharding.Shift(section.begin, section.end);
}

int64_t ParameterStore::ShiftOfLow(int64_t element) const {
  const ParameterSection& section = SectionOf(element);
  const int64_t first = section.weights.offset;
  return options_.sharding.Shift(first, first + section.end - section.begin);
}

ParameterStore::HeldRange ParameterStore::HeldAt(const ParameterSlice& slice,
                                                 int64_t offset,
                                                 int64_t first) const {
  const Sharding& sharding = options_.sharding;
  if (!sharding.divides_optimizer) {
    return {.numel = slice.numel, .place = offset};
  }
  const ParameterSection& section = SectionOf(slice.offset);
  const int64_t size = section.end - section.begin;
  const int64_t part = sharding.PartBegin(first, first + size, sharding.index);
  const int64_t begin = std::max(offset, part);
  const int64_t end =
      std::min(offset + slice.numel, part + size / sharding.shards);
  return {.begin = begin - offset,
          .numel = std::max<int64_t>(0, end - begin),
          .place = begin - sharding.Shift(first, first + size)};
}

ParameterStore::HeldRange ParameterStore::HeldOf(
    const ParameterSlice& slice) const {
  return HeldAt(slice, slice.offset, SectionOf(slice.offset).begin);
}

ParameterStore::HeldRange ParameterStore::HeldLow(
    const ParameterSlice& slice) const {
  if (slice.trainable) {
    return HeldAt(slice, slice.weights.offset,
                  SectionOf(slice.offset).weights.offset);
  }
  const int64_t elsewhere =
      trainable_halves_ - options_.sharding.Held(trainable_halves_);
  return {.numel = slice.numel, .place = slice.weights.offset - elsewhere};
}

at::Tensor ParameterStore::LowOf(const ParameterSlice& slice, int64_t begin,
                                 int64_t count) const {
  const HeldRange held = HeldLow(slice);
  TESSERA_CHECK(held.begin <= begin && begin + count <= held.begin + held.numel,
                "another rank has a part of ", slice.name);
  return weights_.low.narrow(0, held.place + begin - held.begin, count);
}

void ParameterStore::WriteLow(const ParameterSlice& slice, int64_t begin,
                              const at::Tensor& values) {
  const HeldRange held = HeldLow(slice);
  const int64_t first = std::max(begin, held.begin);
  const int64_t end = std::min(begin + values.numel(), held.begin + held.numel);
  if (first >= end) return;
  LowOf(slice, first, end - first)
      .copy_(values.slice(0, first - begin, end - begin));
}

std::vector<at::Tensor> ParameterStore::WholeWeights(
    const ParameterSection& section) const {
  const WeightPlace& place = section.weights;
  const int64_t count = section.end - section.begin;
  std::vector<at::Tensor> whole = {
      (place.split ? weights_.high : weights_.master)
          .narrow(0, place.offset, count)};
  if (place.shadow.has_value()) {
    whole.push_back(weights_.shadow.narrow(0, *place.shadow, count));
  }
  return whole;
}

void ParameterStore::Read(const ParameterSlice& slice, int64_t begin,
                          at::Tensor to) const {
  ReadMaster(weights_, slice, begin, to);
}

void ParameterStore::Write(const ParameterSlice& slice, int64_t begin,
                           const at::Tensor& values) {
  const int64_t offset = slice.weights.offset + begin, count = values.numel();
  if (slice.weights.split) {
    const at::Tensor high = HostPiece(count, at::kBFloat16, options_.device);
    const at::Tensor low = HostPiece(count, at::kShort, options_.device);
    SplitInHalves(values.to(at::kCPU, at::kFloat).contiguous(), high, low);
    weights_.high.narrow(0, offset, count).copy_(high);
    WriteLow(slice, begin, low);
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
