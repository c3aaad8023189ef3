#include "attention_backends/compiled_fused/tuned_product.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "ATen/cuda/CUDAContext.h"
#include "ATen/cuda/CUDADataType.h"
#include "ATen/cuda/CUDAEvent.h"
#include "ATen/cuda/Exceptions.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "attention_backends/strided_product.h"
#include "c10/cuda/CUDAGraphsC10Utils.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"

namespace tessera {
namespace fused {
namespace {

// The limit of a grid's third dimension.
constexpr int64_t kMaxMatrices = 65535;
constexpr int kMaxProposals = 16;
constexpr int kTimedRounds = 3;
// An algorithm that takes this many times the best time is not timed again.
constexpr double kHopeless = 1.1;
// The fraction of time that an algorithm must save to replace the first: more
// than the noise of the timings, and more than it may lose next to other
// kernels. At 16,384 keys and head dim 16, one that saved 1.9 % in isolation
// made the whole backward pass 4 % slower.
constexpr double kLeastGain = 0.025;

// out = alpha a b.
struct ProductCall {
  const at::Tensor& a;
  const at::Tensor& b;
  double alpha = 1;
  const at::Tensor& out;
};

// A matrix of a tensor [N, R, C] as cuBLAS, which is column-major, sees it: C x
// R with `leading` elements from one column to the next, or R x C if
// `transposed`.
struct Layout {
  bool transposed = false;
  int64_t leading = 0;
  int64_t matrix_stride = 0;
  int64_t alignment = 0;  // of the first element, bytes

  friend bool operator==(const Layout&, const Layout&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Layout& l) {
    return H::combine(std::move(h), l.transposed, l.leading, l.matrix_stride,
                      l.alignment);
  }
};

// The distance between `count` vectors of `length` contiguous elements; nullopt
// if they overlap or are not contiguous.
std::optional<int64_t> LeadingOf(int64_t length, int64_t element_stride,
                                 int64_t count, int64_t vector_stride) {
  if (length > 1 && element_stride != 1) return std::nullopt;
  if (count == 1) return length;
  if (vector_stride < length) return std::nullopt;
  return vector_stride;
}

// The largest power of two that divides the address, up to cuBLASLt's limit.
int64_t AlignmentOf(const at::Tensor& x) {
  const auto address = reinterpret_cast<uintptr_t>(x.const_data_ptr());
  return static_cast<int64_t>(std::min<uintptr_t>(256, address & -address));
}

std::optional<Layout> LayoutOf(const at::Tensor& x) {
  const int64_t rows = x.size(1), columns = x.size(2);
  Layout layout = {.matrix_stride = x.size(0) == 1 ? 0 : x.stride(0),
                   .alignment = AlignmentOf(x)};
  std::optional<int64_t> leading =
      LeadingOf(columns, x.stride(2), rows, x.stride(1));
  if (!leading) {
    leading = LeadingOf(rows, x.stride(1), columns, x.stride(2));
    layout.transposed = true;
  }
  if (!leading) return std::nullopt;
  layout.leading = *leading;
  return layout;
}

// Products of the same kind use the same algorithms.
struct ProductKind {
  int device = 0;
  at::ScalarType dtype = at::kFloat;
  bool tf32 = false;
  bool tuned = false;
  int64_t matrices = 0, rows = 0, columns = 0, depth = 0;  // of out = a b
  Layout a, b, out;

  friend bool operator==(const ProductKind&, const ProductKind&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const ProductKind& k) {
    return H::combine(std::move(h), k.device, k.dtype, k.tf32, k.tuned,
                      k.matrices, k.rows, k.columns, k.depth, k.a, k.b, k.out);
  }
};

// The kind of a product; nullopt if cuBLASLt does not support it.
std::optional<ProductKind> KindOf(const ProductCall& call, bool tuned) {
  const at::Tensor &a = call.a, &b = call.b, &out = call.out;
  const at::ScalarType dtype = out.scalar_type();
  if (!out.is_cuda() || out.numel() == 0 || a.numel() == 0 ||
      out.size(0) > kMaxMatrices) {
    return std::nullopt;
  }
  if (dtype != at::kFloat && dtype != at::kHalf && dtype != at::kBFloat16) {
    return std::nullopt;
  }
  const std::optional<Layout> a_layout = LayoutOf(a), b_layout = LayoutOf(b),
                              out_layout = LayoutOf(out);
  if (!a_layout || !b_layout || !out_layout || out_layout->transposed) {
    return std::nullopt;
  }
  return ProductKind{
      .device = out.get_device(),
      .dtype = dtype,
      .tf32 = dtype == at::kFloat && at::globalContext().allowTF32CuBLAS(),
      .tuned = tuned,
      .matrices = out.size(0),
      .rows = out.size(1),
      .columns = out.size(2),
      .depth = a.size(2),
      .a = *a_layout,
      .b = *b_layout,
      .out = *out_layout};
}

template <auto destroy>
struct Destroy {
  template <typename T>
  void operator()(T* x) const {
    destroy(x);
  }
};
using MatmulDesc = std::unique_ptr<cublasLtMatmulDescOpaque_t,
                                   Destroy<cublasLtMatmulDescDestroy>>;
using MatrixLayout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t,
                                     Destroy<cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
                                   Destroy<cublasLtMatmulPreferenceDestroy>>;

MatmulDesc DescOf(const ProductKind& kind) {
  cublasLtMatmulDesc_t desc = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulDescCreate(
      &desc, kind.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
      CUDA_R_32F));
  MatmulDesc owner(desc);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute,
                       const Layout& layout) {
    const cublasOperation_t op = layout.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    TORCH_CUDABLAS_CHECK(
        cublasLtMatmulDescSetAttribute(desc, attribute, &op, sizeof(op)));
  };
  // Row-major out = a b is column-major out^T = b^T a^T.
  set(CUBLASLT_MATMUL_DESC_TRANSA, kind.b);
  set(CUBLASLT_MATMUL_DESC_TRANSB, kind.a);
  return owner;
}

// The cuBLASLt layout of a tensor [N, rows, columns].
MatrixLayout MatrixOf(const ProductKind& kind, const Layout& layout,
                      int64_t rows, int64_t columns) {
  if (!layout.transposed) std::swap(rows, columns);
  cublasLtMatrixLayout_t matrix = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatrixLayoutCreate(
      &matrix, at::cuda::ScalarTypeToCudaDataType(kind.dtype), rows, columns,
      layout.leading));
  MatrixLayout owner(matrix);
  const auto count = static_cast<int32_t>(kind.matrices);
  TORCH_CUDABLAS_CHECK(cublasLtMatrixLayoutSetAttribute(
      matrix, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
  TORCH_CUDABLAS_CHECK(cublasLtMatrixLayoutSetAttribute(
      matrix, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
      &layout.matrix_stride, sizeof(layout.matrix_stride)));
  return owner;
}

Preference PreferenceOf(const ProductKind& kind) {
  cublasLtMatmulPreference_t preference = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  Preference owner(preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute,
                       auto value) {
    TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        preference, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<uint64_t>(at::cuda::getCUDABlasLtWorkspaceSize()));
  // If a sum is split, its parts are added in FP32.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
      static_cast<uint32_t>(kind.b.alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      static_cast<uint32_t>(kind.a.alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
      static_cast<uint32_t>(kind.out.alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
      static_cast<uint32_t>(kind.out.alignment));
  return owner;
}

// Computes the products of one kind.
class Product {
 public:
  explicit Product(const ProductKind& kind)
      : desc_(DescOf(kind)),
        a_(MatrixOf(kind, kind.a, kind.rows, kind.depth)),
        b_(MatrixOf(kind, kind.b, kind.depth, kind.columns)),
        out_(MatrixOf(kind, kind.out, kind.rows, kind.columns)) {
    const Preference preference = PreferenceOf(kind);
    cublasLtMatmulHeuristicResult_t proposals[kMaxProposals];
    int found = 0;
    // The call returns "not supported" rather than 0 proposals; both leave
    // none.
    if (cublasLtMatmulAlgoGetHeuristic(
            at::cuda::getCurrentCUDABlasLtHandle(), desc_.get(), b_.get(),
            a_.get(), out_.get(), out_.get(), preference.get(), kMaxProposals,
            proposals, &found) != CUBLAS_STATUS_SUCCESS) {
      return;
    }
    for (int i = 0; i < found; ++i) {
      if (proposals[i].state != CUBLAS_STATUS_SUCCESS) continue;
      algorithms_.push_back(proposals[i].algo);
    }
  }

  // Times the algorithms on these operands and keeps the fastest. The
  // algorithms take turns, so that a change of the GPU's clock favours none.
  void Tune(const ProductCall& call, c10::cuda::CUDAStream stream) {
    if (algorithms_.empty()) return;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    std::vector<double> ms(algorithms_.size(), kInfinity);
    double best = kInfinity;
    for (int round = 0; round < kTimedRounds; ++round) {
      for (size_t i = 0; i < ms.size(); ++i) {
        if (round > 0 && ms[i] > best * kHopeless) continue;
        ms[i] = std::min(ms[i], Time(algorithms_[i], call, stream));
        best = std::min(best, ms[i]);
      }
    }
    if (best > ms[0] * (1 - kLeastGain)) return;
    const auto fastest = std::find(ms.begin(), ms.end(), best) - ms.begin();
    std::swap(algorithms_[0], algorithms_[fastest]);
  }

  // Runs the first algorithm that accepts the operands; returns whether there
  // is one.
  bool Run(const ProductCall& call, cudaStream_t stream) const {
    for (const cublasLtMatmulAlgo_t& algorithm : algorithms_) {
      if (Issue(algorithm, call, stream)) return true;
    }
    return false;
  }

 private:
  // Launches the product; returns whether the algorithm accepts it.
  bool Issue(const cublasLtMatmulAlgo_t& algorithm, const ProductCall& call,
             cudaStream_t stream) const {
    const auto alpha = static_cast<float>(call.alpha);
    const float zero = 0;
    void* const out = call.out.mutable_data_ptr();
    const cublasStatus_t status = cublasLtMatmul(
        at::cuda::getCurrentCUDABlasLtHandle(), desc_.get(), &alpha,
        call.b.const_data_ptr(), b_.get(), call.a.const_data_ptr(), a_.get(),
        &zero, out, out_.get(), out, out_.get(), &algorithm,
        at::cuda::getCUDABlasLtWorkspace(),
        at::cuda::getCUDABlasLtWorkspaceSize(), stream);
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    // Clears the error of a refused launch; a sticky error stays.
    static_cast<void>(cudaGetLastError());
    return false;
  }

  // Milliseconds of a run that follows another; infinite if it does not run.
  double Time(const cublasLtMatmulAlgo_t& algorithm, const ProductCall& call,
              c10::cuda::CUDAStream stream) const {
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    for (at::cuda::CUDAEvent* const event : {&begin, &end}) {
      if (!Issue(algorithm, call, stream)) {
        return std::numeric_limits<double>::infinity();
      }
      event->record(stream);
    }
    end.synchronize();
    return begin.elapsed_time(end);
  }

  MatmulDesc desc_;
  MatrixLayout a_, b_, out_;
  std::vector<cublasLtMatmulAlgo_t> algorithms_;  // in order of preference
};

// Every kind of product that this process has computed.
class ProductRegistry {
 public:
  static ProductRegistry& Get() {
    static auto* const registry = new ProductRegistry;
    return *registry;
  }

  // Returns whether cuBLASLt accepted the product.
  bool Multiply(const ProductKind& kind, const ProductCall& call) {
    const c10::cuda::CUDAGuard guard(call.out.device());
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    return Find(kind, call, stream).Run(call, stream);
  }

 private:
  const Product& Find(ProductKind kind, const ProductCall& call,
                      c10::cuda::CUDAStream stream) {
    const absl::MutexLock lock(&mutex_);
    auto known = products_.find(kind);
    if (known == products_.end() &&
        c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
            c10::cuda::CaptureStatus::None) {
      kind.tuned = false;
      known = products_.find(kind);
    }
    if (known != products_.end()) return *known->second;
    // If tuning throws, for example out of memory, no product is recorded.
    auto product = std::make_unique<Product>(kind);
    if (kind.tuned) product->Tune(call, stream);
    return *products_.emplace(kind, std::move(product)).first->second;
  }

  absl::Mutex mutex_;
  absl::flat_hash_map<ProductKind, std::unique_ptr<Product>> products_
      ABSL_GUARDED_BY(mutex_);
};

void Multiply(const ProductCall& call, bool tuned) {
  const std::optional<ProductKind> kind = KindOf(call, tuned);
  if (!kind || !ProductRegistry::Get().Multiply(*kind, call)) {
    MultiplyBatch(call.a, call.b, call.alpha, call.out);
  }
}

}  // namespace

void MultiplyTuned(const at::Tensor& a, const at::Tensor& b, double alpha,
                   const at::Tensor& out) {
  Multiply({a, b, alpha, out}, /*tuned=*/true);
}

void MultiplyRepeatably(const at::Tensor& a, const at::Tensor& b, double alpha,
                        const at::Tensor& out) {
  Multiply({a, b, alpha, out}, /*tuned=*/false);
}

}  // namespace fused
}  // namespace tessera
