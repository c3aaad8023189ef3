#ifndef FRAMEWORK_PARAMS_MATRIX_SECTIONS_H_
#define FRAMEWORK_PARAMS_MATRIX_SECTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace tessera {

// A block of a parameter store (parameter_store.h) as a stack of matrices
// without padding between them.
struct MatrixBlock {
  std::vector<int64_t> matrices;  // elements of each
  std::string unit;               // ParameterBlockSpec::unit
  // How much there is to compute for each matrix, compared with others; empty:
  // in proportion to its elements.
  std::vector<double> work;

  int64_t numel() const;
};

// Neighbouring blocks in a section that has one equal part per rank. Every
// matrix lies in one part. The matrices of a block may lie in several, but side
// by side, so that ops read the block as one.
struct MatrixSection {
  int64_t part = 0;              // elements of each part
  std::vector<int64_t> offsets;  // by block, from the section's beginning

  // The part in which `element` of the section lies.
  int PartOf(int64_t element) const { return static_cast<int>(element / part); }
};

// Divides blocks into sections for `shards` ranks, in the order of the blocks.
// Parts and blocks begin at multiples of kBlockAlignment.
//
// A section ends where a unit ends, or with the block that gives it
// `section_elements`, if padding is then at most 1/16 of its weights. Otherwise
// it takes in the next blocks, too: with few matrices some ranks would have
// nothing. If the last section then makes padding of all more than 1/16, it is
// joined with those before it.
//
// The parts of a section have equally many weights, not equal work. Which rank
// has most to do alternates: each section has its parts in the order that
// leaves the ranks closest to equal work so far.
std::vector<MatrixSection> DivideMatrices(absl::Span<const MatrixBlock> blocks,
                                          int shards, int64_t section_elements);

}  // namespace tessera

#endif  // FRAMEWORK_PARAMS_MATRIX_SECTIONS_H_
