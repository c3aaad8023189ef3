#ifndef FRAMEWORK_OPTIM_MUON_MATH_H_
#define FRAMEWORK_OPTIM_MUON_MATH_H_

#include <math.h>

#include <cstdint>

#include "framework/cuda/float_type.h"
#include "framework/cuda/host_device.h"
#include "framework/optim/adamw_math.h"

namespace tessera {

// Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural
// networks", 2024) with the equations of torch.optim.Muon. A weight W [rows,
// cols] with the gradient G has a momentum M, and moves along its momentum made
// orthogonal:
//
//   M <- M + (1 - momentum) * (G - M)
//   U  = G + momentum * (M - G) with Nesterov's momentum, otherwise M
//   X  = U / max(|U|, 1e-7), with the Frobenius norm
//   X <- a X + (b A + c A^2) X with A = X X^T, ns_steps times
//   W <- W - lr * weight_decay * W - lr * ratio * X
//
// A Newton-Schulz step applies an odd polynomial of degree 5 to the singular
// values. Five steps bring them near 1 (0.7 to 1.2). If rows > cols, the
// smaller product A = X^T X multiplies from the right, with the same result.
//
// NorMuon (Li et al., "NorMuon: Making Muon more efficient and scalable", 2025)
// then makes the rows of X, one per neuron, equally large over time. v has one
// number per row, and the last line keeps the size of an orthogonal matrix, so
// that `ratio` means the same; with `match_adamw` it is the paper's factor:
//
//   v <- v + (1 - beta2) * (mean of the squares of each row of X - v)
//   X <- X / (sqrt(v) + 1e-8), row by row
//   X <- X * sqrt(min(rows, cols)) / |X|
//
// Each matrix of the model is one W. Query, key and value projections, and the
// two of a gated feed-forward, are separate matrices although the store stacks
// them for one product: together they would be a different optimizer, whose
// result depended on what is stacked.
//
// nvcc compiles this header, so it must not include LibTorch.
inline constexpr double kMuonA = 3.4445, kMuonB = -4.7750, kMuonC = 2.0315;
inline constexpr float kMuonMinNorm = 1e-7f;
inline constexpr float kNorMuonEps = 1e-8f;

struct MuonOptions {
  float momentum = 0.95f;
  float one_minus_momentum = 0.05f;  // rounded once
  bool nesterov = true;
  int ns_steps = 5;
  float lr_multiplier = 1;  // of the learning rate of AdamW
  // The ratio for a matrix:
  //   true   0.2 * sqrt(max(rows, cols)), so that updates are as large as those
  //          of AdamW (Liu et al., "Muon is Scalable for LLM Training", 2025)
  //   false  sqrt(max(1, rows / cols))
  bool match_adamw = true;
  bool normalizes_rows = false;   // NorMuon
  float one_minus_beta2 = 0.05f;  // of its v
};

inline float MuonRatio(const MuonOptions& options, int64_t rows, int64_t cols) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(cols);
  return static_cast<float>(options.match_adamw ? 0.2 * sqrt(fmax(r, c))
                                                : sqrt(fmax(1, r / c)));
}

// One element of M. `gradient` has the step's scale.
TESSERA_HOST_DEVICE float UpdateMuonMomentum(float momentum, float gradient,
                                             const MuonOptions& options) {
  return momentum + options.one_minus_momentum * (gradient - momentum);
}

// One element of U, from that of the new M.
TESSERA_HOST_DEVICE float MuonDirection(float momentum, float gradient,
                                        const MuonOptions& options) {
  return options.nesterov ? gradient + options.momentum * (momentum - gradient)
                          : momentum;
}

// One element of NorMuon's v; `mean_square` is that of its row of X.
TESSERA_HOST_DEVICE float UpdateRowMoment(float moment, float mean_square,
                                          const MuonOptions& options) {
  return moment + options.one_minus_beta2 * (mean_square - moment);
}

// The factor of a row before the matrix is brought to its size.
TESSERA_HOST_DEVICE float RowScale(float moment) {
  return 1 / (sqrtf(moment) + kNorMuonEps);
}

// A matrix that Muon updates, in elements.
struct MuonMatrix {
  int64_t offset;   // of its gradient and momentum in the flat order
  int64_t weights;  // in `high` and `low` if split, otherwise in `master`
  int64_t shadow;   // in `shadow`; -1: none
  int64_t rows;     // of v in `row_moments`, with NorMuon
  int32_t split;    // 0 or 1
  int32_t group;    // of AdamW's coefficients
  float ratio;
};

// One element of W. Rounded once, like that of AdamW. `coefficients` are those
// of the matrix's group.
TESSERA_HOST_DEVICE float UpdateMuonWeight(
    float weight, float direction, const AdamWCoefficients& coefficients,
    const MuonOptions& options, float ratio) {
  const float multiplier = options.lr_multiplier;
  const float decay = multiplier * DecayOf(coefficients, weight, direction);
  const float step = multiplier * coefficients.lr * ratio;
  return weight - (decay * weight + step * direction);
}

// Matrices of one shape, and where they are. Device pointers.
struct MuonBuffers {
  const MuonMatrix* matrices;
  int64_t count;
  int64_t rows, cols, numel;  // of each matrix

  FloatType state;  // type of master and momentum
  FloatType grad_dtype;
  FloatType rounded_dtype;  // of shadow
  FloatType direction_dtype;
  void* momentum;
  const void* grad;
  void* direction;  // one matrix after another: U, then X

  // With NorMuon, otherwise null: v; per matrix and row the factor of X and,
  // while it is computed, the sum of squares that the row then has.
  void* row_moments;
  float* row_scales;
  float* row_squares;

  // Null if no matrix is in them.
  void* master;
  void* shadow;
  uint16_t* high;
  int16_t* low;

  // What AdamW's Prepare() has fixed.
  const AdamWCoefficients* coefficients;  // by group
  const bool* skips;                      // whether the update changes nothing
};

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_MUON_MATH_H_
