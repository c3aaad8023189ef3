#include "tests/testing/weights.h"

#include <ATen/ATen.h>

namespace tessera {

at::Tensor WeightsOf(const ParameterStore& store) {
  int64_t extent = 0;
  for (const ParameterSlice& slice : store.slices()) {
    extent = AlignUp(slice.offset + slice.numel);
  }
  at::Tensor flat = at::zeros({extent}, store.options().weights.master);
  for (const ParameterSlice& slice : store.slices()) {
    store.Read(slice, 0, flat.narrow(0, slice.offset, slice.numel));
  }
  return flat;
}

void SetWeights(const at::Tensor& flat, ParameterStore* store) {
  for (const ParameterSlice& slice : store->slices()) {
    store->Write(slice, 0, flat.narrow(0, slice.offset, slice.numel));
  }
}

}  // namespace tessera
