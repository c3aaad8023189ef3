#ifndef BENCH_MEASURE_DEVICE_WORK_H_
#define BENCH_MEASURE_DEVICE_WORK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "framework/cuda/device.h"
#include "framework/program/program.h"

namespace tessera {

// A piece of work that can be repeated and timed.
struct Work {
  std::string name;
  Cost cost;                          // of one call
  std::function<absl::Status()> run;  // owns the operands
};

// The two ceilings that other work is compared with: a product of two square
// matrices, 8192 wide on a GPU and 512 on a CPU, and a copy of 1 GiB or 16 MiB.
absl::StatusOr<Work> SquareProduct(const DeviceInfo& device,
                                   at::ScalarType dtype);
absl::StatusOr<Work> LargeCopy(const DeviceInfo& device);

// Their speeds, median of 20 calls: TFLOP/s of a BF16 product, and GB/s of the
// copy, read and written bytes together.
absl::StatusOr<double> MeasureGemmTflops(const DeviceInfo& device);
absl::StatusOr<double> MeasureCopyGbPerS(const DeviceInfo& device);

struct OpCallOptions {
  c10::Device device = c10::kCPU;
  at::ScalarType gradient = at::kFloat;  // dtype of parameters' gradients
  int64_t vocab = 1;  // integer operands are random in [0, vocab)
};
// The calls of an op of `program` on random operands: "forward", and "backward"
// for all gradients that the program needs. An op that joins both runs both in
// "backward". Results and gradients overwrite what they may, except operands
// that backward reads. "forward" has to run first; `node` must outlive both.
absl::StatusOr<std::vector<Work>> PassesOf(const OpNode& node,
                                           const Program& program,
                                           const OpCallOptions& options);

}  // namespace tessera

#endif  // BENCH_MEASURE_DEVICE_WORK_H_
