#include "trainers/plan/layout_planner.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "framework/base/check.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "framework/base/status_macros.h"
#include "framework/base/terminal.h"
#include "framework/base/text_proto.h"
#include "framework/base/violations.h"
#include "framework/cuda/device_spec.h"
#include "framework/mesh/layout_config.h"
#include "framework/observe/format.h"
#include "trainers/plan/run_plan.h"
#include "trainers/plan/step_rows.h"

namespace tessera {
namespace {

constexpr int kLastZeroStage = 3;  // there are no others

void Validate(const LinkConfig& link, const Violations& violations) {
  for (const auto& [field, gb_per_s] :
       {std::pair{"all_reduce_gb_per_s", link.all_reduce_gb_per_s()},
        {"all_gather_gb_per_s", link.all_gather_gb_per_s()},
        {"reduce_scatter_gb_per_s", link.reduce_scatter_gb_per_s()}}) {
    violations.CheckPositiveInFp32(gb_per_s, field);
  }
  violations.CheckNotNegativeInFp32(link.latency_us(), "latency_us");
  violations.Check(link.compute_rate() > 0 && link.compute_rate() <= 1,
                   "compute_rate",
                   absl::StrCat("must be in (0, 1]; is ", link.compute_rate()));
}

void Validate(const ClusterConfig& c, const Violations& violations) {
  for (const auto& [field, count] :
       {std::pair{"nodes", c.nodes()}, {"gpus_per_node", c.gpus_per_node()}}) {
    violations.Check(count >= 1 && count <= 1 << 12, field,
                     absl::StrCat("must be in [1, 4096]; is ", count));
  }
  violations.Check(!c.gpu().empty(), "gpu",
                   "must be given, such as H100 (see train --plan_for)");
  for (const auto& [field, given, value] :
       {std::tuple{"memory_gib", c.has_memory_gib(), c.memory_gib()},
        {"product_tflops", c.has_product_tflops(), c.product_tflops()},
        {"memory_gb_per_s", c.has_memory_gb_per_s(), c.memory_gb_per_s()}}) {
    if (given) violations.CheckPositiveInFp32(value, field);
  }
  for (const auto& [field, part] :
       {std::pair{"product_efficiency", c.product_efficiency()},
        {"memory_efficiency", c.memory_efficiency()}}) {
    violations.Check(part > 0 && part <= 1, field,
                     absl::StrCat("must be in (0, 1]; is ", part));
  }
  violations.CheckNotNegativeInFp32(c.gap_us(), "gap_us");
  if (c.gpus_per_node() > 1) {
    Validate(c.inside_node(), violations.In("inside_node"));
  }
  if (c.nodes() > 1) {
    Validate(c.between_nodes(), violations.In("between_nodes"));
  }
}

DeviceRates ReachedRates(const RunPlan& plan, const ClusterConfig& cluster) {
  DeviceRates rates = RatesOf(plan);
  if (cluster.has_product_tflops()) {
    rates.product_flops_per_s = cluster.product_tflops() * 1e12;
  }
  if (cluster.has_memory_gb_per_s()) {
    rates.bytes_per_s = cluster.memory_gb_per_s() * 1e9;
  }
  for (const auto& [rate, part] :
       {std::pair{&rates.product_flops_per_s, cluster.product_efficiency()},
        {&rates.vector_flops_per_s, cluster.product_efficiency()},
        {&rates.bytes_per_s, cluster.memory_efficiency()}}) {
    if (rate->has_value()) **rate *= part;
  }
  return rates;
}

// Plans a layout whose fields are set.
void Plan(RunConfig config, const LayoutConfig& layout,
          const LayoutPlans& plans, PlannedLayout* planned) {
  const ClusterConfig& cluster = plans.cluster;
  const int ranks = planned->layout.mesh.ranks();
  *config.mutable_layout() = layout;
  config.mutable_recompute()->set_policy(planned->recompute);
  WorldInfo world;
  world.world_size = ranks;
  world.local_world_size = std::min(ranks, cluster.gpus_per_node());
  const absl::StatusOr<RunPlan> plan =
      PlanWithoutFit(config, world, plans.device);
  planned->status = plan.status();
  if (!plan.ok()) return;
  planned->memory = plan->memory.report;
  planned->status = CheckFits(*plan);
  const LinkConfig& link = ranks > cluster.gpus_per_node()
                               ? cluster.between_nodes()
                               : cluster.inside_node();
  const auto time = PredictStep(plan->step->train, ReachedRates(*plan, cluster),
                                cluster.gap_us() * 1e-6, link);
  // DeviceToPlanFor() knows only GPUs with a data sheet.
  TESSERA_CHECK(time.has_value(), "the GPU's peaks are unknown");
  planned->time = *time;
}

// Orders LayoutPlans::layouts.
std::tuple<int, double, int64_t> Rank(const PlannedLayout& planned) {
  const int64_t bytes = planned.memory.total();
  if (planned.status.ok()) return {0, planned.time.step, bytes};
  return {absl::IsResourceExhausted(planned.status) ? 1 : 2, 0, bytes};
}

std::string Name(const PlannedLayout& planned) {
  return absl::StrCat(FormatCountOf(planned.layout.mesh.ranks(), "rank"),
                      ", ZeRO ", planned.layout.zero, ", ",
                      RecomputeConfig::Policy_Name(planned.recompute));
}

void AddLine(absl::string_view label, absl::string_view value,
             std::string* text) {
  absl::StrAppend(text, LabelledLine(label, value));
}

// "computing +3.10 ms, waiting for ranks -1.20 ms, memory +2.00 GiB".
std::string Differences(const PlannedLayout& other, const PlannedLayout& one) {
  const auto rounded = [](double value) {
    return std::round(value * 100) / 100 + 0.0;  // no "-0.00"
  };
  const int64_t bytes = other.memory.total() - one.memory.total();
  return absl::StrFormat(
      "computing %+.2f ms, waiting for ranks %+.2f ms, memory %s%s",
      rounded((other.time.compute - one.time.compute) * 1e3),
      rounded((other.time.waiting() - one.time.waiting()) * 1e3),
      bytes < 0 ? "-" : "+", FormatBytes(std::abs(bytes)));
}

// Compares the first layout with the best that differ from it in the number of
// ranks, in the ZeRO stage only, and in the recomputation only.
void AddReasons(const std::vector<PlannedLayout>& layouts, std::string* text) {
  const PlannedLayout& first = layouts.front();
  AddLine("first",
          absl::StrFormat("%s: the shortest predicted step, %.4g ms, in %s",
                          Name(first), first.time.step * 1e3,
                          FormatBytes(first.memory.total())),
          text);
  std::set<int> seen;
  for (const PlannedLayout& other : layouts) {
    if (!other.status.ok()) break;
    const bool ranks = other.layout.mesh.ranks() != first.layout.mesh.ranks();
    const bool zero = other.layout.zero != first.layout.zero;
    const bool policy = other.recompute != first.recompute;
    const int kind = ranks ? 1 : zero && !policy ? 2 : policy && !zero ? 3 : 0;
    if (kind == 0 || !seen.insert(kind).second) continue;
    AddLine("",
            absl::StrFormat("%s takes %.1f %% longer: %s", Name(other),
                            (other.time.step / first.time.step - 1) * 100,
                            Differences(other, first)),
            text);
  }
}

std::string LargestPart(const MemoryReport& m) {
  const auto [bytes, name] =
      std::max({std::pair{m.parameters + m.shadow, "the weights"},
                {m.gradients, "the gradients"},
                {m.optimizer, "the moments"},
                {m.activations, "the activations"},
                {m.activation_gradients, "the activations' gradients"}});
  return absl::StrCat("the largest part is ", name, " (", FormatBytes(bytes),
                      ")");
}

// Why the other layouts are not in the table: a line for each number of ranks
// and ZeRO stage that does not fit, and each number of ranks that cannot run.
void AddRefusals(const LayoutPlans& plans, std::string* text) {
  std::map<std::pair<int, int>, std::vector<std::string>> policies;
  const auto key = [](const PlannedLayout& planned) {
    const bool fits_not = absl::IsResourceExhausted(planned.status);
    return std::pair(planned.layout.mesh.ranks(),
                     fits_not ? planned.layout.zero : -1);
  };
  for (const PlannedLayout& planned : plans.layouts) {
    if (planned.status.ok()) continue;
    policies[key(planned)].push_back(
        RecomputeConfig::Policy_Name(planned.recompute));
  }
  for (const PlannedLayout& planned : plans.layouts) {
    if (planned.status.ok()) continue;
    const auto refused = policies.extract(key(planned));
    if (refused.empty()) continue;  // has its line
    const std::string ranks =
        FormatCountOf(planned.layout.mesh.ranks(), "rank");
    if (!absl::IsResourceExhausted(planned.status)) {
      AddLine("cannot run", absl::StrCat(ranks, ": ", planned.status.message()),
              text);
      continue;
    }
    AddLine("too large",
            absl::StrCat(ranks, ", ZeRO ", planned.layout.zero, " with ",
                         absl::StrJoin(refused.mapped(), ", "), ": needs ",
                         refused.mapped().size() > 1 ? "at least " : "",
                         FormatBytes(planned.memory.total()), " of ",
                         FormatBytes(plans.device.total_bytes), ", ",
                         LargestPart(planned.memory)),
            text);
  }
}

// "70 % (50 % between nodes)", of the links that the cluster has.
std::string ComputeRates(const ClusterConfig& cluster) {
  const auto percent = [](const LinkConfig& link) {
    return absl::StrFormat("%.3g %%", link.compute_rate() * 100);
  };
  if (cluster.nodes() == 1) return percent(cluster.inside_node());
  if (cluster.gpus_per_node() == 1) return percent(cluster.between_nodes());
  return absl::StrCat(percent(cluster.inside_node()), " (",
                      percent(cluster.between_nodes()), " between nodes)");
}

}  // namespace

absl::StatusOr<ClusterConfig> ReadCluster(const std::string& path) {
  std::string file = UserPath(path);
  if (!FileExists(file)) {
    const absl::StatusOr<std::string> installed = FindRuntimeFile(path);
    if (installed.ok()) file = *installed;
  }
  ClusterConfig cluster;
  ASSIGN_OR_RETURN(const TextProtoLocations places,
                   ReadTextProto(file, &cluster));
  std::vector<Violation> broken;
  Validate(cluster, Violations(&broken));
  if (broken.empty()) return cluster;
  const auto line = [&](std::string* text, const Violation& rule) {
    absl::StrAppend(text, places.Describe(rule.path), ": ", rule.path, ": ",
                    rule.message);
  };
  return absl::InvalidArgumentError(absl::StrJoin(broken, "\n", line));
}

absl::StatusOr<LayoutPlans> PlanLayouts(const RunConfig& run,
                                        const ClusterConfig& cluster) {
  if (run.has_layout()) {
    return absl::InvalidArgumentError(
        "layout: --plan_layouts tries layouts without replicas of its own; "
        "remove the config's `layout`");
  }
  LayoutPlans plans = {.cluster = cluster};
  ASSIGN_OR_RETURN(plans.device, DeviceToPlanFor(cluster.gpu()));
  if (cluster.has_memory_gib()) {
    plans.device.total_bytes = plans.device.free_bytes =
        static_cast<int64_t>(cluster.memory_gib() * kGibibyte);
  }
  RunConfig config = run;
  config.mutable_training()->set_device(TrainingConfig::CUDA);
  plans.tokens_per_step =
      int64_t{config.training().batch_size()} * config.model().context_length();
  const int gpus = cluster.nodes() * cluster.gpus_per_node();
  std::set<int> counts = {gpus};
  for (int ranks = 1; ranks < gpus; ranks *= 2) counts.insert(ranks);
  for (const int ranks : counts) {
    for (int zero = 0; zero <= kLastZeroStage; ++zero) {
      if (zero > 0 && ranks == 1) continue;
      LayoutConfig layout;
      layout.set_zero(zero);
      for (int policy = RecomputeConfig::NONE;
           RecomputeConfig::Policy_IsValid(policy); ++policy) {
        PlannedLayout planned = {
            .layout = *MakeLayout(LayoutOptionsOf(layout), ranks, 0),
            .recompute = static_cast<RecomputeConfig::Policy>(policy)};
        Plan(config, layout, plans, &planned);
        plans.layouts.push_back(std::move(planned));
      }
    }
  }
  std::stable_sort(
      plans.layouts.begin(), plans.layouts.end(),
      [](const auto& a, const auto& b) { return Rank(a) < Rank(b); });
  return plans;
}

absl::Status CheckAnyFits(const LayoutPlans& plans) {
  const absl::Status& first = plans.layouts.front().status;
  if (!absl::IsResourceExhausted(first)) return first;
  return absl::ResourceExhaustedError(absl::StrCat(
      "no layout of this cluster fits: the smallest needs ",
      FormatBytes(plans.layouts.front().memory.total()), " of the ",
      FormatBytes(plans.device.total_bytes), " of ", plans.device.name,
      "; lower training.batch_size, raise training.micro_batches, or plan for "
      "more GPUs"));
}

std::string FormatLayouts(const LayoutPlans& plans) {
  const ClusterConfig& cluster = plans.cluster;
  std::string text;
  AddLine("cluster",
          absl::StrCat(FormatCountOf(cluster.nodes(), "node"), " with ",
                       cluster.gpus_per_node(), " x ", plans.device.name, ", ",
                       FormatBytes(plans.device.total_bytes), " each"),
          &text);
  AddLine("assumes",
          absl::StrFormat("products reach %.3g %% and memory %.3g %% of the "
                          "peaks, %.3g us between runs; beside a collective "
                          "runs compute at %s",
                          cluster.product_efficiency() * 100,
                          cluster.memory_efficiency() * 100, cluster.gap_us(),
                          ComputeRates(cluster)),
          &text);
  if (plans.layouts.front().status.ok()) {
    absl::StrAppendFormat(&text, "%8s %6s %10s %9s %9s %8s %11s %12s\n",
                          "ranks", "ZeRO", "recompute", "step, ms", "computes",
                          "waits", "tokens/s", "memory");
    for (const PlannedLayout& p : plans.layouts) {
      if (!p.status.ok()) break;
      const double tokens = static_cast<double>(plans.tokens_per_step);
      absl::StrAppendFormat(&text, "%8d %6d %10s %9.2f %9.2f %8.2f %11s %12s\n",
                            p.layout.mesh.ranks(), p.layout.zero,
                            RecomputeConfig::Policy_Name(p.recompute),
                            p.time.step * 1e3, p.time.compute * 1e3,
                            p.time.waiting() * 1e3,
                            FormatCount(std::llround(tokens / p.time.step)),
                            FormatBytes(p.memory.total()));
    }
    AddReasons(plans.layouts, &text);
  }
  AddRefusals(plans, &text);
  return text;
}

}  // namespace tessera
