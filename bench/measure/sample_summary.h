#ifndef BENCH_MEASURE_SAMPLE_SUMMARY_H_
#define BENCH_MEASURE_SAMPLE_SUMMARY_H_

#include <vector>

#include "nlohmann/json.hpp"

namespace tessera {

// {mean, std, median, min, max, samples} of at least one sample; the standard
// deviation is that of the sample.
nlohmann::ordered_json Summary(std::vector<double> samples);

double MedianOf(std::vector<double> samples);

}  // namespace tessera

#endif  // BENCH_MEASURE_SAMPLE_SUMMARY_H_
