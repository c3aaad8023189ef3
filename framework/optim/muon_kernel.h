#ifndef FRAMEWORK_OPTIM_MUON_KERNEL_H_
#define FRAMEWORK_OPTIM_MUON_KERNEL_H_

#include <cuda_runtime_api.h>

#include "framework/optim/muon_math.h"

namespace tessera {

// The elementwise parts of a Muon step. They read no host value that changes
// from step to step, so a CUDA graph can replay them. Nothing is written if
// *buffers.skips is set.

// Updates the momentum and writes U to `direction`.
cudaError_t LaunchMuonMomentum(const MuonBuffers& buffers,
                               const MuonOptions& options, cudaStream_t stream);
// NorMuon: updates row_moments from the X in `direction`, and writes row_scales
// and row_squares.
cudaError_t LaunchMuonRows(const MuonBuffers& buffers,
                           const MuonOptions& options, cudaStream_t stream);
// Updates the weights along the X in `direction`.
cudaError_t LaunchMuonWeights(const MuonBuffers& buffers,
                              const MuonOptions& options, cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_MUON_KERNEL_H_
