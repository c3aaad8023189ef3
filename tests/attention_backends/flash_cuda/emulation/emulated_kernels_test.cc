// Runs the attention kernels, forward and backward, on a CPU, thread by thread
// as on a GPU, and checks them by the bounds of the conformance suite. This
// tests their arithmetic and barriers without a GPU.

#include <cmath>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"
#include "attention_backends/flash_cuda/fp32/workspace.h"
#include "attention_backends/flash_cuda/hopper/tiles.h"
#include "attention_backends/flash_cuda/portable/tile_sizes.h"
#include "attention_backends/flash_cuda/portable/workspace.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/attention_oracle.h"
#include "tests/attention_backends/error_bound.h"
#include "tests/attention_backends/flash_cuda/emulation/device_emulator.h"
#include "tests/attention_backends/flash_cuda/emulation/emulated_cuda.h"
#include "tests/attention_backends/guarded_tensor.h"

namespace tessera::testing {
namespace {

// kTf32: the portable kernels for FP32.
enum class Kernels { kPortable, kTf32, kFp32, kHopper };

constexpr const char* kNames[] = {"portable", "tf32", "fp32", "hopper"};

struct Case {
  Kernels kernels;
  int64_t b, h, g, s, t, d;
  bool causal, deterministic;
  // The limits of the mask; by default those of `causal`.
  int before = kAllKeys, after = causal ? 0 : kAllKeys;
  bool documents = false;
  float soft_cap = 0;

  MaskSpec mask() const { return {before, after}; }

  bool tf32() const { return kernels == Kernels::kTf32; }
  at::ScalarType dtype() const {
    return kernels == Kernels::kFp32 || tf32() ? at::kFloat : at::kBFloat16;
  }
};

std::string Label(int keys) {
  return keys == kAllKeys ? "all" : absl::StrCat(keys);
}

std::string Name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return absl::StrCat(
      kNames[static_cast<int>(c.kernels)], "_b", c.b, "_h", c.h, "_g", c.g,
      "_s", c.s, "_t", c.t, "_d", c.d,
      c.mask().is_window()
          ? absl::StrCat("_before", Label(c.before), "_after", Label(c.after))
          : (c.causal ? "_causal" : "_full"),
      c.documents ? "_documents" : "", c.soft_cap != 0 ? "_capped" : "",
      c.deterministic ? "_deterministic" : "");
}

void PrintTo(const Case& c, std::ostream* out) { *out << Name({c, 0}); }

HeadView ViewOf(const at::Tensor& x) {
  return {x.mutable_data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}

// Lets kernels read the values of a [B, heads, rows, D] slice and the memory
// between them.
void AddReadable(const at::Tensor& x) {
  int64_t last = 0;
  for (int i = 0; i < x.dim(); ++i) last += (x.size(i) - 1) * x.stride(i);
  emulated::AddReadable(x.const_data_ptr(), (last + 1) * x.element_size());
}

int64_t WorkspaceBytes(const Case& c, const flash::ForwardParams& p) {
  switch (c.kernels) {
    case Kernels::kPortable:
    case Kernels::kTf32:
      return flash::portable::LayoutOf(p, c.deterministic).total();
    case Kernels::kFp32:
      return flash::fp32::BackwardWorkspaceBytes(p);
    default:
      return flash::hopper::BackwardWorkspaceBytes(p, c.deterministic);
  }
}

void LaunchFp32(const flash::BackwardParams& params) {
  using flash::fp32::LaunchBackward;
  using flash::fp32::LaunchForward;
  flash::fp32::WithKernels(params.forward, [&](auto dim, auto soft_cap) {
    ASSERT_EQ((LaunchForward<dim(), soft_cap()>(params.forward, nullptr)),
              cudaSuccess);
    ASSERT_EQ((LaunchBackward<dim(), soft_cap()>(params, nullptr)),
              cudaSuccess);
  });
}

void LaunchPortable(const flash::BackwardParams& params) {
  using flash::portable::LaunchBackward;
  using flash::portable::LaunchForward;
  constexpr auto kType = FloatType::kBFloat16;
  flash::portable::WithKernels(params.forward, [&](auto dim, auto soft_cap) {
    ASSERT_EQ(
        (LaunchForward<kType, dim(), soft_cap()>(params.forward, nullptr)),
        cudaSuccess);
    ASSERT_EQ((LaunchBackward<kType, dim(), soft_cap()>(params, nullptr)),
              cudaSuccess);
  });
}

void LaunchTf32(const flash::BackwardParams& params) {
  using flash::portable::LaunchBackward;
  using flash::portable::LaunchForward;
  constexpr auto kType = FloatType::kFloat;
  flash::portable::WithKernels(params.forward, [&](auto dim, auto soft_cap) {
    if constexpr (dim() <= flash::portable::kLargestTf32HeadDim) {
      ASSERT_EQ(
          (LaunchForward<kType, dim(), soft_cap()>(params.forward, nullptr)),
          cudaSuccess);
      ASSERT_EQ((LaunchBackward<kType, dim(), soft_cap()>(params, nullptr)),
                cudaSuccess);
    }
  });
}

void LaunchHopper(const flash::BackwardParams& params) {
  using flash::hopper::LaunchBackward;
  using flash::hopper::LaunchForward;
  constexpr auto kType = FloatType::kBFloat16;
  flash::hopper::WithHeadDim(params.forward.d, [&](auto dim) {
    ASSERT_EQ((LaunchForward<kType, dim()>(params.forward, nullptr)),
              cudaSuccess);
    ASSERT_EQ((LaunchBackward<kType, dim()>(params, nullptr)), cudaSuccess);
  });
}

void Launch(const Case& c, const flash::BackwardParams& params) {
  switch (c.kernels) {
    case Kernels::kPortable:
      return LaunchPortable(params);
    case Kernels::kTf32:
      return LaunchTf32(params);
    case Kernels::kFp32:
      return LaunchFp32(params);
    default:
      return LaunchHopper(params);
  }
}

class EmulatedKernels : public ::testing::TestWithParam<Case> {
 protected:
  ~EmulatedKernels() override { emulated::ForgetReadable(); }
};

TEST_P(EmulatedKernels, ConformOnACpu) {
  const Case c = GetParam();
  at::manual_seed(20250101);
  const auto random = [&](int64_t heads, int64_t rows) {
    return GuardedTensor(
        at::randn({c.b, heads, rows, c.d}, at::kDouble).to(c.dtype()));
  };
  const GuardedTensor q = random(c.h, c.s), k = random(c.g, c.t);
  const GuardedTensor v = random(c.g, c.t), d_o = random(c.h, c.s);
  const auto o = GuardedTensor::Unwritten(q.slice());
  const auto dq = GuardedTensor::Unwritten(q.slice());
  const auto dk = GuardedTensor::Unwritten(k.slice());
  const auto dv = GuardedTensor::Unwritten(v.slice());
  const at::Tensor lse = at::full({c.b, c.h, c.s}, NAN);

  flash::BackwardParams params;
  flash::ForwardParams& p = params.forward;
  p = {.b = c.b, .h = c.h, .g = c.g, .s = c.s, .t = c.t, .d = c.d};
  p.type = c.dtype() == at::kFloat ? FloatType::kFloat : FloatType::kBFloat16;
  p.before = c.before;
  p.after = c.after;
  at::Tensor documents;
  if (c.documents) {
    documents = PackedDocuments(c.b, c.s);
    p.document_begin = documents[0].const_data_ptr<int>();
    p.document_end = documents[1].const_data_ptr<int>();
    emulated::AddReadable(p.document_begin, documents.nbytes());
  }
  p.tf32 = c.tf32();
  p.soft_cap = c.soft_cap;
  p.scale = 1 / std::sqrt(static_cast<float>(c.d));
  p.q = ViewOf(q.slice());
  p.k = ViewOf(k.slice());
  p.v = ViewOf(v.slice());
  p.o = ViewOf(o.slice());
  p.lse = lse.mutable_data_ptr<float>();
  int counter = -1;
  p.counter = &counter;
  params.d_o = ViewOf(d_o.slice());
  params.dq = ViewOf(dq.slice());
  params.dk = ViewOf(dk.slice());
  params.dv = ViewOf(dv.slice());
  params.deterministic = c.deterministic;
  const int64_t bytes = WorkspaceBytes(c, p);
  const at::Tensor workspace = at::full({bytes / 4}, NAN);
  params.workspace = workspace.mutable_data_ptr();
  for (const auto* x : {&q, &k, &v, &d_o}) AddReadable(x->slice());
  emulated::AddReadable(params.workspace, bytes);

  Launch(c, params);
  EXPECT_TRUE(o.IsIntact() && dq.IsIntact() && dk.IsIntact() && dv.IsIntact());

  const AttentionInputs inputs = {q.slice(),   k.slice(),    v.slice(),
                                  d_o.slice(), p.scale,      c.mask(),
                                  documents,   /*sinks=*/{}, c.soft_cap};
  const AttentionResults exact = EagerAttention(inputs, at::kDouble);
  const AttentionResults eager =
      c.tf32() ? EagerTf32Attention(inputs) : EagerAttention(inputs, c.dtype());
  const AttentionResults sums = AttentionMagnitudes(inputs);
  const auto [queries, keys] = CancellingRows(c.s, c.t, c.mask(), c.documents);
  EXPECT_TRUE(Conforms({o.slice(), eager.o, exact.o, sums.o})) << "O";
  EXPECT_TRUE(Conforms({lse, eager.lse, exact.lse, sums.lse})) << "L";
  EXPECT_TRUE(
      Conforms({dq.slice(), eager.dq, exact.dq, sums.dq, queries, c.tf32()}))
      << "dQ";
  EXPECT_TRUE(
      Conforms({dk.slice(), eager.dk, exact.dk, sums.dk, keys, c.tf32()}))
      << "dK";
  EXPECT_TRUE(Conforms({dv.slice(), eager.dv, exact.dv, sums.dv})) << "dV";
}

// Windows of one key, shorter than a tile, and longer than several; keys that
// no query sees, and queries that see no key; grouped heads. `scale` makes all
// of them larger, for kernels with larger tiles.
void AddWindows(Kernels kernels, int64_t scale, std::vector<Case>* cases) {
  const int n = static_cast<int>(scale);
  for (const bool deterministic : {false, true}) {
    const auto add = [&](int64_t h, int64_t g, int64_t s, int64_t t, int64_t d,
                         int before, int after) {
      cases->push_back({kernels, 1, h, g, scale * s, scale * t, d, after == 0,
                        deterministic, before, after});
    };
    add(1, 1, 70, 70, 64, 0, 0);
    add(4, 2, 160, 160, 64, n * 20 - 1, 0);
    add(1, 1, 260, 260, 96, n * 75, 0);
    add(2, 2, 30, 400, 80, n * 20, 0);
    add(1, 1, 200, 90, 64, n * 17, 0);
    add(1, 1, 190, 230, 64, n * 20, n * 30);
    add(1, 1, 230, 190, 128, kAllKeys, n * 70);
    add(1, 1, 140, 140, 120, n * 65, kAllKeys);
  }
}

// Documents that begin and end within tiles and at their edges, with each kind
// of mask.
void AddDocuments(Kernels kernels, std::vector<Case>* cases) {
  for (const bool deterministic : {false, true}) {
    const auto add = [&](int64_t b, int64_t h, int64_t g, int64_t s, int64_t d,
                         int before, int after) {
      cases->push_back({kernels, b, h, g, s, s, d, after == 0, deterministic,
                        before, after, /*documents=*/true});
    };
    add(1, 1, 1, 1, 64, kAllKeys, 0);
    add(2, 2, 1, 300, 64, kAllKeys, 0);
    add(1, 1, 1, 261, 128, kAllKeys, kAllKeys);
    add(1, 2, 2, 290, 80, 30, 0);
    add(1, 1, 1, 270, 96, 70, 90);
  }
}

// With a cap that bends most of the scores: each kernel, and head dims that run
// in a larger one; each kind of mask; queries without a key; grouped heads.
void AddCapped(Kernels kernels, std::vector<Case>* cases) {
  for (const bool deterministic : {false, true}) {
    const auto add = [&](int64_t h, int64_t g, int64_t s, int64_t t, int64_t d,
                         int before, int after, bool documents = false) {
      if (kernels == Kernels::kTf32 && d > 128) return;
      cases->push_back({kernels, 1, h, g, s, t, d, after == 0, deterministic,
                        before, after, documents, /*soft_cap=*/0.7});
    };
    add(1, 1, 1, 1, 64, kAllKeys, 0);
    add(2, 1, 127, 127, 32, kAllKeys, 0);
    add(4, 2, 65, 130, 80, kAllKeys, kAllKeys);
    add(1, 1, 140, 60, 96, kAllKeys, 0);
    add(1, 1, 129, 130, 128, kAllKeys, 0);
    add(2, 1, 300, 300, 64, 75, 0);
    add(1, 1, 130, 150, 128, 20, 30);
    add(1, 1, 300, 300, 120, kAllKeys, 0, /*documents=*/true);
    add(1, 1, 127, 127, 192, kAllKeys, kAllKeys);
    add(2, 1, 70, 140, 256, kAllKeys, 0);
  }
  // A cap that most scores exceed, so that its derivatives are close to 0;
  // Gemma 2's, which changes few.
  const auto add = [&](int64_t s, float soft_cap) {
    cases->push_back({kernels, 1, 1, 1, s, 130, 64, true, false, kAllKeys, 0,
                      /*documents=*/false, soft_cap});
  };
  add(70, 0.02f);
  add(75, 50);
}

// Less than a tile and more than one; queries without a key; heads that share
// keys, with group counts and sizes for which the mappings h / (H / G), h / G
// and h % G differ; surplus columns; a first query for which the mask hides
// only the last key of a tile.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Kernels kernels :
       {Kernels::kPortable, Kernels::kTf32, Kernels::kFp32}) {
    for (const int64_t d : {32, 64, 80, 96, 128, 192, 256}) {
      if (kernels == Kernels::kTf32 && d > 128) break;
      cases.push_back({kernels, 1, 1, 1, 1, 1, d, true, false});
      cases.push_back({kernels, 1, 2, 1, 70, 70, d, true, true});
      cases.push_back({kernels, 1, 1, 1, 65, 130, d, true, false});
      cases.push_back({kernels, 1, 1, 1, 140, 60, d - 8, true, false});
      cases.push_back({kernels, 1, 1, 1, 129, 130, d - 8, false, true});
    }
    cases.push_back({kernels, 1, 6, 2, 40, 33, 32, true, false});
    cases.push_back({kernels, 2, 4, 2, 33, 40, 64, true, false});
    cases.push_back({kernels, 1, 6, 2, 40, 33, 64, true, true});
    cases.push_back({kernels, 1, 4, 2, 33, 40, 120, false, true});
    if (kernels != Kernels::kTf32) {
      cases.push_back({kernels, 1, 4, 2, 33, 40, 192, true, false});
    }
    for (const int64_t t : {32, 64, 128}) {
      cases.push_back({kernels, 1, 1, 1, 2, t, 64, true, false});
      cases.push_back({kernels, 1, 1, 1, 2, t, 96, true, true});
    }
    AddWindows(kernels, /*scale=*/1, &cases);
    AddDocuments(kernels, &cases);
    AddCapped(kernels, &cases);
  }
  AddWindows(Kernels::kHopper, /*scale=*/2, &cases);
  AddDocuments(Kernels::kHopper, &cases);
  // So many keys that deterministic blocks walk up.
  cases.push_back({Kernels::kHopper, 1, 1, 1, 300, 1100, 64, true, true, 350});
  for (const int64_t d : {64, 80, 96, 128}) {
    const auto kHopper = Kernels::kHopper;
    cases.push_back({kHopper, 1, 1, 1, 1, 1, d, true, false});
    cases.push_back({kHopper, 1, 2, 1, 300, 300, d, true, true});
    cases.push_back({kHopper, 2, 1, 1, 65, 260, d - 8, true, false});
    cases.push_back({kHopper, 1, 1, 1, 270, 150, d, true, false});
    cases.push_back({kHopper, 1, 2, 1, 129, 390, d - 8, false, true});
    // So many keys that the tile sizes change.
    const int64_t many = flash::hopper::kShortRows + 6;
    cases.push_back({kHopper, 1, 1, 1, 200, many, d, true, false});
    cases.push_back({kHopper, 1, 1, 1, 65, many, d, false, false});
    cases.push_back({kHopper, 1, 1, 1, 260, many, d, true, true});
  }
  cases.push_back({Kernels::kHopper, 2, 4, 2, 33, 40, 64, true, false});
  cases.push_back({Kernels::kHopper, 1, 6, 2, 40, 33, 72, true, true});
  for (const int64_t t : {64, 128}) {
    cases.push_back({Kernels::kHopper, 1, 1, 1, 2, t, 64, true, false});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Each, EmulatedKernels, ::testing::ValuesIn(Cases()),
                         Name);

}  // namespace
}  // namespace tessera::testing
