#include "attention_backends/document_bounds_kernel.h"

namespace tessera {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kFullWarp = 0xffffffff;
constexpr int kThreads = 256;

// The number of blocks that look at a sequence.
__host__ __device__ int Chunks(int sequence) {
  return (sequence + kThreads - 1) / kThreads;
}

// A warp looks at 32 tokens of a sequence. For each that is its document's last
// it writes the ends of the whole document, of which the position tells the
// length: no warp waits for another, and each end is written once.
__global__ void __launch_bounds__(kThreads)
    DocumentBoundsKernel(const DocumentBoundsParams p) {
  const int chunks = Chunks(p.sequence);
  const int64_t row = blockIdx.x / chunks;  // of M B
  const int64_t micro_batch = row / p.batch;
  const int64_t* const positions = p.positions + row * p.sequence;
  int* const begins = p.bounds + (row + micro_batch * p.batch) * p.sequence;
  int* const ends = begins + int64_t{p.batch} * p.sequence;
  const int lane = threadIdx.x % kWarp;
  const int token = blockIdx.x % chunks * kThreads + threadIdx.x;
  int begin = 0;
  bool is_last = false;
  if (token < p.sequence) {
    begin = token - static_cast<int>(positions[token]);
    begins[token] = begin;
    is_last = token + 1 == p.sequence || positions[token + 1] == 0;
  }
  for (unsigned last = __ballot_sync(kFullWarp, is_last); last != 0;
       last &= last - 1) {
    const int from = __ffs(last) - 1;
    const int end = token - lane + from + 1;
    for (int i = __shfl_sync(kFullWarp, begin, from) + lane; i < end;
         i += kWarp) {
      ends[i] = end;
    }
  }
}

}  // namespace

cudaError_t LaunchDocumentBounds(const DocumentBoundsParams& p,
                                 cudaStream_t stream) {
  // In one dimension: there may be more than 65,535 sequences or chunks, the
  // most in another.
  const int blocks = p.micro_batches * p.batch * Chunks(p.sequence);
  DocumentBoundsKernel<<<blocks, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace tessera
