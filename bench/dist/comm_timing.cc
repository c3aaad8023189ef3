#include "bench/dist/comm_timing.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "framework/base/monotonic_clock.h"
#include "framework/base/statistics.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

// Calls that are enqueued before the products, so that a collective runs beside
// the first product, too.
constexpr int kLead = 4;
// More calls than these only make the queue longer.
constexpr int kMaxCalls = 4000;
// Events that divide the calls of a sample.
constexpr int kMarks = 64;

// Lets the ranks continue on the current stream at the same time.
absl::Status Align(const CommBench& bench) {
  return StatusFromTorchOr([&] {
    Synchronize(bench.device.device);
    return bench.group->AllReduceSum(
        at::zeros({1}, at::TensorOptions(bench.device.device)));
  });
}

absl::Status CallRepeatedly(CollectiveCall call, int calls) {
  for (int i = 0; i < calls; ++i) RETURN_IF_ERROR(call());
  return absl::OkStatus();
}

class Products {
 public:
  static absl::StatusOr<Products> Create(c10::Device device) {
    Products products;
    RETURN_IF_ERROR(StatusFromTorch([&] {
      const at::TensorOptions options =
          at::TensorOptions(device).dtype(at::kBFloat16);
      products.a_ = at::randn({4096, 2560}, options);
      products.b_ = at::randn({2560, 20480}, options);
      products.c_ = at::empty({4096, 20480}, options);
    }));
    return products;
  }
  absl::Status Run(int times) {
    return StatusFromTorch([&] {
      for (int i = 0; i < times; ++i) at::mm_out(c_, a_, b_);
    });
  }

 private:
  at::Tensor a_, b_, c_;
};

// A sample of TimeBesideProducts().
struct Beside {
  double products_ms = 0;  // of all products
  double call_ms = 0;
};

class BesideRun {
 public:
  BesideRun(const CommBench& bench, CollectiveCall call, Products* products,
            int product_count, int calls)
      : bench_(bench),
        call_(call),
        products_(*products),
        product_count_(product_count),
        calls_(calls),
        stride_((calls + kMarks - 1) / kMarks) {}

  absl::StatusOr<double> ProductsAloneMs() {
    RETURN_IF_ERROR(Align(bench_));
    return TimeMs([&] { return products_.Run(product_count_); },
                  bench_.device.device);
  }

  absl::StatusOr<Beside> Sample() {
    Beside sample;
    RETURN_IF_ERROR(StatusFromTorchOr([&]() -> absl::Status {
      RETURN_IF_ERROR(Enqueue());
      Synchronize(bench_.device.device);
      sample = Read();
      return absl::OkStatus();
    }));
    return sample;
  }

 private:
  c10::Event MakeEvent(c10::Stream stream) const {
    c10::Event event(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);
    event.record(stream);
    return event;
  }

  absl::Status Enqueue() {
    const c10::Stream main = CurrentStream(bench_.device.device);
    {
      const c10::StreamGuard on(bench_.stream);
      RETURN_IF_ERROR(Align(bench_));
    }
    MakeWait(main, bench_.stream);
    marks_.clear();
    marks_.push_back(MakeEvent(bench_.stream));
    RETURN_IF_ERROR(EnqueueCalls(0, std::min(kLead, calls_)));
    start_.emplace(MakeEvent(main));
    RETURN_IF_ERROR(products_.Run(product_count_));
    end_.emplace(MakeEvent(main));
    return EnqueueCalls(std::min(kLead, calls_), calls_);
  }

  absl::Status EnqueueCalls(int from, int to) {
    const c10::StreamGuard on(bench_.stream);
    for (int i = from; i < to; ++i) {
      RETURN_IF_ERROR(call_());
      if ((i + 1) % stride_ == 0) marks_.push_back(MakeEvent(bench_.stream));
    }
    return absl::OkStatus();
  }

  // The time of the calls that ended before the products did; of the first
  // ones if none did.
  Beside Read() const {
    Beside sample = {.products_ms = start_->elapsedTime(*end_)};
    size_t last = 1;
    while (last + 1 < marks_.size() &&
           start_->elapsedTime(marks_[last + 1]) <= sample.products_ms) {
      ++last;
    }
    sample.call_ms = marks_[0].elapsedTime(marks_[last]) /
                     static_cast<double>(last) / stride_;
    return sample;
  }

  const CommBench& bench_;
  const CollectiveCall call_;
  Products& products_;
  const int product_count_, calls_, stride_;
  std::vector<c10::Event> marks_;  // before the first call, after each stride
  std::optional<c10::Event> start_, end_;
};

absl::StatusOr<Summary> SummaryOverRanks(const CommBench& bench,
                                         std::vector<double> values) {
  ASSIGN_OR_RETURN(values, MaxOverRanks(std::move(values), bench.group,
                                        bench.device.device));
  return Summarize(std::move(values));
}

absl::StatusOr<double> LargestMs(const CommBench& bench, double ms) {
  ASSIGN_OR_RETURN(const Summary largest, SummaryOverRanks(bench, {ms}));
  return largest.max;
}

}  // namespace

c10::Stream CollectiveStream(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  return device.is_cuda()
             ? guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true)
             : guard.getStream(device);
}

absl::StatusOr<BackToBack> TimeBackToBack(const CommBench& bench,
                                          CollectiveCall call,
                                          int calls_per_sample) {
  const c10::StreamGuard on(bench.stream);
  std::vector<double> ms, host_us;
  for (int i = -bench.warmup; i < bench.samples; ++i) {
    RETURN_IF_ERROR(Align(bench));
    double host_ms = 0;
    ASSIGN_OR_RETURN(const double sample_ms,
                     TimeMs(
                         [&] {
                           const absl::Time begin = MonotonicNow();
                           const absl::Status status =
                               CallRepeatedly(call, calls_per_sample);
                           host_ms = MsSince(begin);
                           return status;
                         },
                         bench.device.device));
    if (i < 0) continue;
    ms.push_back(sample_ms / calls_per_sample);
    host_us.push_back(1e3 * host_ms / calls_per_sample);
  }
  BackToBack times;
  ASSIGN_OR_RETURN(times.ms, SummaryOverRanks(bench, std::move(ms)));
  ASSIGN_OR_RETURN(times.host_us,
                   LargestMs(bench, *Median(std::move(host_us))));
  return times;
}

absl::StatusOr<BesideProducts> TimeBesideProducts(const CommBench& bench,
                                                  CollectiveCall call,
                                                  double alone_ms,
                                                  int products) {
  ASSIGN_OR_RETURN(Products work, Products::Create(bench.device.device));
  RETURN_IF_ERROR(work.Run(products));  // warm-up
  ASSIGN_OR_RETURN(
      double product_ms,
      BesideRun(bench, call, &work, products, 1).ProductsAloneMs());
  ASSIGN_OR_RETURN(product_ms, LargestMs(bench, product_ms / products));
  // Every rank computes the same counts from the same times.
  const int count = std::max(
      products, static_cast<int>(std::ceil(3 * alone_ms / product_ms)));
  const double calls = std::ceil(1.3 * count * product_ms / alone_ms) + kLead;
  BesideRun run(bench, call, &work, count,
                static_cast<int>(std::min<double>(calls, kMaxCalls)));
  std::vector<double> product_times, beside_times, call_times;
  for (int i = -1; i < bench.samples; ++i) {
    ASSIGN_OR_RETURN(const double products_ms, run.ProductsAloneMs());
    ASSIGN_OR_RETURN(const Beside sample, run.Sample());
    if (i < 0) continue;
    product_times.push_back(products_ms / count);
    beside_times.push_back(sample.products_ms / count);
    call_times.push_back(sample.call_ms);
  }
  BesideProducts figures;
  ASSIGN_OR_RETURN(figures.product_ms, SummaryOverRanks(bench, product_times));
  ASSIGN_OR_RETURN(figures.product_beside_ms,
                   SummaryOverRanks(bench, beside_times));
  ASSIGN_OR_RETURN(figures.ms, SummaryOverRanks(bench, call_times));
  figures.slow_down =
      figures.product_beside_ms.median / figures.product_ms.median;
  figures.lost_ms = (figures.slow_down - 1) * figures.ms.median;
  return figures;
}

}  // namespace tessera
