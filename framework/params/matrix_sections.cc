#include "framework/params/matrix_sections.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "framework/params/sharding.h"

namespace tessera {
namespace {

using Blocks = absl::Span<const MatrixBlock>;

// Elements of a section that no block has taken.
struct FreeRange {
  int64_t begin, end;
};

bool EveryMatrixIsInOnePart(const MatrixBlock& block, int64_t begin,
                            int64_t part) {
  for (const int64_t numel : block.matrices) {
    const int64_t end = begin + numel;
    if (begin / part != (end - 1) / part) return false;
    begin = end;
  }
  return true;
}

// The first place for a block in `free`: at its beginning, or where one of the
// matrices begins a part.
std::optional<int64_t> FirstFit(const MatrixBlock& block, const FreeRange& free,
                                int64_t part) {
  const int64_t last = free.end - AlignUp(block.numel());
  std::vector<int64_t> begins = {free.begin};
  int64_t before = 0;  // elements of the block before a matrix
  for (const int64_t numel : block.matrices) {
    if (before % kBlockAlignment == 0) {
      const int64_t cuts_before = (free.begin + before + part - 1) / part;
      for (int64_t cut = cuts_before * part; cut - before <= last;
           cut += part) {
        begins.push_back(cut - before);
      }
    }
    before += numel;
  }
  absl::c_sort(begins);
  for (const int64_t begin : begins) {
    if (begin <= last && EveryMatrixIsInOnePart(block, begin, part)) {
      return begin;
    }
  }
  return std::nullopt;
}

// Offsets of blocks, each at the first place where it fits, the largest block
// first; nullopt if one does not fit into parts of that size.
std::optional<std::vector<int64_t>> Pack(Blocks blocks, int shards,
                                         int64_t part) {
  std::vector<size_t> largest_first(blocks.size());
  std::iota(largest_first.begin(), largest_first.end(), 0);
  absl::c_stable_sort(largest_first, [&](size_t a, size_t b) {
    return blocks[a].numel() > blocks[b].numel();
  });
  std::vector<FreeRange> free = {{0, shards * part}};
  std::vector<int64_t> offsets(blocks.size(), -1);
  for (const size_t b : largest_first) {
    for (size_t f = 0; f < free.size() && offsets[b] < 0; ++f) {
      const auto begin = FirstFit(blocks[b], free[f], part);
      if (!begin.has_value()) continue;
      offsets[b] = *begin;
      const FreeRange after = {*begin + AlignUp(blocks[b].numel()),
                               free[f].end};
      free[f].end = *begin;
      free.insert(free.begin() + static_cast<int64_t>(f) + 1, after);
    }
    if (offsets[b] < 0) return std::nullopt;
  }
  return offsets;
}

int64_t Total(Blocks blocks) {
  int64_t total = 0;
  for (const MatrixBlock& block : blocks) total += block.numel();
  return total;
}

// No part of a section can be smaller.
int64_t LeastPart(Blocks blocks, int shards) {
  int64_t least = (Total(blocks) + shards - 1) / shards;
  for (const MatrixBlock& block : blocks) {
    least = std::max(least, *absl::c_max_element(block.matrices));
  }
  return AlignUp(least);
}

// Whether padding takes at most 1/16 if each rank has `part` of the blocks.
bool IsBalanced(int64_t part, Blocks blocks, int shards) {
  return 16 * shards * part <= 17 * Total(blocks);
}

// One section of all blocks: MULTIFIT (Coffman, Garey and Johnson, "An
// application of bin-packing to multiprocessor scheduling", 1978), which
// bisects the size of the parts.
MatrixSection Pack(Blocks blocks, int shards) {
  int64_t too_small = 0, part = LeastPart(blocks, shards);
  auto offsets = Pack(blocks, shards, part);
  if (offsets.has_value()) return {part, *std::move(offsets)};
  while (!offsets.has_value()) {
    too_small = part;
    part *= 2;
    offsets = Pack(blocks, shards, part);
  }
  while (part - too_small > kBlockAlignment) {
    const int64_t between = AlignUp(too_small + (part - too_small) / 2);
    auto smaller = Pack(blocks, shards, between);
    (smaller.has_value() ? part : too_small) = between;
    if (smaller.has_value()) offsets = std::move(smaller);
  }
  return {part, *std::move(offsets)};
}

// What is left for the last section may be out of balance. Joins it with as few
// sections before as make padding of all at most 1/16, or with those that leave
// the least.
void JoinLast(Blocks blocks, int shards, std::vector<MatrixSection>* sections) {
  int64_t before = 0;  // elements of a rank's parts of the others
  for (const MatrixSection& section : *sections) before += section.part;
  int64_t least = std::numeric_limits<int64_t>::max();
  std::vector<MatrixSection> best;
  size_t begin = blocks.size();
  for (size_t first = sections->size(); first-- > 0;) {
    before -= (*sections)[first].part;
    begin -= (*sections)[first].offsets.size();
    MatrixSection joined = Pack(blocks.subspan(begin), shards);
    const int64_t parts = before + joined.part;
    if (parts < least) {
      least = parts;
      best.assign(sections->begin(),
                  sections->begin() + static_cast<int64_t>(first));
      best.push_back(std::move(joined));
    }
    if (IsBalanced(parts, blocks, shards)) break;
  }
  *sections = std::move(best);
}

// Neighbouring parts that blocks connect.
struct PartGroup {
  int begin, end;
};

std::vector<PartGroup> GroupsOf(Blocks blocks, int shards,
                                const MatrixSection& section) {
  std::vector<bool> begins(shards, true);  // by part: a group
  for (size_t b = 0; b < blocks.size(); ++b) {
    const int64_t begin = section.offsets[b];
    const int last = section.PartOf(begin + blocks[b].numel() - 1);
    for (int part = section.PartOf(begin); part < last; ++part) {
      begins[part + 1] = false;
    }
  }
  std::vector<PartGroup> groups;
  for (int part = 0; part < shards; ++part) {
    if (begins[part]) groups.push_back({part, part});
    ++groups.back().end;
  }
  return groups;
}

std::vector<double> WorkOfParts(Blocks blocks, int shards,
                                const MatrixSection& section) {
  std::vector<double> work(shards, 0);
  for (size_t b = 0; b < blocks.size(); ++b) {
    int64_t begin = section.offsets[b];
    for (size_t m = 0; m < blocks[b].matrices.size(); ++m) {
      const int64_t numel = blocks[b].matrices[m];
      work[section.PartOf(begin)] += blocks[b].work.empty()
                                         ? static_cast<double>(numel)
                                         : blocks[b].work[m];
      begin += numel;
    }
  }
  return work;
}

// A section's groups of parts in another order: the new place of each part.
std::vector<int> PlacesInOrder(absl::Span<const PartGroup> order, int shards) {
  std::vector<int> places(shards);
  int next = 0;
  for (const PartGroup& group : order) {
    for (int part = group.begin; part < group.end; ++part) {
      places[part] = next++;
    }
  }
  return places;
}

// Rotates the order of the groups, and may reverse it first, such that the sum
// of squares of the ranks' work is least. Adds the section's work to `work`.
void ArrangeParts(Blocks blocks, std::vector<double>* work,
                  MatrixSection* section) {
  const int shards = static_cast<int>(work->size());
  std::vector<PartGroup> groups = GroupsOf(blocks, shards, *section);
  const std::vector<double> own = WorkOfParts(blocks, shards, *section);
  double least = std::numeric_limits<double>::max();
  std::vector<int> best;
  for (size_t order = 0; order < 2 * groups.size(); ++order) {
    const std::vector<int> places = PlacesInOrder(groups, shards);
    double squares = 0;
    for (int part = 0; part < shards; ++part) {
      const double sum = (*work)[places[part]] + own[part];
      squares += sum * sum;
    }
    if (squares < least) {
      least = squares;
      best = places;
    }
    absl::c_rotate(groups, groups.begin() + 1);
    if (order + 1 == groups.size()) absl::c_reverse(groups);
  }
  for (int part = 0; part < shards; ++part) (*work)[best[part]] += own[part];
  for (int64_t& offset : section->offsets) {
    const int part = section->PartOf(offset);
    offset += (best[part] - part) * section->part;
  }
}

}  // namespace

int64_t MatrixBlock::numel() const {
  return std::accumulate(matrices.begin(), matrices.end(), int64_t{0});
}

std::vector<MatrixSection> DivideMatrices(Blocks blocks, int shards,
                                          int64_t section_elements) {
  std::vector<MatrixSection> sections;
  size_t begin = 0;  // of the open section
  for (size_t end = 1; end <= blocks.size(); ++end) {
    const Blocks open = blocks.subspan(begin, end - begin);
    const bool last = end == blocks.size();
    const bool may_end = last || blocks[end].unit != blocks[end - 1].unit ||
                         Total(open) >= section_elements;
    // Most sections that are out of balance are found without packing them.
    if (!may_end ||
        (!last && !IsBalanced(LeastPart(open, shards), open, shards))) {
      continue;
    }
    MatrixSection section = Pack(open, shards);
    if (!last && !IsBalanced(section.part, open, shards)) continue;
    sections.push_back(std::move(section));
    begin = end;
  }
  JoinLast(blocks, shards, &sections);
  std::vector<double> work(shards, 0);  // of each rank so far
  begin = 0;
  for (MatrixSection& section : sections) {
    ArrangeParts(blocks.subspan(begin, section.offsets.size()), &work,
                 &section);
    begin += section.offsets.size();
  }
  return sections;
}

}  // namespace tessera
