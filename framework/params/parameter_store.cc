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
#include "framework/base/temporary_memory.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/page_locked.h"
#include "framework/params/initial_values.h"
#include "framework/params/matrix_sections.h"
#include "framework/params/split_tensor.h"

namespace tessera {
namespace {

int64_t NumElements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1},
                         std::multiplies<int64_t>());
}

// How much Muon computes for a matrix, compared with others: about half as much
// per weight if the matrix is at least twice as long as wide
// (framework/optim/newton_schulz.h).
double MuonWork(const std::vector<int64_t>& shape) {
  const auto [side, length] = std::minmax(shape[0], shape[1]);
  const int64_t work = side * side * length;
  return static_cast<double>(length >= 2 * side ? work : 2 * work);
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
  std::vector<int64_t> row_moments;  // by member; empty without
};

// Sizes of whole WeightBuffers in elements.
struct WeightExtents {
  int64_t master = 0;
  int64_t shadow = 0;
  int64_t half = 0;  // of `high` and `low`
};

struct PlacedBlocks {
  std::vector<PlacedBlock> blocks;  // by offset
  int64_t trainable_extent = 0, adamw_extent = 0, second_moments = 0;
  WeightExtents weights, trainable_weights, adamw_weights;
  ParameterStore::Divisions divisions;
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

bool IsVector(const ParameterBlockSpec& block) {
  return absl::c_all_of(block.members, [](const ParameterSpec& member) {
    return member.shape.size() <= 1;
  });
}

// A section ends with the block that gives it so many elements: 32 MiB of BF16
// are enough for NCCL's bandwidth, and the next exchange begins early.
constexpr int64_t kSectionElements = int64_t{1} << 24;

using Blocks = absl::Span<const ParameterBlockSpec* const>;

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
    // Vectors of all units share a section.
    const std::string unit =
        sharding_.shards > 1 && IsVector(block) ? "" : block.unit;
    if (block.trainable && BeginsSection(unit, form)) {
      BeginSection(form, IsVector(block));
      unit_ = unit;
    }
    Place(block, form, 0);
    if (block.row_moments) {
      for (const ParameterSpec& member : block.members) {
        placed_.blocks.back().row_moments.push_back(placed_.second_moments);
        placed_.second_moments += member.shape[0];
      }
    }
    Advance(form, AlignUp(CountParameters(block)));
    return absl::OkStatus();
  }

  // Adds Muon's blocks in sections whose parts have whole matrices.
  absl::Status AddMatrices(Blocks blocks) {
    std::vector<MatrixBlock> matrices;
    for (const ParameterBlockSpec* const block : blocks) {
      RETURN_IF_ERROR(CheckBlock(*block));
      MatrixBlock& added = matrices.emplace_back();
      added.unit = block->unit;
      for (const ParameterSpec& member : block->members) {
        added.matrices.push_back(NumElements(member.shape));
        added.work.push_back(MuonWork(member.shape));
      }
    }
    for (size_t begin = 0, end = 0; begin < blocks.size(); begin = end) {
      const Form form = FormOf(*blocks[begin], dtypes_);
      while (end < blocks.size() && FormOf(*blocks[end], dtypes_) == form) {
        ++end;
      }
      size_t first = begin;
      for (const MatrixSection& section :
           DivideMatrices(absl::MakeSpan(matrices).subspan(begin, end - begin),
                          sharding_.shards, kSectionElements)) {
        AddSection(form, section,
                   blocks.subspan(first, section.offsets.size()));
        first += section.offsets.size();
      }
    }
    return absl::OkStatus();
  }

  // After the last vector, if vectors come first.
  void EndVectors() {
    EndSection();
    vectors_ = placed_.weights;
    form_.reset();
  }
  // After the last block of AdamW.
  void EndAdamW() {
    EndSection();
    for (ParameterSection& section : placed_.sections) {
      section.second_begin = section.begin;
      section.second_end = section.end;
    }
    placed_.adamw_extent = placed_.second_moments = extent_;
    placed_.adamw_weights = placed_.weights;
    form_.reset();
  }
  // After the last trainable block.
  void EndTrainable() {
    EndSection();
    placed_.trainable_extent = extent_;
    placed_.trainable_weights = placed_.weights;
  }

  PlacedBlocks Take() && {
    const WeightExtents& trained = placed_.trainable_weights;
    const bool weights = sharding_.divides_weights();
    placed_.divisions = {
        .moments = sharding_.Divide(sharding_.divides_optimizer(), extent()),
        .second_moments = sharding_.Divide(sharding_.divides_optimizer(),
                                           placed_.second_moments),
        .gradients = sharding_.Divide(sharding_.divides_gradients(), extent()),
        .master = sharding_.Divide(weights, trained.master, vectors_.master),
        .shadow = sharding_.Divide(weights, trained.shadow, vectors_.shadow),
        .high = sharding_.Divide(weights, trained.half, vectors_.half),
        .low = sharding_.Divide(sharding_.divides_optimizer(), trained.half)};
    return std::move(placed_);
  }

 private:
  bool BeginsSection(const std::string& unit, const Form& form) const {
    return form != form_ || unit != unit_ ||
           extent_ - placed_.sections.back().begin >= kSectionElements;
  }

  int64_t extent() const { return placed_.trainable_extent; }

  void BeginSection(const Form& form, bool of_vectors) {
    EndSection();
    placed_.sections.push_back(
        {.begin = extent_,
         .weights = Next(form),
         .divided = sharding_.divides_weights() && !of_vectors});
    form_ = form;
  }

  // Places a block `offset` elements from here.
  void Place(const ParameterBlockSpec& block, const Form& form,
             int64_t offset) {
    WeightPlace weights = Next(form);
    weights.offset += offset;
    if (weights.shadow.has_value()) *weights.shadow += offset;
    placed_.blocks.push_back(
        {&block, BlockShape(block), extent_ + offset, weights});
  }

  void Advance(const Form& form, int64_t room) {
    extent_ += room;
    (form.split ? placed_.weights.half : placed_.weights.master) += room;
    if (form.shadow) placed_.weights.shadow += room;
  }

  void AddSection(const Form& form, const MatrixSection& section,
                  Blocks blocks) {
    BeginSection(form, /*of_vectors=*/false);
    std::vector<std::pair<int64_t, const ParameterBlockSpec*>> by_offset;
    for (size_t b = 0; b < blocks.size(); ++b) {
      by_offset.emplace_back(section.offsets[b], blocks[b]);
    }
    absl::c_sort(by_offset);
    const size_t first = placed_.blocks.size();
    for (const auto& [offset, block] : by_offset) Place(*block, form, offset);
    PlaceRows(section, absl::MakeSpan(placed_.blocks).subspan(first));
    Advance(form, section.part * sharding_.shards);
  }

  // Gives the rows of a section's matrices their second moments: equal parts,
  // like those of the section, with the rows of the same matrices.
  void PlaceRows(const MatrixSection& section, absl::Span<PlacedBlock> blocks) {
    std::vector<int64_t> rows(sharding_.shards, 0);  // by part
    const auto for_each_matrix = [&](const auto& fn) {
      for (PlacedBlock& block : blocks) {
        if (!block.spec->row_moments) continue;
        int64_t offset = block.offset - extent_;
        for (const ParameterSpec& member : block.spec->members) {
          fn(block, section.PartOf(offset), member.shape[0]);
          offset += NumElements(member.shape);
        }
      }
    };
    for_each_matrix([&](const PlacedBlock&, int part, int64_t count) {
      rows[part] += count;
    });
    const int64_t most = *absl::c_max_element(rows);
    const int64_t begin = placed_.second_moments;
    absl::c_fill(rows, 0);
    for_each_matrix([&](PlacedBlock& block, int part, int64_t count) {
      block.row_moments.push_back(begin + most * part + rows[part]);
      rows[part] += count;
    });
    placed_.second_moments += most * sharding_.shards;
    placed_.sections.back().second_begin = begin;
    placed_.sections.back().second_end = placed_.second_moments;
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
  // Those of the open section, which the next block joins if it has the same.
  std::optional<Form> form_;
  std::string unit_;
  WeightExtents vectors_;
  PlacedBlocks placed_;
};

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
  placement.EndVectors();
  RETURN_IF_ERROR(add([&](const ParameterBlockSpec& block) {
    return block.trainable && !block.muon && !comes_first(block);
  }));
  placement.EndAdamW();
  const auto is_muons = [](const ParameterBlockSpec& block) {
    return block.trainable && block.muon;
  };
  if (sharding.shards == 1) {
    RETURN_IF_ERROR(add(is_muons));
  } else {
    std::vector<const ParameterBlockSpec*> matrices;
    for (const ParameterBlockSpec& block : blocks) {
      if (is_muons(block)) matrices.push_back(&block);
    }
    RETURN_IF_ERROR(placement.AddMatrices(matrices));
  }
  placement.EndTrainable();
  RETURN_IF_ERROR(
      add([](const ParameterBlockSpec& block) { return !block.trainable; }));
  return std::move(placement).Take();
}

// The members of a block at `offset`.
std::vector<ParameterSlice> SlicesOf(const ParameterBlockSpec& block,
                                     int64_t offset, WeightPlace weights,
                                     const std::vector<int64_t>& row_moments) {
  const int64_t begin = offset;
  std::vector<ParameterSlice> slices;
  for (const ParameterSpec& member : block.members) {
    const int64_t numel = NumElements(member.shape);
    std::optional<int64_t> rows;
    if (!row_moments.empty()) rows = row_moments[slices.size()];
    slices.push_back({member.name, member.shape, offset, numel, block.trainable,
                      weights, block.muon, begin, rows});
    offset += numel;
    weights.offset += numel;
    if (weights.shadow.has_value()) *weights.shadow += numel;
  }
  return slices;
}

WeightBytes BytesOf(const WeightExtents& extents,
                    const ParameterStore::Divisions& divisions,
                    const WeightDtypes& dtypes) {
  const auto bytes = [](int64_t numel, const Division& division,
                        at::ScalarType dtype) {
    return (numel - division.elsewhere()) *
           static_cast<int64_t>(c10::elementSize(dtype));
  };
  const int64_t low =
      dtypes.read_only ? 0 : bytes(extents.half, divisions.low, at::kShort);
  return {.master = bytes(extents.master, divisions.master, dtypes.master),
          .shadow = bytes(extents.shadow, divisions.shadow, dtypes.compute),
          .high = bytes(extents.half, divisions.high, at::kBFloat16),
          .low = low};
}

WeightBuffers AllocateWeights(const WeightExtents& extents,
                              const ParameterStore::Divisions& divisions,
                              const ParameterStoreOptions& options) {
  const auto zeros = [&](int64_t numel, const Division& division,
                         at::ScalarType dtype) {
    if (numel == 0) return at::Tensor();
    return at::zeros({numel - division.elsewhere()},
                     at::device(options.device).dtype(dtype));
  };
  const WeightDtypes& dtypes = options.weights;
  return {.master = zeros(extents.master, divisions.master, dtypes.master),
          .shadow = zeros(extents.shadow, divisions.shadow, dtypes.compute),
          .high = zeros(extents.half, divisions.high, at::kBFloat16),
          .low = zeros(dtypes.read_only ? 0 : extents.half, divisions.low,
                       at::kShort)};
}

// What a rank has of elements [offset, offset + numel) of a whole buffer, in
// the section of `size` elements that begins at `first`.
HeldRange HeldOfSection(const Division& division, int64_t offset, int64_t numel,
                        int64_t first, int64_t size) {
  if (division.shards == 1 || first < division.replicated) {
    return {.numel = numel, .place = offset};
  }
  const int64_t each = size / division.shards;
  const int64_t part = first + each * division.index;
  const int64_t begin = std::max(offset, part);
  const int64_t end = std::min(offset + numel, part + each);
  if (begin >= end) return {};
  return {.begin = begin - offset,
          .numel = end - begin,
          .place = begin - division.Shift(first, first + size)};
}

}  // namespace

int64_t LargestSection(absl::Span<const ParameterSection> sections) {
  int64_t largest = 0;
  for (const ParameterSection& section : sections) {
    largest = std::max(largest, section.size());
  }
  return largest;
}

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
      .adamw_extent = layout.adamw_extent,
      .second_moments = layout.second_moments,
      .weights = BytesOf(layout.weights, layout.divisions, dtypes),
      .trainable_weights = BytesOf(layout.trainable_weights, {}, dtypes),
      .adamw_weights = BytesOf(layout.adamw_weights, {}, dtypes),
      .sections = std::move(layout.sections)};
  placed.block_offsets.resize(blocks.size());
  for (const PlacedBlock& block : layout.blocks) {
    placed.block_offsets[block.spec - blocks.data()] = block.offset;
    for (ParameterSlice& slice : SlicesOf(*block.spec, block.offset,
                                          block.weights, block.row_moments)) {
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
  const at::Tensor high = HostMemoryFor(device, {count}, at::kBFloat16);
  const at::Tensor low = HostMemoryFor(device, {count}, at::kShort);
  high.copy_(part(weights.high));
  low.copy_(part(weights.low));
  JoinHalves(high, low, to);
}

void WriteHeld(const at::Tensor& buffer, const HeldRange& held, int64_t begin,
               const at::Tensor& values) {
  const int64_t first = std::max(begin, held.begin);
  const int64_t end = std::min(begin + values.numel(), held.begin + held.numel);
  if (first >= end) return;
  buffer.narrow(0, held.place + first - held.begin, end - first)
      .copy_(values.slice(0, first - begin, end - begin));
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
    store->adamw_extent_ = layout.adamw_extent;
    store->second_moments_ = layout.second_moments;
    store->divisions_ = layout.divisions;
    store->sections_ = std::move(layout.sections);
    store->weights_ =
        AllocateWeights(layout.weights, layout.divisions, options);
    store->grad_ =
        at::zeros({options.sharding.HeldGradients(layout.trainable_extent)},
                  at::device(options.device).dtype(options.gradient));
    for (const PlacedBlock& block : layout.blocks) {
      store->AddBlock(*block.spec, block.shape, block.offset, block.weights,
                      block.row_moments);
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
                              const WeightPlace& weights,
                              const std::vector<int64_t>& row_moments) {
  const auto view = [&](const at::Tensor& buffer, int64_t begin) {
    return buffer.narrow(0, begin, NumElements(shape)).view(shape).detach();
  };
  auto block = std::make_unique<Parameter>();
  block->name_ = spec.name;
  block->trainable_ = spec.trainable;
  const bool divided = spec.trainable && SectionOf(offset).divided;
  // Frozen blocks are behind what ranks divide.
  const auto place = [&](const Division& division, int64_t begin) {
    return spec.trainable ? begin : begin - division.elsewhere();
  };
  if (!divided && weights.split) {
    block->rounded_ =
        view(weights_.high, place(divisions_.high, weights.offset));
  } else if (!divided) {
    block->master_ =
        view(weights_.master, place(divisions_.master, weights.offset));
    if (weights.shadow.has_value()) {
      block->rounded_ =
          view(weights_.shadow, place(divisions_.shadow, *weights.shadow));
    }
  }
  if (spec.trainable) {
    const HeldRange held = HeldAt(
        divisions_.gradients, {.offset = offset, .numel = NumElements(shape)},
        offset, SectionOf(offset).begin);
    block->held_grad_ = grad_.narrow(0, held.place, held.numel);
    if (!sharding().divides_gradients()) {
      block->grad_ = view(grad_, offset);
    }
  }
  std::vector<ParameterSlice> slices =
      SlicesOf(spec, offset, weights, row_moments);
  for (size_t i = 0; i < slices.size(); ++i) {
    if (!options_.weights.read_only) Initialize(spec.members[i], slices[i]);
    num_parameters_ += slices[i].numel;
    slices_.push_back(std::move(slices[i]));
  }
  blocks_.push_back(std::move(block));
}

void ParameterStore::Initialize(const ParameterSpec& spec,
                                const ParameterSlice& slice) {
  // Ranks hold different parts of a slice, so their copies differ in size.
  const TemporaryMemoryScope temporary;
  // Where the values of the whole slice are computed: in place, if this rank
  // has them all.
  const auto room = [&](const at::Tensor& buffer, const HeldRange& held) {
    return held.numel == slice.numel
               ? buffer.narrow(0, held.place, slice.numel)
               : at::empty({slice.numel}, buffer.options());
  };
  const auto keep = [&](const at::Tensor& buffer, const HeldRange& held,
                        const at::Tensor& values) {
    if (held.numel < slice.numel) WriteHeld(buffer, held, 0, values);
  };
  if (slice.weights.split) {
    const at::Tensor high =
        room(weights_.high, HeldWeightsOf(divisions_.high, slice));
    const at::Tensor low =
        room(weights_.low, HeldWeightsOf(divisions_.low, slice));
    FillInitialValues(spec, options_.seed, high, low);
    keep(weights_.high, HeldWeightsOf(divisions_.high, slice), high);
    keep(weights_.low, HeldWeightsOf(divisions_.low, slice), low);
    return;
  }
  const at::Tensor master =
      room(weights_.master, HeldWeightsOf(divisions_.master, slice));
  FillInitialValues(spec, options_.seed, master);
  keep(weights_.master, HeldWeightsOf(divisions_.master, slice), master);
  if (slice.weights.shadow.has_value()) {
    WriteHeld(weights_.shadow, HeldShadow(slice), 0, master);
  }
}

void ParameterStore::AddGradientGap(int64_t begin, int64_t end) {
  for (const ParameterSection& section : sections_) {
    const int64_t first = std::max(begin, section.begin);
    const int64_t last = std::min(end, section.end);
    if (first >= last) continue;
    const HeldRange held =
        HeldOfSection(divisions_.gradients, first, last - first, section.begin,
                      section.size());
    if (held.numel == 0) continue;
    gradient_gaps_.push_back(grad_.narrow(0, held.place, held.numel));
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

const ParameterSection& ParameterStore::SectionOf(int64_t element) const {
  const auto after = std::upper_bound(
      sections_.begin(), sections_.end(), element,
      [](int64_t e, const ParameterSection& s) { return e < s.begin; });
  TESSERA_CHECK(after != sections_.begin(), "no section before ", element);
  return *std::prev(after);
}

HeldRange ParameterStore::HeldAt(const Division& division,
                                 const ParameterSlice& slice, int64_t offset,
                                 int64_t first) const {
  if (!slice.trainable) {
    return {.numel = slice.numel, .place = offset - division.elsewhere()};
  }
  return HeldOfSection(division, offset, slice.numel, first,
                       SectionOf(slice.offset).size());
}

HeldRange ParameterStore::HeldRowsOf(const ParameterSlice& slice) const {
  const ParameterSection& section = SectionOf(slice.offset);
  return HeldOfSection(divisions_.second_moments, *slice.row_moments,
                       slice.shape[0], section.second_begin,
                       section.second_end - section.second_begin);
}

HeldRange ParameterStore::HeldOf(const Division& division,
                                 const ParameterSlice& slice) const {
  return HeldAt(division, slice, slice.offset, SectionOf(slice.offset).begin);
}

HeldRange ParameterStore::HeldOf(const ParameterSlice& slice) const {
  // Ranks that divide `high` also divide `low`, and in the same way.
  return HeldWeightsOf(
      slice.weights.split ? divisions_.high : divisions_.master, slice);
}

HeldRange ParameterStore::HeldWeightsOf(const Division& division,
                                        const ParameterSlice& slice) const {
  return HeldAt(division, slice, slice.weights.offset, FirstOf(slice).offset);
}

HeldRange ParameterStore::HeldShadow(const ParameterSlice& slice) const {
  return HeldAt(divisions_.shadow, slice, *slice.weights.shadow,
                FirstOf(slice).shadow.value_or(0));
}

WeightPlace ParameterStore::FirstOf(const ParameterSlice& slice) const {
  return slice.trainable ? SectionOf(slice.offset).weights : WeightPlace();
}

bool ParameterStore::IsDivided(const at::Tensor& buffer) const {
  const auto divides = [&](const at::Tensor& weights,
                           const Division& division) {
    return division.shards > 1 && buffer.is_same(weights);
  };
  return divides(weights_.master, divisions_.master) ||
         divides(weights_.shadow, divisions_.shadow) ||
         divides(weights_.high, divisions_.high) ||
         divides(weights_.low, divisions_.low);
}

at::Tensor ParameterStore::HeldGradient(const ParameterSection& section) const {
  TESSERA_CHECK(sharding().divides_gradients(), "every rank has all gradients");
  return grad_.narrow(0, divisions_.gradients.HeldBegin(section.begin),
                      section.size() / sharding().shards);
}

std::vector<at::Tensor> ParameterStore::WholeWeights(
    const ParameterSection& section) const {
  if (section.divided) return {};
  const WeightPlace& place = section.weights;
  std::vector<at::Tensor> whole = {
      (place.split ? weights_.high : weights_.master)
          .narrow(0, place.offset, section.size())};
  if (place.shadow.has_value()) {
    whole.push_back(weights_.shadow.narrow(0, *place.shadow, section.size()));
  }
  return whole;
}

at::Tensor ParameterStore::HeldWeights(const ParameterSection& section,
                                       at::ScalarType dtype) const {
  TESSERA_CHECK(section.divided, "every rank has the section");
  const WeightPlace& place = section.weights;
  const int64_t size = section.size() / sharding().shards;
  const auto part = [&](const at::Tensor& buffer, const Division& division,
                        int64_t first) {
    TESSERA_CHECK(buffer.scalar_type() == dtype, "weights are not kept in ",
                  c10::toString(dtype));
    return buffer.narrow(0, division.HeldBegin(first), size);
  };
  if (place.split) return part(weights_.high, divisions_.high, place.offset);
  if (dtype == options_.weights.master) {
    return part(weights_.master, divisions_.master, place.offset);
  }
  return part(weights_.shadow, divisions_.shadow, place.shadow.value_or(0));
}

void ParameterStore::Read(const ParameterSlice& slice, int64_t begin,
                          at::Tensor to) const {
  TESSERA_CHECK(!slice.weights.split || weights_.low.defined(),
                "master values of ", slice.name, " are not kept");
  TESSERA_CHECK(!IsDivided(weights_.master) && !IsDivided(weights_.low),
                "another rank has a part of ", slice.name);
  ReadMaster(weights_, slice, begin, to);
}

void ParameterStore::Write(const ParameterSlice& slice, int64_t begin,
                           const at::Tensor& values) {
  if (slice.weights.split) {
    const int64_t count = values.numel();
    const at::Tensor high =
        HostMemoryFor(options_.device, {count}, at::kBFloat16);
    const at::Tensor low = HostMemoryFor(options_.device, {count}, at::kShort);
    SplitInHalves(values.to(at::kCPU, at::kFloat).contiguous(), high, low);
    WriteHeld(weights_.high, HeldWeightsOf(divisions_.high, slice), begin,
              high);
    if (weights_.low.defined()) {
      WriteHeld(weights_.low, HeldWeightsOf(divisions_.low, slice), begin, low);
    }
    return;
  }
  WriteHeld(weights_.master, HeldWeightsOf(divisions_.master, slice), begin,
            values);
  if (slice.weights.shadow.has_value()) {
    // From what was rounded to the master's dtype.
    WriteHeld(weights_.shadow, HeldShadow(slice), begin,
              values.to(weights_.master.scalar_type()));
  }
}

}  // namespace tessera
