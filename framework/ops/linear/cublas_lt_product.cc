#include "framework/ops/linear/cublas_lt_product.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "ATen/cuda/CUDAContext.h"
#include "ATen/cuda/CUDADataType.h"
#include "ATen/cuda/CUDAEvent.h"
#include "ATen/cuda/Exceptions.h"
#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "framework/base/file.h"
#include "framework/cuda/cuda_graph.h"
#include "framework/ops/linear/product_table.h"

namespace tessera {
namespace {

// The limit of a grid's third dimension.
constexpr int64_t kMaxMatrices = 65535;
constexpr int kMaxProposals = 16;
constexpr int kTimedRounds = 3;
// A timing is of this many milliseconds, because events are a microsecond
// apart even without work between them, but of at most kMaxRuns runs.
constexpr double kTimedMs = 0.3;
constexpr int kMaxRuns = 20;
// An algorithm that takes this many times the best time is not timed again.
constexpr double kHopeless = 1.1;
// The fraction of time that an algorithm must save to replace the first: more
// than the noise of the timings, and more than it may lose next to other
// kernels. At 16,384 keys and head dim 16, one that saved 1.9 % in isolation
// made the whole backward pass 4 % slower.
constexpr double kLeastGain = 0.025;

struct ProductCall {
  const at::Tensor& a;
  const at::Tensor& b;
  const at::Tensor& out;
  ProductOptions options;
};

// A matrix of a tensor [.., R, C] as cuBLAS, which is column-major, sees it: C
// x R with `leading` elements from one column to the next, or R x C if
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

int64_t MatricesOf(const at::Tensor& x) { return x.dim() == 3 ? x.size(0) : 1; }

std::optional<Layout> LayoutOf(const at::Tensor& x) {
  const int64_t rows = x.size(-2), columns = x.size(-1);
  Layout layout = {.matrix_stride = MatricesOf(x) == 1 ? 0 : x.stride(0),
                   .alignment = AlignmentOf(x)};
  std::optional<int64_t> leading =
      LeadingOf(columns, x.stride(-1), rows, x.stride(-2));
  if (!leading) {
    leading = LeadingOf(rows, x.stride(-2), columns, x.stride(-1));
    layout.transposed = true;
  }
  if (!leading) return std::nullopt;
  layout.leading = *leading;
  return layout;
}

// Products of the same kind use the same algorithms.
struct ProductKind {
  int device = 0;
  at::ScalarType dtype = at::kFloat;      // of a and b
  at::ScalarType out_dtype = at::kFloat;  // of out
  bool tf32 = false;
  bool tuned = false;
  int64_t matrices = 0, rows = 0, columns = 0, depth = 0;  // of out = a b
  Layout a, b, out;

  friend bool operator==(const ProductKind&, const ProductKind&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const ProductKind& k) {
    return H::combine(std::move(h), k.device, k.dtype, k.out_dtype, k.tf32,
                      k.tuned, k.matrices, k.rows, k.columns, k.depth, k.a, k.b,
                      k.out);
  }
};

// The name of a kind in a table: "BFloat16 1x2048x768 2304 ...".
std::string NameOf(const ProductKind& kind) {
  std::string name =
      absl::StrCat(c10::toString(kind.dtype), kind.tf32 ? " TF32" : "", " to ",
                   c10::toString(kind.out_dtype), ", ", kind.matrices, " x ",
                   kind.rows, " x ", kind.columns, " x ", kind.depth);
  for (const Layout* const layout : {&kind.a, &kind.b, &kind.out}) {
    absl::StrAppend(&name, ", ", layout->transposed ? "T" : "N",
                    layout->leading, "/", layout->matrix_stride, "@",
                    layout->alignment);
  }
  return name;
}

// The kind of a product; nullopt if cuBLASLt does not support it.
std::optional<ProductKind> KindOf(const ProductCall& call) {
  const at::Tensor &a = call.a, &b = call.b, &out = call.out;
  const at::ScalarType dtype = a.scalar_type();
  if (!out.is_cuda() || out.numel() == 0 || a.numel() == 0 ||
      MatricesOf(out) > kMaxMatrices || b.scalar_type() != dtype ||
      (out.scalar_type() != dtype && out.scalar_type() != at::kFloat)) {
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
      .out_dtype = out.scalar_type(),
      .tf32 = dtype == at::kFloat && at::globalContext().allowTF32CuBLAS(),
      .tuned = call.options.tuned,
      .matrices = MatricesOf(out),
      .rows = out.size(-2),
      .columns = out.size(-1),
      .depth = a.size(-1),
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
MatrixLayout MatrixOf(const ProductKind& kind, at::ScalarType dtype,
                      const Layout& layout, int64_t rows, int64_t columns) {
  if (!layout.transposed) std::swap(rows, columns);
  cublasLtMatrixLayout_t matrix = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatrixLayoutCreate(
      &matrix, at::cuda::ScalarTypeToCudaDataType(dtype), rows, columns,
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
        a_(MatrixOf(kind, kind.dtype, kind.a, kind.rows, kind.depth)),
        b_(MatrixOf(kind, kind.dtype, kind.b, kind.depth, kind.columns)),
        out_(
            MatrixOf(kind, kind.out_dtype, kind.out, kind.rows, kind.columns)) {
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
    const double once = Time(algorithms_[0], 1, call, stream);
    const int runs = std::clamp(static_cast<int>(kTimedMs / once), 1, kMaxRuns);
    std::vector<double> ms(algorithms_.size(), kInfinity);
    double best = kInfinity;
    for (int round = 0; round < kTimedRounds; ++round) {
      for (size_t i = 0; i < ms.size(); ++i) {
        if (round > 0 && ms[i] > best * kHopeless) continue;
        ms[i] = std::min(ms[i], Time(algorithms_[i], runs, call, stream));
        best = std::min(best, ms[i]);
      }
    }
    if (best > ms[0] * (1 - kLeastGain)) return;
    const auto fastest = std::find(ms.begin(), ms.end(), best) - ms.begin();
    std::swap(algorithms_[0], algorithms_[fastest]);
  }

  // The preferred algorithm as text, for a table; empty if there is none.
  std::string algorithm() const {
    if (algorithms_.empty()) return "";
    return absl::BytesToHexString(absl::string_view(
        reinterpret_cast<const char*>(&algorithms_[0]), sizeof(Algorithm)));
  }
  // Prefers an algorithm of a table. Ignores text that is none, and algorithms
  // that cuBLASLt would not run for this product.
  void Prefer(absl::string_view algorithm) {
    if (algorithm.size() != 2 * sizeof(Algorithm) ||
        !absl::c_all_of(algorithm, absl::ascii_isxdigit)) {
      return;
    }
    const std::string bytes = absl::HexStringToBytes(algorithm);
    Algorithm preferred;
    std::memcpy(&preferred, bytes.data(), sizeof(preferred));
    cublasLtMatmulHeuristicResult_t result = {};
    if (cublasLtMatmulAlgoCheck(at::cuda::getCurrentCUDABlasLtHandle(),
                                desc_.get(), b_.get(), a_.get(), out_.get(),
                                out_.get(), &preferred,
                                &result) != CUBLAS_STATUS_SUCCESS ||
        result.state != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > at::cuda::getCUDABlasLtWorkspaceSize()) {
      return;
    }
    algorithms_.insert(algorithms_.begin(), preferred);
  }

  // Runs the first algorithm that accepts the operands; returns whether there
  // is one.
  bool Run(const ProductCall& call, cudaStream_t stream) const {
    for (const Algorithm& algorithm : algorithms_) {
      if (Issue(algorithm, call, stream)) return true;
    }
    return false;
  }

 private:
  using Algorithm = cublasLtMatmulAlgo_t;

  // Launches the product; returns whether the algorithm accepts it.
  bool Issue(const Algorithm& algorithm, const ProductCall& call,
             cudaStream_t stream) const {
    const auto alpha = static_cast<float>(call.options.alpha);
    const float beta = call.options.accumulate ? 1 : 0;
    void* const out = call.out.mutable_data_ptr();
    const cublasStatus_t status = cublasLtMatmul(
        at::cuda::getCurrentCUDABlasLtHandle(), desc_.get(), &alpha,
        call.b.const_data_ptr(), b_.get(), call.a.const_data_ptr(), a_.get(),
        &beta, out, out_.get(), out, out_.get(), &algorithm,
        at::cuda::getCUDABlasLtWorkspace(),
        at::cuda::getCUDABlasLtWorkspaceSize(), stream);
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    // Clears the error of a refused launch; a sticky error stays.
    static_cast<void>(cudaGetLastError());
    return false;
  }

  // Milliseconds of a run that follows another, the mean of `runs`; infinite if
  // it does not run.
  double Time(const Algorithm& algorithm, int runs, const ProductCall& call,
              c10::cuda::CUDAStream stream) const {
    if (!Issue(algorithm, call, stream)) {
      return std::numeric_limits<double>::infinity();
    }
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record(stream);
    for (int i = 0; i < runs; ++i) Issue(algorithm, call, stream);
    end.record(stream);
    end.synchronize();
    return begin.elapsed_time(end) / runs;
  }

  MatmulDesc desc_;
  MatrixLayout a_, b_, out_;
  std::vector<Algorithm> algorithms_;  // in order of preference
};

// Every kind of product that this process has computed.
class ProductRegistry {
 public:
  static ProductRegistry& Get() {
    static auto* const registry = new ProductRegistry;
    return *registry;
  }

  nlohmann::json Tuned() {
    const absl::MutexLock lock(&mutex_);
    if (!table_.has_value()) return nullptr;
    nlohmann::json algorithms = nlohmann::json::object();
    for (const auto& [kind, product] : products_) {
      if (kind.tuned) algorithms[NameOf(kind)] = product->algorithm();
    }
    return {{"machine", table_->machine()}, {"algorithms", algorithms}};
  }

  void SetTuned(const nlohmann::json& products) {
    const absl::MutexLock lock(&mutex_);
    preferred_ = products;
    if (table_.has_value()) table_->Prefer(preferred_);
  }

  void Tune(const ProductKind& kind, const ProductCall& call) {
    if (IsCapturing(call.out.device())) return;
    const c10::cuda::CUDAGuard guard(call.out.device());
    Find(kind, call, c10::cuda::getCurrentCUDAStream());
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
    if (known == products_.end() && kind.tuned &&
        (call.options.accumulate || IsCapturing(call.out.device()))) {
      kind.tuned = false;
      known = products_.find(kind);
    }
    if (known != products_.end()) return *known->second;
    // If tuning throws, for example out of memory, no product is recorded.
    auto product = std::make_unique<Product>(kind);
    if (kind.tuned) Choose(kind, call, stream, product.get());
    return *products_.emplace(kind, std::move(product)).first->second;
  }

  void Choose(const ProductKind& kind, const ProductCall& call,
              c10::cuda::CUDAStream stream, Product* product)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ProductTable& table = Table();
    const std::string name = NameOf(kind);
    if (const auto algorithm = table.Find(name); algorithm.has_value()) {
      product->Prefer(*algorithm);
      return;
    }
    product->Tune(call, stream);
    const std::string tuned = product->algorithm();
    if (tuned.empty()) return;
    // Another process may have been first.
    const std::string chosen = table.Add(name, tuned);
    if (chosen != tuned) product->Prefer(chosen);
  }

  // The table of this process's GPUs, which are of one kind.
  ProductTable& Table() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!table_.has_value()) {
      const std::string gpu = at::cuda::getCurrentDeviceProperties()->name;
      const std::string release =
          absl::StrCat("cuBLASLt ", cublasLtGetVersion());
      const absl::StatusOr<std::string> cache = UserCacheDir();
      table_.emplace(absl::StrCat(gpu, ", ", release),
                     cache.ok() ? absl::StrCat(*cache, "/products/", gpu, ", ",
                                               release, ".json")
                                : "");
      table_->Prefer(preferred_);
    }
    return *table_;
  }

  absl::Mutex mutex_;
  absl::flat_hash_map<ProductKind, std::unique_ptr<Product>> products_
      ABSL_GUARDED_BY(mutex_);
  std::optional<ProductTable> table_ ABSL_GUARDED_BY(mutex_);
  nlohmann::json preferred_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

bool MultiplyByCublasLt(const at::Tensor& a, const at::Tensor& b,
                        const at::Tensor& out, const ProductOptions& options) {
  const ProductCall call = {a, b, out, options};
  const std::optional<ProductKind> kind = KindOf(call);
  return kind.has_value() && ProductRegistry::Get().Multiply(*kind, call);
}

void TuneProduct(const at::Tensor& a, const at::Tensor& b,
                 const at::Tensor& out) {
  const ProductCall call = {a, b, out, {.tuned = true}};
  const std::optional<ProductKind> kind = KindOf(call);
  if (kind.has_value()) ProductRegistry::Get().Tune(*kind, call);
}

nlohmann::json TunedProducts() { return ProductRegistry::Get().Tuned(); }

void SetTunedProducts(const nlohmann::json& products) {
  ProductRegistry::Get().SetTuned(products);
}

}  // namespace tessera
