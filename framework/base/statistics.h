#ifndef FRAMEWORK_BASE_STATISTICS_H_
#define FRAMEWORK_BASE_STATISTICS_H_

#include <optional>
#include <vector>

namespace tessera {

// The mean of the middle two of an even number of samples; absent for none.
std::optional<double> Median(std::vector<double> samples);

// The sample standard deviation, which divides by n - 1; absent for fewer than
// two samples.
std::optional<double> StandardDeviation(const std::vector<double>& samples);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_STATISTICS_H_
