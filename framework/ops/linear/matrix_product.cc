#include "framework/ops/linear/matrix_product.h"

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "ATen/ATen.h"
#include "ATen/Context.h"
#include "framework/cuda/cuda_build.h"
#include "framework/ops/linear/cublas_lt_product.h"
#include "framework/program/op.h"

namespace tessera {
namespace {

bool GoesToCublasLt(const at::Tensor& a) {
  return a.is_cuda() &&
         UsesCublasLt(a.scalar_type(), at::globalContext().allowTF32CuBLAS());
}

// cuBLASLt's fast kernels read and write this much at a time.
constexpr int64_t kAccessBytes = 16;
// A smaller product takes no longer than the launch of a second one.
constexpr double kLeastFlopsToSplit = 8e9;

enum class Dim { kM, kK, kN };  // of [M, N] = [M, K] [K, N]

// The part of a product that is computed apart from the rest of it.
struct Remainder {
  Dim dim = Dim::kM;
  int64_t begin = 0, size = 0;
};

// What keeps a product from the fast kernels, which need whole accesses in each
// dimension in which an operand is contiguous; nullopt if nothing does, or if
// the product is small or would not be fast without it either. On an H200 the
// three products of a head with 50,257 words, 4,096 tokens and width 2,560 in
// BF16 take 10.8, 7.9 and 2.2 ms, with 50,256 words 1.34 ms each.
std::optional<Remainder> RemainderOf(const at::Tensor& a, const at::Tensor& b,
                                     const at::Tensor& c) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  if (2.0 * static_cast<double>(m * k) * static_cast<double>(n) <
      kLeastFlopsToSplit) {
    return std::nullopt;
  }
  const auto row_major = [](const at::Tensor& t) { return t.stride(1) == 1; };
  for (const at::Tensor* t : {&a, &b, &c}) {
    const int64_t row_bytes =
        t->stride(row_major(*t) ? 0 : 1) * t->element_size();
    if (row_bytes % kAccessBytes != 0 ||
        reinterpret_cast<uintptr_t>(t->const_data_ptr()) % kAccessBytes != 0) {
      return std::nullopt;
    }
  }
  const int64_t access = kAccessBytes / a.element_size();
  const auto of = [access](Dim dim, int64_t size) {
    return Remainder{dim, size / access * access, size % access};
  };
  for (const Remainder& remainder :
       {of(Dim::kN, n), of(Dim::kK, row_major(a) || !row_major(b) ? k : 0),
        of(Dim::kM, row_major(a) ? 0 : m)}) {
    if (remainder.begin > 0 && remainder.size > 0) return remainder;
  }
  return std::nullopt;
}

// The part of a product that covers [begin, begin + size) of `dim`.
MatrixProduct PartOf(const MatrixProduct& p, Dim dim, int64_t begin,
                     int64_t size) {
  switch (dim) {
    case Dim::kM:
      return {p.a.narrow(0, begin, size), p.b, p.out.narrow(0, begin, size)};
    case Dim::kN:
      return {p.a, p.b.narrow(1, begin, size), p.out.narrow(1, begin, size)};
    case Dim::kK:
      break;
  }
  return {p.a.narrow(1, begin, size), p.b.narrow(0, begin, size), p.out};
}

// The product in two parts: from `remainder` on, then the rest. The larger part
// of a sum comes last, so that it is rounded once.
std::array<MatrixProduct, 2> PartsOf(const MatrixProduct& whole,
                                     const Remainder& remainder) {
  return {PartOf(whole, remainder.dim, remainder.begin, remainder.size),
          PartOf(whole, remainder.dim, 0, remainder.begin)};
}

}  // namespace

void Multiply(const at::Tensor& a, const at::Tensor& b,
              const ProductOptions& options, at::Tensor c) {
  if constexpr (kCudaBuild) {
    if (GoesToCublasLt(a)) {
      if (const auto remainder = RemainderOf(a, b, c); remainder.has_value()) {
        const auto [rest, most] = PartsOf({a, b, c}, *remainder);
        Multiply(rest.a, rest.b, options, rest.out);
        ProductOptions of_most = options;
        of_most.accumulate |= remainder->dim == Dim::kK;
        Multiply(most.a, most.b, of_most, most.out);
        return;
      }
      if (MultiplyByCublasLt(a, b, c, options)) return;
    }
  }
  if (c.scalar_type() == a.scalar_type()) {
    if (options.accumulate) {
      at::addmm_out(c, c, a, b);
    } else {
      at::mm_out(c, a, b);
    }
  } else {
    // LibTorch's products have results no wider than their operands.
    const at::ScalarType dtype =
        at::promote_types(c.scalar_type(), a.scalar_type());
    WriteGrad({c, options.accumulate}, at::mm(a.to(dtype), b.to(dtype)));
  }
}

void AddProducts(const MatrixProduct& product,
                 std::vector<MatrixProduct>* products) {
  if (!UsesCublasLt(product.a.scalar_type(),
                    at::globalContext().allowTF32CuBLAS())) {
    return;
  }
  const auto remainder = RemainderOf(product.a, product.b, product.out);
  if (!remainder.has_value()) return products->push_back(product);
  for (const MatrixProduct& part : PartsOf(product, *remainder)) {
    AddProducts(part, products);
  }
}

}  // namespace tessera
