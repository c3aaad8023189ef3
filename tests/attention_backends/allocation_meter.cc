#include "tests/attention_backends/allocation_meter.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "ATen/DeviceAccelerator.h"
#include "c10/core/CPUAllocator.h"
#include "framework/cuda/device.h"

namespace tessera::testing {
namespace {

// LibTorch's allocator of host memory, extended by a count.
class CountingAllocator final : public c10::Allocator {
 public:
  // Memory outlives meters, so the allocator outlives both.
  static CountingAllocator& Get() {
    static auto* const allocator = new CountingAllocator;
    return *allocator;
  }

  void Install() {
    inner_ = c10::GetCPUAllocator();
    c10::SetCPUAllocator(this);
  }
  void Remove() { c10::SetCPUAllocator(inner_); }

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr block = inner_->allocate(bytes);
    Count(static_cast<int64_t>(bytes));
    void* const data = block.get();
    const c10::Device device = block.device();
    return {data, new Block{std::move(block), static_cast<int64_t>(bytes)},
            &Free, device};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  int64_t current() const { return current_; }
  int64_t peak() const { return peak_; }
  void ResetPeak() { peak_ = current_.load(); }

 private:
  struct Block {
    c10::DataPtr data;
    int64_t bytes;
  };

  CountingAllocator() = default;

  static void Free(void* context) {
    auto* const block = static_cast<Block*>(context);
    Get().Count(-block->bytes);
    delete block;
  }

  void Count(int64_t bytes) {
    const int64_t now = current_ += bytes;
    int64_t peak = peak_;
    while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
    }
  }

  c10::Allocator* inner_ = nullptr;
  std::atomic<int64_t> current_ = 0, peak_ = 0;
};

}  // namespace

AllocationMeter::AllocationMeter(at::Device device) : device_(device) {
  if (device.is_cpu()) CountingAllocator::Get().Install();
}

AllocationMeter::~AllocationMeter() {
  if (device_.is_cpu()) CountingAllocator::Get().Remove();
}

int64_t AllocationMeter::current() const {
  if (device_.is_cpu()) return CountingAllocator::Get().current();
  return at::accelerator::getDeviceStats(device_.index())
      .requested_bytes[0]
      .current;
}

int64_t AllocationMeter::peak() const {
  if (device_.is_cpu()) return CountingAllocator::Get().peak();
  return at::accelerator::getDeviceStats(device_.index())
      .requested_bytes[0]
      .peak;
}

void AllocationMeter::ResetPeak() {
  if (device_.is_cpu()) return CountingAllocator::Get().ResetPeak();
  ResetPeakMemory(device_);
}

}  // namespace tessera::testing
