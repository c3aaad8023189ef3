#include "framework/dist/gpu_progress.h"

#include <ATen/ATen.h>

#include <vector>

#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_graph.h"
#include "framework/cuda/page_locked.h"
#include "framework/cuda/stream_write.h"

namespace tessera {
namespace {

class GpuWriter final : public Progress::Writer {
 public:
  explicit GpuWriter(c10::Device gpu)
      : gpu_(gpu),
        words_(
            new at::Tensor(PageLocked({Progress::kWords}, at::kLong).zero_())) {
  }

  int64_t* words() override { return words_->mutable_data_ptr<int64_t>(); }
  void Write(Progress::Word first, absl::Span<const int64_t> values) override {
    std::vector<cuda::StreamWrite> writes;
    int64_t* word = words() + first;
    for (const int64_t value : values) writes.push_back({word++, value});
    ThrowIfError(cuda::WriteOnStream(gpu_, writes));
  }
  bool records() const override { return IsCapturing(gpu_); }

 private:
  const c10::Device gpu_;
  // (kWords) of INT64, page-locked. Never freed: a GPU whose communications
  // were aborted may still write.
  const at::Tensor* const words_;
};

}  // namespace

std::unique_ptr<Progress::Writer> MakeGpuWriter(c10::Device gpu) {
  return std::make_unique<GpuWriter>(gpu);
}

}  // namespace tessera
