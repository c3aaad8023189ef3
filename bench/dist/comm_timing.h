#ifndef BENCH_DIST_COMM_TIMING_H_
#define BENCH_DIST_COMM_TIMING_H_

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "bench/measure/timing.h"
#include "c10/core/Stream.h"
#include "framework/cuda/device.h"
#include "framework/dist/process_group.h"

namespace tessera {

// How collectives are timed. The functions that take it are collective.
struct CommBench {
  DeviceInfo device;
  ProcessGroup* group = nullptr;
  c10::Stream stream;  // CollectiveStream()
  int warmup = 2, samples = 7;
};

// The stream for collectives: of high priority on a GPU, so that they are not
// kept waiting by products; on a CPU there is only one.
c10::Stream CollectiveStream(c10::Device device);

using CollectiveCall = absl::FunctionRef<absl::Status()>;

// Times of calls that run back to back on the bench's stream. Each sample is
// the mean of its calls, the maximum over the ranks.
struct BackToBack {
  Summary ms;
  // The host's time of a call, which enqueues work on a GPU and does all of it
  // on a CPU: the median of the samples, the maximum over the ranks.
  double host_us = 0;
};
absl::StatusOr<BackToBack> TimeBackToBack(const CommBench& bench,
                                          CollectiveCall call,
                                          int calls_per_sample);

// Matrix products on the current stream while collectives run back to back on
// the bench's stream. [4096 x 2560] x [2560 x 20480] in BF16, 430 GFLOP: the
// product of a feed-forward of configs/2.7B.pbtxt at 4,096 tokens.
struct BesideProducts {
  Summary product_ms;         // of one product with no collective
  Summary product_beside_ms;  // and beside the collectives
  Summary ms;                 // of a collective beside the products
  double slow_down = 0;       // product_beside_ms / product_ms, of the medians
  // Time of products that one collective costs: (slow_down - 1) * ms.
  double lost_ms = 0;
};
// `alone_ms` is the time of a call without products, the same on every rank. At
// least `products` products run in a sample, and as many as three calls take.
// Needs a GPU.
absl::StatusOr<BesideProducts> TimeBesideProducts(const CommBench& bench,
                                                  CollectiveCall call,
                                                  double alone_ms,
                                                  int products);

}  // namespace tessera

#endif  // BENCH_DIST_COMM_TIMING_H_
