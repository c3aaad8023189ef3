#include "framework/base/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera {

std::optional<double> Median(std::vector<double> samples) {
  if (samples.empty()) return std::nullopt;
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  return (samples[(n - 1) / 2] + samples[n / 2]) / 2;
}

std::optional<double> StandardDeviation(const std::vector<double>& samples) {
  if (samples.size() < 2) return std::nullopt;
  const auto n = static_cast<double>(samples.size());
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / n;
  double squares = 0;
  for (const double x : samples) squares += (x - mean) * (x - mean);
  return std::sqrt(squares / (n - 1));
}

}  // namespace tessera
