#include "tests/attention_backends/conformance_cases.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "attention_backends/backend_table.h"
#include "attention_backends/naive/naive_backend.h"

namespace tessera::testing {
namespace {

using Cases = std::vector<ConformanceCase>;

constinit const NaiveBackend kLibrarySoftmax(HeldScores::kLibrarySoftmax);
constinit const NaiveBackend kHandWrittenSoftmax(
    HeldScores::kHandWrittenSoftmax);

struct Variant {
  const AttentionBackend* backend;
  const char* name;
};

std::vector<Variant> Variants() {
  std::vector<Variant> variants = {{&kLibrarySoftmax, "_library_softmax"},
                                   {&kHandWrittenSoftmax, "_written_softmax"}};
  for (const AttentionBackend* backend : AttentionBackends()) {
    variants.push_back({backend, ""});
  }
  return variants;
}

// "causal", "full", "before3_after5".
std::string MaskLabel(MaskSpec mask) {
  if (!mask.is_window()) return ToString(mask);
  const auto keys = [](int64_t side) {
    return side == kAllKeys ? "all" : absl::StrCat(side);
  };
  return absl::StrCat("before", keys(mask.before), "_after", keys(mask.after));
}

// Windows that are shorter than a tile, as long and longer; that hold only the
// query's own key; that reach beyond the sequences; with keys after the query.
constexpr MaskSpec kWindows[] = {MaskSpec::Window(1),
                                 MaskSpec::Window(40),
                                 MaskSpec::Window(64),
                                 MaskSpec::Window(300),
                                 {.before = 20, .after = 13},
                                 {.before = kAllKeys, .after = 70},
                                 {.before = 129, .after = kAllKeys}};

// Each window with each shape and dtype of backends that compute windows.
Cases Windowed(const std::vector<Shape>& shapes,
               const std::vector<at::ScalarType>& dtypes) {
  Cases cases;
  for (const AttentionBackend* backend : AttentionBackends()) {
    for (const Shape& shape : shapes) {
      for (const MaskSpec mask : kWindows) {
        for (const at::ScalarType dtype : dtypes) {
          cases.push_back({backend, shape, mask, dtype});
        }
      }
    }
  }
  return cases;
}

// Causal, full and windowed, within documents.
Cases Packed(const std::vector<at::ScalarType>& dtypes) {
  const std::vector<Shape> shapes = {
      {1, 1, 1, 1, 1, 64},      {3, 65, 65, 2, 1, 40},
      {2, 300, 300, 4, 2, 80},  {2, 129, 129, 3, 1, 128},
      {1, 127, 127, 2, 2, 96},  {1, 140, 140, 1, 1, 192},
      {2, 1000, 1000, 2, 1, 64}};
  Cases cases;
  for (const AttentionBackend* backend : AttentionBackends()) {
    for (const Shape& shape : shapes) {
      for (const MaskSpec mask :
           {MaskSpec::Causal(), MaskSpec::Full(), MaskSpec::Window(30),
            MaskSpec{.before = 70, .after = 90}}) {
        for (const at::ScalarType dtype : dtypes) {
          cases.push_back({.backend = backend,
                           .shape = shape,
                           .mask = mask,
                           .dtype = dtype,
                           .documents = true});
        }
      }
    }
  }
  return cases;
}

// Heads with sinks, also with queries that see no key.
Cases WithSinks(const std::vector<at::ScalarType>& dtypes) {
  Cases cases = Packed(dtypes);
  for (ConformanceCase& c : Windowed({{2, 65, 65, 4, 2, 40},
                                      {1, 200, 130, 2, 1, 128},
                                      {1, 7, 500, 5, 5, 80}},
                                     dtypes)) {
    cases.push_back(c);
  }
  for (ConformanceCase& c : cases) c.sinks = true;
  return cases;
}

// S > T and S < T, with queries that see no key and keys that no query sees;
// grouped heads; several tiles.
std::vector<Shape> WindowShapes() {
  return {{1, 1, 1, 1, 1, 64},     {2, 65, 65, 2, 1, 40},
          {1, 130, 130, 4, 2, 80}, {1, 40, 200, 2, 2, 64},
          {1, 200, 130, 2, 1, 32}, {1, 127, 127, 2, 2, 128},
          {1, 270, 270, 1, 1, 96}, {1, 140, 140, 1, 1, 192},
          {2, 5, 1100, 6, 2, 16},  {1, 1000, 1000, 2, 1, 64},
          {1, 300, 1100, 2, 1, 64}};
}

// Every backend x shape x mask x dtype.
Cases Cross(const std::vector<Shape>& shapes,
            const std::vector<at::ScalarType>& dtypes) {
  Cases cases;
  for (const Variant& variant : Variants()) {
    for (const Shape& shape : shapes) {
      for (const MaskSpec mask : {MaskSpec::Causal(), MaskSpec::Full()}) {
        for (const at::ScalarType dtype : dtypes) {
          cases.push_back({.backend = variant.backend,
                           .shape = shape,
                           .mask = mask,
                           .dtype = dtype,
                           .variant = variant.name});
        }
      }
    }
  }
  return cases;
}

Cases With(Values values, Cases cases) {
  for (ConformanceCase& c : cases) c.values = values;
  return cases;
}

Cases OfFlashCuda(Cases cases) {
  std::erase_if(cases, [](const ConformanceCase& c) {
    return c.backend->name() != "FLASH_CUDA";
  });
  return cases;
}

// The TF32 oracle does not model sinks, which change O after the kernel.
Cases Tf32(Cases cases) {
  std::erase_if(cases, [](const ConformanceCase& c) { return c.sinks; });
  for (ConformanceCase& c : cases) c.tf32 = true;
  return cases;
}

Cases Deterministic(Cases cases) {
  for (ConformanceCase& c : cases) c.deterministic = true;
  return cases;
}

Cases Join(const std::vector<Cases>& lists) {
  Cases all;
  for (const Cases& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

// Lengths around the kernels' tile sizes x head dims; batch sizes and head
// groupings alternate.
std::vector<Shape> SquareShapes() {
  constexpr int64_t kLengths[] = {1, 2, 63, 64, 65, 127, 128, 129};
  constexpr int64_t kHeadDims[] = {8,  16, 32,  40,  64,  72,
                                   80, 96, 112, 128, 192, 256};
  constexpr int64_t kHeads[][2] = {{1, 1}, {2, 1}, {5, 1}, {3, 3}, {4, 2}};
  std::vector<Shape> shapes;
  for (const int64_t length : kLengths) {
    for (const int64_t d : kHeadDims) {
      const auto turn = static_cast<int64_t>(shapes.size());
      const auto& heads = kHeads[turn % 5];
      shapes.push_back({1 + turn % 4, length, length, heads[0], heads[1], d});
    }
  }
  return shapes;
}

// S < T, also by one, which shifts the diagonal off the tiles, and such that
// the first query of a tile sees all keys of another tile except the last; S >
// T, which has rows without a key; many heads; enough sequences for backends
// that treat many sequences differently; long sequences.
std::vector<Shape> OtherShapes() {
  return {
      {2, 1, 128, 2, 1, 64},   {1, 64, 129, 4, 2, 32},  {1, 65, 777, 5, 1, 80},
      {1, 200, 201, 2, 1, 16}, {2, 129, 64, 2, 2, 32},  {1, 128, 1, 2, 1, 16},
      {2, 100, 65, 4, 2, 128}, {1, 64, 64, 25, 5, 40},  {1, 65, 65, 25, 25, 64},
      {9, 17, 17, 2, 2, 16},   {9, 20, 13, 4, 2, 8},    {9, 17, 17, 3, 1, 16},
      {1, 777, 777, 2, 1, 64}, {1, 1100, 530, 1, 1, 8}, {1, 530, 1100, 2, 2, 8},
      {1, 2, 64, 2, 1, 16},    {1, 1, 64, 2, 2, 8},     {1, 2, 128, 2, 2, 8},
      {1, 3, 129, 2, 1, 16},   {2, 1, 127, 2, 2, 8},    {1, 127, 128, 2, 1, 16},
      {1, 66, 128, 2, 2, 8},   {1, 130, 192, 2, 1, 8},  {1, 130, 2, 2, 2, 8},
      {1, 5, 68, 6, 2, 16},    {2, 40, 33, 6, 2, 8}};
}

std::vector<Shape> ExtremeShapes() {
  return {{2, 65, 65, 2, 1, 64}, {1, 200, 130, 2, 2, 128}};
}

// Several tiles of queries and of keys, so that the order of sums matters.
std::vector<Shape> DeterminismShapes() {
  return {{2, 300, 300, 4, 2, 64},  {1, 129, 400, 2, 2, 128},
          {1, 330, 270, 2, 2, 80},  {1, 300, 300, 2, 1, 96},
          {1, 260, 200, 2, 2, 192}, {1, 200, 330, 1, 1, 256}};
}

// Sequences of packed documents.
Cases PackedPlans() {
  Cases cases;
  for (ConformanceCase c :
       Cross({{4, 2048, 2048, 16, 16, 64}}, {at::kFloat, at::kBFloat16})) {
    c.documents = true;
    cases.push_back(c);
  }
  return cases;
}

// A cap that bends most of the scores.
Cases WithSoftCap(Cases cases) {
  for (ConformanceCase& c : cases) c.soft_cap = 0.7;
  return cases;
}

Cases Capped(const std::vector<at::ScalarType>& dtypes) {
  Cases cases = Cross({{1, 1, 1, 1, 1, 64},
                       {2, 65, 65, 4, 2, 40},
                       {1, 300, 300, 2, 2, 80},
                       {1, 200, 130, 2, 1, 128},
                       {1, 7, 500, 4, 2, 256}},
                      dtypes);
  for (const ConformanceCase& c : Windowed({{1, 270, 270, 2, 1, 64}}, dtypes)) {
    cases.push_back(c);
  }
  for (const ConformanceCase& c : WithSinks(dtypes)) {
    if (c.shape.s == 129) cases.push_back(c);
  }
  return WithSoftCap(cases);
}

}  // namespace

std::string ConformanceCase::ToString() const {
  return absl::StrCat(std::string(backend->name()), variant, "_", ProblemName(),
                      deterministic ? "_deterministic" : "");
}

std::string ConformanceCase::ProblemName() const {
  const char* const names[] = {"", "_huge_logits", "_subnormal_keys"};
  return absl::StrCat("b", shape.b, "_s", shape.s, "_t", shape.t, "_h", shape.h,
                      "_g", shape.g, "_d", shape.d, "_", MaskLabel(mask), "_",
                      c10::toString(dtype), tf32 ? "_tf32" : "",
                      names[static_cast<int>(values)],
                      documents ? "_documents" : "", sinks ? "_sinks" : "",
                      soft_cap != 0 ? "_capped" : "");
}

AttentionProblem ConformanceCase::Problem(const DeviceInfo& device) const {
  AttentionProblem problem;
  problem.b = shape.b;
  problem.s = shape.s;
  problem.t = shape.t;
  problem.h = shape.h;
  problem.g = shape.g;
  problem.d = shape.d;
  problem.dtype = dtype;
  problem.tf32 = tf32;
  problem.mask = mask;
  problem.documents = documents;
  problem.sinks = sinks;
  problem.soft_cap = soft_cap;
  problem.deterministic = deterministic;
  problem.cuda = device.is_cuda();
  problem.compute_capability = device.compute_capability;
  return problem;
}

int64_t ConformanceCase::BlindRows() const {
  return AttentionMask<int64_t>{shape.s, shape.t, mask.before, mask.after}
      .Queries(/*key=*/0)
      .begin;
}

void PrintTo(const ConformanceCase& c, std::ostream* out) {
  *out << c.ToString();
}

std::vector<ConformanceCase> CpuCases() {
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kBFloat16};
  // BF16 and FP16 products are slow on most CPUs.
  std::vector<Shape> third;
  for (size_t i = 0; i < SquareShapes().size(); i += 3) {
    third.push_back(SquareShapes()[i]);
  }
  const std::vector<Shape> long_ones = {{1, 1000, 1000, 2, 1, 40},
                                        {1, 2048, 2048, 1, 1, 64}};
  Cases cases = Join(
      {Cross(SquareShapes(), {at::kFloat}),
       Cross(third, {at::kBFloat16, at::kHalf}), Cross(OtherShapes(), dtypes),
       Cross(OtherShapes(), {at::kDouble}), Cross(long_ones, {at::kFloat}),
       With(Values::kHugeLogits, Cross(ExtremeShapes(), dtypes)),
       With(Values::kSubnormalKeys, Cross(ExtremeShapes(), dtypes)),
       Deterministic(Cross(DeterminismShapes(), dtypes)),
       Windowed(WindowShapes(), dtypes), Packed(dtypes), WithSinks(dtypes),
       Capped(dtypes)});
  // The variants share everything except the softmax with their backend.
  size_t variants = 0;
  const auto is_left_out = [&](const ConformanceCase& c) {
    if (*c.variant != '\0' && variants++ % 3 != 0) return true;
    return !c.backend->Supports(c.Problem(CpuDevice())).ok();
  };
  cases.erase(std::remove_if(cases.begin(), cases.end(), is_left_out),
              cases.end());
  return cases;
}

std::vector<ConformanceCase> GpuCases() {
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kBFloat16,
                                              at::kHalf};
  const std::vector<Shape> training = {{2, 512, 512, 12, 12, 64},
                                       {1, 1024, 1024, 25, 25, 64},
                                       {1, 1024, 1024, 8, 8, 80},
                                       {1, 2048, 2048, 8, 2, 128}};
  std::vector<Shape> long_ones;
  for (const int64_t length : {777, 1000, 2048}) {
    for (const int64_t d : {40, 64, 80, 96, 128, 192, 256}) {
      long_ones.push_back({2, length, length, 4, 2, d});
    }
  }
  // Few queries and many keys; then enough heads for the FP32 kernels' large
  // tiles.
  for (const int64_t d : {64, 80, 96, 128}) {
    long_ones.push_back({1, 130, 1100, 2, 1, d});
  }
  std::vector<Shape> many_heads;
  for (const int64_t d : {32, 64, 96, 128, 192, 256}) {
    many_heads.push_back({9, 70, 70, 32, 32, d});
  }
  // Small enough for every sanitizer (sanitize.py).
  std::vector<Shape> two_tiles;
  for (const int64_t d : {32, 64, 80, 96, 128, 192, 256}) {
    two_tiles.push_back({1, 129, 129, 2, 1, d});
  }
  const Cases small = OfFlashCuda(Cross(two_tiles, dtypes));
  const Cases large_tiles = OfFlashCuda(Cross(many_heads, {at::kFloat}));
  const auto tf32 = [](const std::vector<Shape>& shapes) {
    return Tf32(OfFlashCuda(Cross(shapes, {at::kFloat})));
  };
  return Join({Cross(SquareShapes(), dtypes),
               Cross(OtherShapes(), dtypes),
               Cross(training, dtypes),
               Cross(long_ones, dtypes),
               large_tiles,
               Deterministic(large_tiles),
               With(Values::kHugeLogits, Cross(ExtremeShapes(), dtypes)),
               With(Values::kSubnormalKeys, Cross(ExtremeShapes(), dtypes)),
               tf32(SquareShapes()),
               tf32(OtherShapes()),
               tf32(training),
               tf32(long_ones),
               With(Values::kHugeLogits, tf32(ExtremeShapes())),
               With(Values::kSubnormalKeys, tf32(ExtremeShapes())),
               Deterministic(tf32(two_tiles)),
               Deterministic(tf32(DeterminismShapes())),
               Deterministic(tf32(training)),
               Deterministic(Cross(two_tiles, dtypes)),
               Deterministic(Cross(DeterminismShapes(), dtypes)),
               Deterministic(Cross(training, dtypes)),
               Windowed(WindowShapes(), dtypes),
               Tf32(OfFlashCuda(Windowed(WindowShapes(), {at::kFloat}))),
               Deterministic(OfFlashCuda(Windowed(WindowShapes(), dtypes))),
               Packed(dtypes),
               Tf32(OfFlashCuda(Packed({at::kFloat}))),
               Deterministic(OfFlashCuda(Packed(dtypes))),
               WithSinks(dtypes),
               Deterministic(OfFlashCuda(WithSinks({at::kBFloat16}))),
               Capped(dtypes),
               Tf32(OfFlashCuda(Capped({at::kFloat}))),
               Deterministic(OfFlashCuda(Capped(dtypes))),
               WithSoftCap(small),
               Deterministic(WithSoftCap(small)),
               WithSoftCap(tf32(two_tiles)),
               Deterministic(WithSoftCap(tf32(two_tiles))),
               WithSoftCap(OfFlashCuda(Cross(training, dtypes))),
               WithSoftCap(large_tiles),
               Deterministic(WithSoftCap(large_tiles))});
}

std::vector<ConformanceCase> PlanCases() {
  // NAIVE's cases: one launch per sequence; packed; grouped heads.
  const std::vector<Shape> shapes = {{4, 2048, 2048, 16, 16, 64},
                                     {16, 2048, 2048, 8, 8, 128},
                                     {4, 2048, 2048, 32, 8, 80}};
  const std::vector<Shape> others = {{8, 1024, 1536, 16, 16, 96},
                                     {8, 2048, 2048, 16, 4, 136},
                                     {8, 1024, 1024, 32, 32, 256},
                                     // Lengths that kernels pad; blind rows.
                                     {3, 777, 777, 8, 8, 64},
                                     {2, 1000, 777, 8, 2, 80},
                                     {4, 127, 127, 5, 1, 40}};
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kBFloat16};
  const Cases tf32 = Tf32(OfFlashCuda(Cross(others, {at::kFloat})));
  const Cases capped = WithSoftCap(OfFlashCuda(Cross(others, dtypes)));
  return Join({tf32, Deterministic(tf32), capped, Deterministic(capped),
               WithSoftCap(tf32), Cross(shapes, dtypes), Cross(others, dtypes),
               Cross(others, {at::kHalf}), Deterministic(Cross(shapes, dtypes)),
               Deterministic(Cross(others, dtypes)), PackedPlans()});
}

std::vector<ConformanceCase> CpuPlanCases() {
  // One launch per sequence and packed, each with and without groups; blind
  // rows; several tiles, bands and parts of a mask.
  Cases cases = Cross({{2, 150, 150, 4, 4, 32},
                       {4, 150, 150, 4, 2, 32},
                       {5, 150, 170, 3, 3, 40},
                       {5, 140, 150, 6, 2, 16},
                       {2, 200, 150, 4, 2, 80},
                       {1, 600, 700, 2, 2, 16}},
                      {at::kFloat, at::kBFloat16});
  for (const Cases& more :
       {Packed({at::kBFloat16}), Capped({at::kFloat, at::kBFloat16})}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  // Not NAIVE and not sinks, whose ATen operations need different temporary
  // memory on a CPU than on a GPU.
  std::erase_if(cases, [](const ConformanceCase& c) {
    return c.backend->name() == "NAIVE" || c.sinks ||
           !c.backend->Supports(c.Problem(CpuDevice())).ok();
  });
  return cases;
}

}  // namespace tessera::testing
