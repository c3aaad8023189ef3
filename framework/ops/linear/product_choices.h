#ifndef FRAMEWORK_OPS_LINEAR_PRODUCT_CHOICES_H_
#define FRAMEWORK_OPS_LINEAR_PRODUCT_CHOICES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "c10/core/Device.h"
#include "framework/program/program.h"
#include "nlohmann/json.hpp"

namespace tessera {

class CublasLtProducts;

// The algorithm of each matrix product that a run's programs compute on a GPU.
// Chosen once, before the programs run; read-only from then on. The ops hold
// it, because they are made before there is a GPU to choose on.
struct ProductChoices {
  // Null until the algorithms are chosen, or if cuBLASLt is not used.
  std::shared_ptr<const CublasLtProducts> algorithms;
  // The tuned algorithms, for a checkpoint (product_table.h); null if none.
  nlohmann::json record;
  std::string summary;  // "28 products: 3 algorithms timed in 0.2 s, 25 known"
};

// How a product is computed.
struct ProductOptions {
  bool accumulate = false;
  // The algorithms on a GPU; may be null. A product that is not among them
  // takes cuBLASLt's first proposal, which it asks for in every call.
  const ProductChoices* choices = nullptr;
  // Multiprocessors that cuBLASLt leaves to other streams. Changes no bit.
  int spared_multiprocessors = 0;
};

struct ProductChoiceOptions {
  c10::Device device = c10::kCPU;
  // Whether to choose the fastest algorithms instead of cuBLASLt's first
  // proposals.
  bool tune = false;
  // A checkpoint's ProductChoices::record, which is preferred; may be null.
  nlohmann::json recorded;
};

// The products of all ops. A kind of product may be listed several times.
std::vector<MatrixProduct> ProductsOf(const Program& program);

// Chooses the algorithms of `products`. Does nothing without CUDA.
//
// cuBLASLt proposes algorithms without trying them, and its first proposal is
// often not the fastest. On an H200 the fastest take 0.93 to 0.98 of the time
// for the linear layers of a step in BF16, and O = P V in FP32 at 16,384 keys
// and head dim 64 takes 5.9 ms instead of 6.6. With tuning, a product that is
// neither in the checkpoint nor in the file of earlier runs on this machine is
// timed with all proposals, on memory that is returned to the GPU.
//
// The algorithm decides in which order a sum is added up, hence its rounding.
// So that later runs have the same bits, choices are kept in a file for each
// kind of GPU and release of cuBLASLt (product_table.h), and in checkpoints.
void ChooseProducts(absl::Span<const MatrixProduct> products,
                    const ProductChoiceOptions& options,
                    ProductChoices* choices);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_LINEAR_PRODUCT_CHOICES_H_
