#include "framework/optim/ema.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/optim/adamw_cpu.h"
#include "framework/optim/optimizer_kernels.h"

namespace tessera {
namespace {

// Chunks per task of a CPU thread.
constexpr int64_t kCpuGrain = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<Ema>> Ema::Create(const EmaOptions& options,
                                                 ParameterStore& store,
                                                 const AdamW& adamw) {
  std::unique_ptr<Ema> ema(new Ema(options, store, adamw));
  RETURN_IF_ERROR(StatusFromTorch([&] {
    ema->average_ =
        at::zeros({store.sharding().HeldMoments(store.trainable_extent())},
                  store.grad().options().dtype(at::kFloat));
  }));
  RETURN_IF_ERROR(ema->Restart());
  return ema;
}

absl::Status Ema::Restart() {
  const Sharding& sharding = store_.sharding();
  for (const ParameterSection& section : store_.sections()) {
    const auto part = [&](int shard) {
      return sharding.PartBegin(section.begin, section.end, shard);
    };
    RETURN_IF_ERROR(sharding.divides_optimizer()
                        ? Pass(EmaPass::kRestart, part(sharding.index),
                               part(sharding.index + 1))
                        : Pass(EmaPass::kRestart, section.begin, section.end));
  }
  return absl::OkStatus();
}

absl::Status Ema::Pass(EmaPass pass, int64_t begin, int64_t end) {
  TESSERA_CHECK(begin % kAdamWChunk == 0 && end % kAdamWChunk == 0 &&
                    begin <= end && end <= store_.trainable_extent(),
                "elements [", begin, ", ", end, ")");
  if (begin == end) return absl::OkStatus();
  const AdamWBuffers buffers = adamw_.Buffers(begin);
  const ParameterSection& section = store_.SectionOf(begin);
  const EmaBuffers ema = {
      .average = average_.data_ptr<float>() -
                 store_.divisions().moments.Shift(section.begin, section.end),
      .options = options_,
      .step = adamw_.step().const_data_ptr<int64_t>(),
      .skips = adamw_.skips()};
  if constexpr (kCudaBuild) {
    if (average_.is_cuda()) {
      return cuda::PassEma(buffers, ema, pass, begin, end, average_);
    }
  }
  if (pass == EmaPass::kUpdate && *ema.skips) return absl::OkStatus();
  at::parallel_for(begin / kAdamWChunk, end / kAdamWChunk, kCpuGrain,
                   [&](int64_t from, int64_t to) {
                     TESSERA_CHECK(PassEmaChunks(buffers, ema, pass, from, to),
                                   "dtypes that no precision policy has");
                   });
  return absl::OkStatus();
}

}  // namespace tessera
