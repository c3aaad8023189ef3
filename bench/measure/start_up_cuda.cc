#include <ATen/cuda/CUDAContext.h>

#include "bench/measure/start_up.h"

namespace tessera {

void MakeBlasHandles() {
  at::cuda::getCurrentCUDABlasHandle();
  at::cuda::getCurrentCUDABlasLtHandle();
}

}  // namespace tessera
