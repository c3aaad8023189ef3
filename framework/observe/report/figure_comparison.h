#ifndef FRAMEWORK_OBSERVE_REPORT_FIGURE_COMPARISON_H_
#define FRAMEWORK_OBSERVE_REPORT_FIGURE_COMPARISON_H_

#include <optional>
#include <string>
#include <vector>

#include "framework/observe/report/run_records.h"

namespace tessera {

// A figure of the step records of two runs, over the last half of each.
struct FigureComparison {
  std::string path;     // "gpu.power_w"
  double a = 0, b = 0;  // medians
  // What the medians may differ by without a cause; absent if a run has fewer
  // than three records, which show no spread.
  std::optional<double> noise;
  bool a_spread_out = false, b_spread_out = false;  // spread.h

  std::optional<double> ratio() const;  // b / a
  bool exceeds_noise() const;
};

// The noise of the difference of two medians: three times its standard error,
//   3 sqrt(e(a)^2 + e(b)^2),  e = 1.2533 sigma / sqrt(n)
// with sigma = 1.4826 times the median absolute deviation of n values. Absent
// for fewer than three values.
std::optional<double> NoiseOfMedians(const std::vector<double>& a,
                                     const std::vector<double>& b);

// Every number that both runs log, in A's order, except "step", "time",
// "traced_steps" and the learning rate. Times of blocks are summed over all
// blocks.
std::vector<FigureComparison> CompareFigures(const RunRecords& a,
                                             const RunRecords& b);

// A kernel of two profiles; absent from a run that does not start it.
struct KernelComparison {
  std::string name;
  std::optional<double> a_ms, b_ms;  // per step
  std::optional<double> a_instances, b_instances;

  double change_ms() const { return b_ms.value_or(0) - a_ms.value_or(0); }
};

// The kernels of either profile, by name; the largest change first.
std::vector<KernelComparison> CompareKernels(const RunRecords& a,
                                             const RunRecords& b);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_REPORT_FIGURE_COMPARISON_H_
