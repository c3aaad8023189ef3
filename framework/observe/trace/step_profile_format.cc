#include "framework/observe/trace/step_profile_format.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/observe/block_path.h"
#include "framework/observe/format.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kColumns = 100;
constexpr size_t kCountedKernels = 10;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json();
}

double PerStep(int64_t count, const StepProfile& profile) {
  return static_cast<double>(count) /
         static_cast<double>(std::max<int64_t>(profile.steps, 1));
}

std::string Rate(const std::optional<double>& rate, int decimals) {
  return rate.has_value() ? absl::StrFormat("%.*f", decimals, *rate) : "n/a";
}

Json TotalsToJson(const std::vector<TimeTotal>& totals,
                  const StepProfile& profile) {
  Json json = Json::array();
  for (const TimeTotal& total : totals) {
    json.push_back({{"name", total.name},
                    {"ms", profile.MsPerStep(total.ns)},
                    {"share", profile.Share(total.ns)},
                    {"activities", PerStep(total.activities, profile)}});
  }
  return json;
}

void AddSpeed(const Speed& speed, Json* row) {
  (*row)["tflop_per_s"] = OrNull(speed.tflop_per_s);
  (*row)["gb_per_s"] = OrNull(speed.gb_per_s);
  (*row)["roofline_share"] = OrNull(speed.roofline_share);
}

// The peaks in the units of the speeds.
Json RatesToJson(const DeviceRates& rates) {
  const auto scaled = [](const std::optional<double>& rate, double scale) {
    return rate.has_value() ? Json(*rate * scale) : Json();
  };
  return {{"product_tflop_per_s", scaled(rates.product_flops_per_s, 1e-12)},
          {"vector_tflop_per_s", scaled(rates.vector_flops_per_s, 1e-12)},
          {"gb_per_s", scaled(rates.bytes_per_s, 1e-9)}};
}

void AddCounters(const KernelTime& kernel, const StepProfile& profile,
                 Json* row) {
  const auto percent = [](const std::optional<double>& share) {
    return share.has_value() ? Json(100 * *share) : Json();
  };
  const KernelCounters& counters = *kernel.counters;
  (*row)["tensor_pipe_pct"] = percent(counters.tensor_share());
  (*row)["dram_bytes"] = OrNull(counters.dram_bytes_per_launch());
  (*row)["l2_hit_pct"] = percent(counters.l2_hit_share());
  (*row)["flop_per_dram_byte"] = OrNull(FlopPerDramByte(kernel, profile));
}

Json KernelsToJson(const StepProfile& profile) {
  Json json = Json::array();
  for (const KernelTime& kernel : profile.kernels) {
    Json row = {{"name", kernel.name},
                {"symbol", kernel.symbol},
                {"class", std::string(KernelClassName(kernel.kernel_class))},
                {"op", kernel.op},
                {"instances", PerStep(kernel.instances, profile)},
                {"ms", profile.MsPerStep(kernel.ns)},
                {"share", profile.Share(kernel.ns)},
                {"mean_us", static_cast<double>(kernel.ns) * 1e-3 /
                                static_cast<double>(kernel.instances)}};
    if (kernel.cost.has_value()) {
      row["flops"] = kernel.cost->flops;
      row["bytes"] = kernel.cost->bytes > 0 ? Json(kernel.cost->bytes) : Json();
      AddSpeed(SpeedOf(kernel, profile), &row);
    }
    if (kernel.counters.has_value() && json.size() < kCountedKernels) {
      AddCounters(kernel, profile, &row);
    }
    json.push_back(std::move(row));
  }
  return json;
}

Json OpsToJson(const StepProfile& profile) {
  Json json = Json::array();
  for (const OpTime& op : profile.ops) {
    Json row = {{"phase", op.phase},
                {"part", op.group},
                {"op", op.name},
                {"kind", op.kind},
                {"ms", profile.MsPerStep(op.ns)},
                {"share", profile.Share(op.ns)},
                {"activities", PerStep(op.activities, profile)}};
    if (op.cost.has_value()) {
      row["flops"] = op.cost->flops;
      row["bytes"] = op.cost->bytes;
      row["roofline_ms"] = op.roofline_seconds.has_value()
                               ? Json(*op.roofline_seconds * 1e3)
                               : Json();
      AddSpeed(SpeedOf(op, profile.steps), &row);
    }
    json.push_back(std::move(row));
  }
  return json;
}

// Keeps the beginning, which says most.
std::string Cut(const std::string& text, size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 3) + "...";
}

std::string Percent(const std::optional<double>& share) {
  return share.has_value() ? absl::StrFormat("%.1f%%", 100 * *share) : "n/a";
}

void AddTotals(const char* title, const std::vector<TimeTotal>& totals,
               const StepProfile& profile, std::string* text) {
  absl::StrAppendFormat(text, "\n%-16s%12s%10s%14s\n", title, "ms", "share",
                        "activities");
  for (const TimeTotal& total : totals) {
    absl::StrAppendFormat(text, "%-16s%12.3f%10s%14.6g\n", total.name,
                          profile.MsPerStep(total.ns),
                          Percent(profile.Share(total.ns)),
                          PerStep(total.activities, profile));
  }
}

void AddBlocks(const StepProfile& profile, std::string* text) {
  std::vector<TimeTotal> summary = {{.name = "all blocks"}};
  int64_t shortest = 0, longest = 0, blocks = 0;
  for (const TimeTotal& total : profile.blocks) {
    if (total.name == "outside") {
      summary.push_back(total);
      continue;
    }
    summary[0].ns += total.ns;
    summary[0].activities += total.activities;
    shortest = blocks == 0 ? total.ns : std::min(shortest, total.ns);
    longest = std::max(longest, total.ns);
    ++blocks;
  }
  AddTotals("block", summary, profile, text);
  if (blocks == 0) return;
  absl::StrAppendFormat(text, "%d blocks of %.3f to %.3f ms\n", blocks,
                        profile.MsPerStep(shortest),
                        profile.MsPerStep(longest));
}

void AddAttention(const StepProfile& profile, std::string* text) {
  if (profile.attention.empty()) return;
  absl::StrAppendFormat(text, "\n%-16s%12s%12s%12s%12s%18s\n", "attention",
                        "scores ms", "softmax ms", "values ms", "other ms",
                        "softmax/products");
  for (const AttentionTime& attention : profile.attention) {
    const std::optional<double> ratio = SoftmaxToProducts(attention);
    absl::StrAppendFormat(
        text, "%-16s%12.3f%12.3f%12.3f%12.3f%18s\n", attention.phase,
        profile.MsPerStep(attention.scores_ns),
        profile.MsPerStep(attention.softmax_ns),
        profile.MsPerStep(attention.values_ns),
        profile.MsPerStep(attention.other_ns), Percent(ratio));
  }
}

void AddKernels(const StepProfile& profile, size_t max_kernels,
                std::string* text) {
  constexpr size_t kNameWidth = kColumns - 57;
  absl::StrAppendFormat(text, "\n%9s%7s%6s%10s%9s%7s%7s  %s\n", "ms", "share",
                        "runs", "mean us", "TFLOP/s", "GB/s", "peak", "kernel");
  const size_t shown = std::min(max_kernels, profile.kernels.size());
  for (size_t i = 0; i < shown; ++i) {
    const KernelTime& kernel = profile.kernels[i];
    const Speed speed = SpeedOf(kernel, profile);
    absl::StrAppendFormat(
        text, "%9.3f%7s%6.4g %9.2f%9s%7s%7s  %s\n",
        profile.MsPerStep(kernel.ns), Percent(profile.Share(kernel.ns)),
        PerStep(kernel.instances, profile),
        static_cast<double>(kernel.ns) * 1e-3 /
            static_cast<double>(kernel.instances),
        Rate(speed.tflop_per_s, 1), Rate(speed.gb_per_s, 0),
        Percent(speed.roofline_share), Cut(kernel.name, kNameWidth));
  }
  if (shown == profile.kernels.size()) return;
  int64_t rest_ns = 0;
  for (size_t i = shown; i < profile.kernels.size(); ++i) {
    rest_ns += profile.kernels[i].ns;
  }
  absl::StrAppendFormat(
      text, "%9.3f%7s  by %d more\n", profile.MsPerStep(rest_ns),
      Percent(profile.Share(rest_ns)), profile.kernels.size() - shown);
}

void AddCounterTable(const StepProfile& profile, std::string* text) {
  if (!profile.not_counted.empty()) {
    absl::StrAppend(text, "\ncounters: none: ", profile.not_counted, "\n");
  }
  if (profile.counted_step == 0) return;
  constexpr size_t kNameWidth = kColumns - 52;
  absl::StrAppendFormat(text,
                        "\ncounters of step %d, ten longest kernels: means "
                        "over their runs\n%11s%10s%10s%9s%10s  %s\n",
                        profile.counted_step, "tensor pipe", "DRAM MB",
                        "DRAM GB/s", "L2 hits", "FLOP/byte", "kernel");
  const size_t shown = std::min(kCountedKernels, profile.kernels.size());
  for (size_t i = 0; i < shown; ++i) {
    const KernelTime& kernel = profile.kernels[i];
    const KernelCounters counters = kernel.counters.value_or(KernelCounters());
    std::optional<double> mb, gb_per_s;
    if (const auto bytes = counters.dram_bytes_per_launch()) {
      mb = *bytes * 1e-6;
      gb_per_s = *bytes * static_cast<double>(kernel.instances) /
                 static_cast<double>(std::max<int64_t>(kernel.ns, 1));
    }
    absl::StrAppendFormat(text, "%11s%10s%10s%9s%10s  %s\n",
                          Percent(counters.tensor_share()), Rate(mb, 3),
                          Rate(gb_per_s, 0), Percent(counters.l2_hit_share()),
                          Rate(FlopPerDramByte(kernel, profile), 1),
                          Cut(kernel.name, kNameWidth));
  }
}

// A sum is known only if all of its terms are.
template <typename T>
void AddKnown(const std::optional<T>& term, std::optional<T>* sum) {
  if (sum->has_value() && term.has_value()) {
    **sum += *term;
  } else {
    sum->reset();
  }
}

std::vector<OpTime> FoldOps(const std::vector<OpTime>& ops) {
  std::vector<OpTime> folded;
  std::map<std::string, size_t> index;
  for (const OpTime& op : ops) {
    const std::string group = FoldBlocks(op.group);
    const auto [found, is_new] = index.emplace(
        absl::StrCat(op.phase, "|", group, "|", op.name), folded.size());
    if (is_new) {
      folded.push_back(op);
      folded.back().group = group;
      continue;
    }
    OpTime& sum = folded[found->second];
    sum.ns += op.ns;
    sum.activities += op.activities;
    AddKnown(op.cost, &sum.cost);
    AddKnown(op.roofline_seconds, &sum.roofline_seconds);
  }
  return folded;
}

void AddOps(const StepProfile& profile, std::string* text) {
  absl::StrAppendFormat(text, "\n%-11s%-22s%-18s%10s%8s%10s%9s%10s\n", "phase",
                        "part", "op", "ms", "share", "TFLOP/s", "GB/s",
                        "roofline");
  for (const OpTime& op : FoldOps(profile.ops)) {
    const Speed speed = SpeedOf(op, profile.steps);
    const std::string line = absl::StrFormat(
        "%-11s%-22s%-18s%10.3f%8s%10s%9s%10s", Cut(op.phase, 10),
        Cut(op.group, 21), Cut(op.name, 17), profile.MsPerStep(op.ns),
        Percent(profile.Share(op.ns)), Rate(speed.tflop_per_s, 1),
        Rate(speed.gb_per_s, 0), Percent(speed.roofline_share));
    absl::StrAppend(text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
}

}  // namespace

Json StepProfileToJson(const StepProfile& profile) {
  Json attention = Json::array();
  for (const AttentionTime& a : profile.attention) {
    attention.push_back(
        {{"phase", a.phase},
         {"scores_ms", profile.MsPerStep(a.scores_ns)},
         {"softmax_ms", profile.MsPerStep(a.softmax_ns)},
         {"values_ms", profile.MsPerStep(a.values_ns)},
         {"other_ms", profile.MsPerStep(a.other_ns)},
         {"softmax_to_products", OrNull(SoftmaxToProducts(a))}});
  }
  Json counters;
  if (profile.counted_step > 0) counters = {{"step", profile.counted_step}};
  if (!profile.not_counted.empty()) {
    counters = {{"not_counted", profile.not_counted}};
  }
  return {{"steps", profile.steps},
          {"wall_ms", profile.MsPerStep(profile.wall_ns)},
          {"busy_ms", profile.MsPerStep(profile.busy_ns)},
          {"total_ms", profile.MsPerStep(profile.total_ns)},
          {"activities", PerStep(profile.activities, profile)},
          {"dropped", profile.dropped},
          {"rates", RatesToJson(profile.rates)},
          {"counters", std::move(counters)},
          {"gemm_share", profile.Share(profile.ClassNs(KernelClass::kGemm))},
          {"classes", TotalsToJson(profile.classes, profile)},
          {"phases", TotalsToJson(profile.phases, profile)},
          {"blocks", TotalsToJson(profile.blocks, profile)},
          {"attention", std::move(attention)},
          {"kernels", KernelsToJson(profile)},
          {"ops", OpsToJson(profile)}};
}

std::string FormatStepProfile(const StepProfile& profile, size_t max_kernels) {
  std::string text = absl::StrFormat(
      "%s of %.3f ms; per step the device was busy for %.3f ms with %.6g "
      "activities\n",
      FormatCountOf(profile.steps, "step"), profile.MsPerStep(profile.wall_ns),
      profile.MsPerStep(profile.busy_ns), PerStep(profile.activities, profile));
  if (profile.dropped > 0) {
    absl::StrAppendFormat(&text,
                          "incomplete: %d records did not fit into the trace\n",
                          profile.dropped);
  }
  AddTotals("class", profile.classes, profile, &text);
  AddTotals("phase", profile.phases, profile, &text);
  AddBlocks(profile, &text);
  AddAttention(profile, &text);
  AddKernels(profile, max_kernels, &text);
  AddCounterTable(profile, &text);
  AddOps(profile, &text);
  return text;
}

}  // namespace tessera
