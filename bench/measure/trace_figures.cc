#include "bench/measure/trace_figures.h"

#include <string>
#include <utility>

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLeastSharePct = 0.5;

// Softmax computes five things for each score: a maximum, a difference, an
// exponential, a sum and a quotient. The products take 2 D FLOPs each.
constexpr double kSoftmaxFlops = 5;

// What the ops of one kind take and compute in one phase of a step.
struct Work {
  int ops = 0;
  double ms = 0, flops = 0;

  double tflops() const { return flops / ms * 1e-9; }
};

Work WorkOf(const Json& ops, const char* kind, const Json& phase) {
  Work work;
  for (const Json& op : ops) {
    if (op["phase"] != phase || op["kind"] != kind) continue;
    ++work.ops;
    work.ms += op["ms"].get<double>();
    work.flops += op.value("flops", 0.0);
  }
  return work;
}

Json AttentionFigures(const Json& split, const Json& ops, int64_t head_dim) {
  const Work attention = WorkOf(ops, "attention", split["phase"]);
  const Work linear = WorkOf(ops, "linear", split["phase"]);
  Json figures = {{"ms", attention.ms / attention.ops}};
  if (!split["softmax_to_products"].is_null()) {
    for (const char* part : {"scores_ms", "softmax_ms", "values_ms"}) {
      figures[part] = split[part].get<double>() / attention.ops;
    }
    figures["softmax_time_pct"] =
        100 * split["softmax_to_products"].get<double>();
  }
  figures["softmax_flops_pct"] =
      100 * kSoftmaxFlops / (4 * static_cast<double>(head_dim));
  figures["tflops"] = attention.tflops();
  if (linear.ms > 0) {
    figures["linear_tflops"] = linear.tflops();
    figures["beside_products_pct"] =
        100 * (1 - attention.tflops() / linear.tflops());
  }
  return figures;
}

void AddPercent(Json& kernels) {
  for (Json& kernel : kernels) {
    kernel["share_pct"] = 100 * kernel["share"].get<double>();
  }
}

}  // namespace

Json LongestKernels(Json profile, size_t most) {
  Json kernels = std::move(profile["step"]["kernels"]);
  if (kernels.size() > most) {
    const auto end = kernels.begin() + static_cast<std::ptrdiff_t>(most);
    kernels.erase(end, kernels.end());
  }
  AddPercent(kernels);
  return kernels;
}

Json TraceFigures(Json profile, int64_t head_dim) {
  Json figures = std::move(profile["step"]);
  for (const char* list : {"classes", "phases"}) {
    Json by_name = Json::object();
    for (const Json& total : figures[list]) {
      by_name[total["name"].get<std::string>()] = {
          {"ms", total["ms"]}, {"pct", 100 * total["share"].get<double>()}};
    }
    figures[list] = std::move(by_name);
  }
  Json non_gemm = Json::array();
  AddPercent(figures["kernels"]);
  for (const Json& kernel : figures["kernels"]) {
    if (kernel["class"] != "GEMM" && kernel["share_pct"] > kLeastSharePct) {
      non_gemm.push_back(kernel);
    }
  }
  figures["non_gemm"] = std::move(non_gemm);
  Json attention = Json::object();
  for (const Json& split : figures["attention"]) {
    attention[split["phase"].get<std::string>()] =
        AttentionFigures(split, figures["ops"], head_dim);
  }
  figures["attention"] = std::move(attention);
  figures.erase("ops");
  figures.erase("blocks");
  Json& gaps = figures["gaps"] = Json::object();
  for (const char* gap : {"host_wait_ms", "kernel_wait_ms", "other_ms"}) {
    gaps[gap] = profile["idle"]["device"][gap].get<double>() /
                figures["steps"].get<double>();
  }
  figures["idle"] = std::move(profile["idle"]);
  return figures;
}

}  // namespace tessera
