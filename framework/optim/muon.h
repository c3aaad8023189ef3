#ifndef FRAMEWORK_OPTIM_MUON_H_
#define FRAMEWORK_OPTIM_MUON_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "framework/optim/adamw.h"
#include "framework/optim/muon_math.h"
#include "framework/optim/muon_slices.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/precision_policy.h"

namespace tessera {

// Muon (muon_math.h) over the matrices of a ParameterStore that are marked for
// it. It has AdamW's step count, learning rate, groups and gradient scale.
// Matrices of one shape are one batch (newton_schulz.h). Momentum has the
// policy's optimizer-state dtype and lies in AdamW's first moments.
// NorMuon's second moments lie after AdamW's.
//
// The host never waits, shapes are fixed, and all updates share a buffer for
// what they need while they run, so a CUDA graph can hold them. The buffer is
// kept: a deferred update runs on a stream of its own, with which LibTorch's
// allocator shares no memory.
class Muon {
 public:
  // `store` and `adamw` must outlive the optimizer. ResourceExhausted if out of
  // memory.
  static absl::StatusOr<std::unique_ptr<Muon>> Create(
      const MuonOptions& options, ParameterStore& store,
      const PrecisionPolicy& policy, const AdamW& adamw);

  Muon(const Muon&) = delete;
  Muon& operator=(const Muon&) = delete;

  // Updates the weights of whole slices (muon_slices.h), which are elements
  // [begin, end) of the gradients, as AdamW's last Prepare() says. If ranks
  // divide the state, of this one's part of a slice.
  absl::Status Update(int64_t begin, int64_t end);

 private:
  Muon(const MuonOptions& options, ParameterStore& store, at::ScalarType dtype,
       const AdamW& adamw)
      : options_(options), store_(store), dtype_(dtype), adamw_(adamw) {}
  absl::Status Update(const MuonBatch& batch, const at::Tensor& matrices);
  // `direction` is U or X, a tensor of `work`.
  MuonBuffers Buffers(const MuonBatch& batch, const at::Tensor& matrices,
                      const MuonWorkspace& work,
                      const at::Tensor& direction) const;
  // NorMuon's row_scales, from the X in `buffers`.
  absl::Status ScaleRows(const MuonBuffers& buffers,
                         const MuonWorkspace& work) const;

  const MuonOptions options_;
  ParameterStore& store_;
  const at::ScalarType dtype_;  // of products
  const AdamW& adamw_;
  std::vector<MuonSlice> slices_;  // or this rank's parts of them
  // By slice and batch: MuonMatrix as bytes, on the store's device.
  std::vector<std::vector<at::Tensor>> matrices_;
  at::Tensor workspace_;  // bytes
};

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_MUON_H_
