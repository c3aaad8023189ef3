#include "framework/ops/linear/product_choices.h"

#include <utility>

#include "framework/cuda/cuda_build.h"
#include "framework/ops/linear/cublas_lt_product.h"

namespace tessera {

std::vector<MatrixProduct> ProductsOf(const Program& program) {
  std::vector<MatrixProduct> products;
  for (const OpNode& node : program.ops()) {
    for (MatrixProduct& product : node.op->Products()) {
      products.push_back(std::move(product));
    }
  }
  return products;
}

void ChooseProducts(absl::Span<const MatrixProduct> products,
                    const ProductChoiceOptions& options,
                    ProductChoices* choices) {
  if constexpr (kCudaBuild) {
    if (options.device.is_cuda()) {
      *choices = ChooseByCublasLt(products, options);
    }
  }
}

}  // namespace tessera
