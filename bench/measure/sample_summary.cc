#include "bench/measure/sample_summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace tessera {

nlohmann::ordered_json Summary(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const double n = static_cast<double>(samples.size());
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / n;
  double squares = 0;
  for (const double x : samples) squares += (x - mean) * (x - mean);
  return {
      {"mean", mean},
      {"std", n > 1 ? std::sqrt(squares / (n - 1)) : 0},
      {"median",
       (samples[(samples.size() - 1) / 2] + samples[samples.size() / 2]) / 2},
      {"min", samples.front()},
      {"max", samples.back()},
      {"samples", samples.size()}};
}

double MedianOf(std::vector<double> samples) {
  return Summary(std::move(samples))["median"];
}

}  // namespace tessera
