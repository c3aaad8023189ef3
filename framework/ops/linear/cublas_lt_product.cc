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

#include "ATen/ATen.h"
#include "ATen/cuda/CUDAContext.h"
#include "ATen/cuda/CUDADataType.h"
#include "ATen/cuda/CUDAEvent.h"
#include "ATen/cuda/CUDAGeneratorImpl.h"
#include "ATen/cuda/Exceptions.h"
#include "absl/algorithm/container.h"
#include "absl/base/call_once.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/monotonic_clock.h"
#include "framework/cuda/device.h"
#include "framework/ops/linear/product_table.h"

namespace tessera {
namespace {

// The limit of a grid's third dimension.
constexpr int64_t kMaxMatrices = 65535;
constexpr int64_t kMaxAlignment = 256;
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
  const void *a = nullptr, *b = nullptr;
  void* out = nullptr;
  float alpha = 1, beta = 0;
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

// The largest power of two that divides the address, up to cuBLASLt's limit. A
// storage without memory begins at 0.
int64_t AlignmentOf(const at::Tensor& x) {
  const auto address =
      reinterpret_cast<uintptr_t>(x.const_data_ptr()) | kMaxAlignment;
  return static_cast<int64_t>(address & -address);
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

// Products of the same kind use the same algorithm.
struct ProductKind {
  at::ScalarType dtype = at::kFloat;      // of a and b
  at::ScalarType out_dtype = at::kFloat;  // of out
  bool tf32 = false;
  int64_t matrices = 0, rows = 0, columns = 0, depth = 0;  // of out = a b
  Layout a, b, out;

  friend bool operator==(const ProductKind&, const ProductKind&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const ProductKind& k) {
    return H::combine(std::move(h), k.dtype, k.out_dtype, k.tf32, k.matrices,
                      k.rows, k.columns, k.depth, k.a, k.b, k.out);
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
std::optional<ProductKind> KindOf(const at::Tensor& a, const at::Tensor& b,
                                  const at::Tensor& out) {
  const at::ScalarType dtype = a.scalar_type();
  if (out.numel() == 0 || a.numel() == 0 || MatricesOf(out) > kMaxMatrices ||
      b.scalar_type() != dtype ||
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
      .dtype = dtype,
      .out_dtype = out.scalar_type(),
      .tf32 = dtype == at::kFloat && at::globalContext().allowTF32CuBLAS(),
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
using Handle = std::unique_ptr<cublasLtContext, Destroy<cublasLtDestroy>>;
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

// Another algorithm has other bits, which must not go unseen.
void WarnOfRefusal() {
  static absl::once_flag once;
  absl::call_once(once, LogWarning,
                  "cuBLASLt refused the algorithm that it had proposed for a "
                  "matrix product, and another one runs; bits may differ from "
                  "other runs");
}

struct Launch {
  cublasLtHandle_t handle = nullptr;
  c10::cuda::CUDAStream stream;
  void* workspace = nullptr;
  int multiprocessors = 0;  // 0: all
};

// Computes the products of one kind.
class Product {
 public:
  Product(const ProductKind& kind, cublasLtHandle_t handle)
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
    if (cublasLtMatmulAlgoGetHeuristic(handle, desc_.get(), b_.get(), a_.get(),
                                       out_.get(), out_.get(), preference.get(),
                                       kMaxProposals, proposals,
                                       &found) != CUBLAS_STATUS_SUCCESS) {
      return;
    }
    for (int i = 0; i < found; ++i) {
      if (proposals[i].state != CUBLAS_STATUS_SUCCESS) continue;
      algorithms_.push_back(proposals[i].algo);
    }
  }

  // Times the algorithms and keeps the fastest. They take turns, so that a
  // change of the GPU's clock favours none.
  void Tune(const ProductCall& call, const Launch& launch) {
    if (algorithms_.empty()) return;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double once = Time(algorithms_[0], 1, call, launch);
    const int runs = std::clamp(static_cast<int>(kTimedMs / once), 1, kMaxRuns);
    std::vector<double> ms(algorithms_.size(), kInfinity);
    double best = kInfinity;
    for (int round = 0; round < kTimedRounds; ++round) {
      for (size_t i = 0; i < ms.size(); ++i) {
        if (round > 0 && ms[i] > best * kHopeless) continue;
        ms[i] = std::min(ms[i], Time(algorithms_[i], runs, call, launch));
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
  void Prefer(absl::string_view algorithm, cublasLtHandle_t handle) {
    if (algorithm.size() != 2 * sizeof(Algorithm) ||
        !absl::c_all_of(algorithm, absl::ascii_isxdigit)) {
      return;
    }
    const std::string bytes = absl::HexStringToBytes(algorithm);
    Algorithm preferred;
    std::memcpy(&preferred, bytes.data(), sizeof(preferred));
    cublasLtMatmulHeuristicResult_t result = {};
    if (cublasLtMatmulAlgoCheck(handle, desc_.get(), b_.get(), a_.get(),
                                out_.get(), out_.get(), &preferred,
                                &result) != CUBLAS_STATUS_SUCCESS ||
        result.state != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > at::cuda::getCUDABlasLtWorkspaceSize()) {
      return;
    }
    algorithms_.insert(algorithms_.begin(), preferred);
  }

  // Runs the first algorithm that accepts the operands; returns whether there
  // is one.
  bool Run(const ProductCall& call, const Launch& launch) const {
    for (const Algorithm& algorithm : algorithms_) {
      if (!Issue(algorithm, call, launch)) continue;
      if (&algorithm != algorithms_.data()) WarnOfRefusal();
      return true;
    }
    return false;
  }

 private:
  using Algorithm = cublasLtMatmulAlgo_t;

  // Launches the product; returns whether the algorithm accepts it.
  bool Issue(const Algorithm& algorithm, const ProductCall& call,
             const Launch& launch) const {
    const int32_t multiprocessors = launch.multiprocessors;
    TORCH_CUDABLAS_CHECK(cublasLtMatmulDescSetAttribute(
        desc_.get(), CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &multiprocessors,
        sizeof(multiprocessors)));
    const cublasStatus_t status = cublasLtMatmul(
        launch.handle, desc_.get(), &call.alpha, call.b, b_.get(), call.a,
        a_.get(), &call.beta, call.out, out_.get(), call.out, out_.get(),
        &algorithm, launch.workspace, at::cuda::getCUDABlasLtWorkspaceSize(),
        launch.stream);
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    // Clears the error of a refused launch; a sticky error stays.
    static_cast<void>(cudaGetLastError());
    return false;
  }

  // Milliseconds of a run that follows another, the mean of `runs`; infinite if
  // it does not run.
  double Time(const Algorithm& algorithm, int runs, const ProductCall& call,
              const Launch& launch) const {
    if (!Issue(algorithm, call, launch)) {
      return std::numeric_limits<double>::infinity();
    }
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record(launch.stream);
    for (int i = 0; i < runs; ++i) Issue(algorithm, call, launch);
    end.record(launch.stream);
    end.synchronize();
    return begin.elapsed_time(end) / runs;
  }

  MatmulDesc desc_;
  MatrixLayout a_, b_, out_;
  std::vector<Algorithm> algorithms_;  // in order of preference
};

// Random operands for the timings of a kind of product, and a workspace.
class Trial {
 public:
  Trial(const MatrixProduct& product, const ProductKind& kind,
        const ProductChoiceOptions& options, at::Generator generator)
      : a_(Memory(product.a, options)),
        b_(Memory(product.b, options)),
        out_(Memory(product.out, options)),
        workspace_(at::empty(
            {static_cast<int64_t>(at::cuda::getCUDABlasLtWorkspaceSize())},
            at::dtype(at::kByte).device(options.device))),
        kind_(kind) {
    // The power that a product takes depends on the values.
    for (const at::Tensor& x : {a_, b_}) x.uniform_(-1, 1, generator);
  }

  ProductCall call() const {
    return {.a = Begin(a_, kind_.a),
            .b = Begin(b_, kind_.b),
            .out = Begin(out_, kind_.out)};
  }
  void* workspace() const { return workspace_.mutable_data_ptr(); }

 private:
  static at::Tensor Memory(const at::Tensor& x,
                           const ProductChoiceOptions& options) {
    int64_t elements = 1 + kMaxAlignment / x.element_size();
    for (int64_t i = 0; i < x.dim(); ++i) {
      elements += (x.size(i) - 1) * x.stride(i);
    }
    return at::empty({elements}, x.options().device(options.device));
  }
  // An address in `memory` that is aligned like the layout's, not more.
  static void* Begin(const at::Tensor& memory, const Layout& layout) {
    return static_cast<char*>(memory.mutable_data_ptr()) +
           layout.alignment % kMaxAlignment;
  }

  const at::Tensor a_, b_, out_, workspace_;
  const ProductKind kind_;
};

// The file of choices for this process's GPUs, which are of one kind.
ProductTable OpenTable(const nlohmann::json& recorded) {
  const std::string gpu = at::cuda::getCurrentDeviceProperties()->name;
  const std::string release = absl::StrCat("cuBLASLt ", cublasLtGetVersion());
  const absl::StatusOr<std::string> cache = UserCacheDir();
  ProductTable table(absl::StrCat(gpu, ", ", release),
                     cache.ok() ? absl::StrCat(*cache, "/products/", gpu, ", ",
                                               release, ".json")
                                : "");
  table.Prefer(recorded);
  return table;
}

// cuBLASLt's target for a product that spares `spared` multiprocessors.
int MultiprocessorsFor(int spared) {
  const int all = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  return spared > 0 && spared < all ? all - spared : 0;
}

}  // namespace

class CublasLtProducts {
 public:
  absl::flat_hash_map<ProductKind, Product> by_kind;
};

bool MultiplyByCublasLt(const at::Tensor& a, const at::Tensor& b,
                        const at::Tensor& out, const ProductOptions& options,
                        double alpha) {
  if (!out.is_cuda()) return false;
  const std::optional<ProductKind> kind = KindOf(a, b, out);
  if (!kind.has_value()) return false;
  const c10::cuda::CUDAGuard guard(out.device());
  const ProductCall call = {.a = a.const_data_ptr(),
                            .b = b.const_data_ptr(),
                            .out = out.mutable_data_ptr(),
                            .alpha = static_cast<float>(alpha),
                            .beta = options.accumulate ? 1.0f : 0.0f};
  const Launch launch = {at::cuda::getCurrentCUDABlasLtHandle(),
                         c10::cuda::getCurrentCUDAStream(),
                         at::cuda::getCUDABlasLtWorkspace(),
                         MultiprocessorsFor(options.spared_multiprocessors)};
  if (options.choices != nullptr && options.choices->algorithms != nullptr) {
    const auto& chosen = options.choices->algorithms->by_kind;
    const auto found = chosen.find(*kind);
    if (found != chosen.end()) return found->second.Run(call, launch);
  }
  return Product(*kind, launch.handle).Run(call, launch);
}

ProductChoices ChooseByCublasLt(absl::Span<const MatrixProduct> products,
                                const ProductChoiceOptions& options) {
  const c10::cuda::CUDAGuard guard(options.device);
  const absl::Time begin = MonotonicNow();
  at::Generator generator =
      at::make_generator<at::CUDAGeneratorImpl>(options.device.index());
  // LibTorch's handle would take a workspace for the current stream.
  cublasLtHandle_t handle = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtCreate(&handle));
  const Handle owner(handle);
  auto chosen = std::make_shared<CublasLtProducts>();
  std::optional<ProductTable> table;
  if (options.tune) table.emplace(OpenTable(options.recorded));
  nlohmann::json algorithms = nlohmann::json::object();
  int timed = 0;
  for (const MatrixProduct& product : products) {
    const std::optional<ProductKind> kind =
        KindOf(product.a, product.b, product.out);
    if (!kind.has_value() || chosen->by_kind.contains(*kind)) continue;
    Product& p =
        chosen->by_kind.emplace(*kind, Product(*kind, handle)).first->second;
    if (!table.has_value() || p.algorithm().empty()) continue;
    const std::string name = NameOf(*kind);
    std::optional<std::string> known = table->Find(name);
    if (!known.has_value()) {
      ++timed;
      const Trial trial(product, *kind, options, generator);
      p.Tune(trial.call(),
             {handle, c10::cuda::getCurrentCUDAStream(), trial.workspace()});
      // Another process may have been first.
      known = table->Add(name, p.algorithm());
    }
    p.Prefer(*known, handle);
    algorithms[name] = p.algorithm();
  }
  if (timed > 0) EmptyCache(options.device);
  ProductChoices choices = {.algorithms = chosen};
  if (table.has_value()) {
    choices.record = {{"machine", table->machine()},
                      {"algorithms", std::move(algorithms)}};
  }
  const size_t count = chosen->by_kind.size();
  choices.summary =
      options.tune
          ? absl::StrFormat(
                "%d products: %d algorithms timed in %.1f s, %d "
                "known",
                count, timed, absl::ToDoubleSeconds(MonotonicNow() - begin),
                count - timed)
          : absl::StrCat(count, " products: cuBLASLt's first proposals");
  return choices;
}

}  // namespace tessera
