#include "framework/observe/report/figure_comparison.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "framework/base/statistics.h"
#include "framework/observe/block_path.h"
#include "framework/observe/report/figures.h"
#include "framework/observe/report/spread.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// Adds the paths of all numbers in `object`.
void AddPaths(const Json& object, const std::string& prefix,
              std::vector<std::string>* paths) {
  for (const auto& [name, value] : object.items()) {
    const std::string path = absl::StrCat(prefix, name);
    if (value.is_object()) {
      AddPaths(value, absl::StrCat(path, "."), paths);
    } else if (value.is_number() && path != "step" && path != "time" &&
               path != "lr" && path != "traced_steps" &&
               !absl::c_linear_search(*paths, path)) {
      paths->push_back(path);
    }
  }
}

// The records with the times of all blocks in one sum: "forward/block_3/ffn" is
// part of "forward/blocks/ffn".
std::vector<Json> WithFoldedBlocks(std::vector<Json> records) {
  for (Json& record : records) {
    std::map<std::string, double> sums;
    Json folded = Json::object();
    for (const auto& [path, ms] : ObjectAt(record, "phases_ms").items()) {
      if (!ms.is_number()) continue;
      const std::string name = FoldBlocks(path, "blocks");
      folded[name] = sums[name] += ms.get<double>();
    }
    record["phases_ms"] = std::move(folded);
  }
  return records;
}

// Square of the standard error of the median.
double SquaredError(const std::vector<double>& values) {
  const double median = *Median(values);
  std::vector<double> deviations;
  for (const double value : values) {
    deviations.push_back(std::abs(value - median));
  }
  const double error = 1.2533 * 1.4826 * *Median(std::move(deviations)) /
                       std::sqrt(static_cast<double>(values.size()));
  return error * error;
}

}  // namespace

std::optional<double> FigureComparison::ratio() const {
  if (a == 0) return std::nullopt;
  return b / a;
}

bool FigureComparison::exceeds_noise() const {
  return noise.has_value() && std::abs(b - a) > *noise;
}

std::optional<double> NoiseOfMedians(const std::vector<double>& a,
                                     const std::vector<double>& b) {
  if (a.size() < 3 || b.size() < 3) return std::nullopt;
  return 3 * std::sqrt(SquaredError(a) + SquaredError(b));
}

std::vector<FigureComparison> CompareFigures(const RunRecords& a,
                                             const RunRecords& b) {
  const std::vector<Json> last_a = WithFoldedBlocks(LastHalf(a.steps));
  const std::vector<Json> last_b = WithFoldedBlocks(LastHalf(b.steps));
  std::vector<std::string> paths;
  for (const Json& record : last_a) AddPaths(record, "", &paths);
  std::vector<FigureComparison> figures;
  for (const std::string& path : paths) {
    const std::vector<double> in_a = NumbersAt(last_a, path);
    const std::vector<double> in_b = NumbersAt(last_b, path);
    if (in_b.empty()) continue;
    figures.push_back({path, *Median(in_a), *Median(in_b),
                       NoiseOfMedians(in_a, in_b), IsSpreadOut(in_a),
                       IsSpreadOut(in_b)});
  }
  return figures;
}

std::vector<KernelComparison> CompareKernels(const RunRecords& a,
                                             const RunRecords& b) {
  std::vector<KernelComparison> kernels;
  std::map<std::string, size_t> places;
  const auto find = [&](const Json& kernel) -> KernelComparison& {
    const std::string name = TextAt(kernel, "name");
    const auto [place, is_new] = places.emplace(name, kernels.size());
    if (is_new) kernels.push_back({name});
    return kernels[place->second];
  };
  for (const Json& kernel : ListAt(a.profile, "step.kernels")) {
    KernelComparison& found = find(kernel);
    found.a_ms = NumberAt(kernel, "ms");
    found.a_instances = NumberAt(kernel, "instances");
  }
  for (const Json& kernel : ListAt(b.profile, "step.kernels")) {
    KernelComparison& found = find(kernel);
    found.b_ms = NumberAt(kernel, "ms");
    found.b_instances = NumberAt(kernel, "instances");
  }
  std::stable_sort(kernels.begin(), kernels.end(),
                   [](const KernelComparison& x, const KernelComparison& y) {
                     return std::abs(x.change_ms()) > std::abs(y.change_ms());
                   });
  return kernels;
}

}  // namespace tessera
