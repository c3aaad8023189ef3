#ifndef TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_DEVICE_EMULATOR_H_
#define TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_DEVICE_EMULATOR_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"

// The shared memory of the CUDA block that runs.
extern "C" unsigned char tessera_emulated_shared[];

// Runs a grid of CUDA threads on one CPU thread, one CUDA block after another,
// with a fiber for each CUDA thread. Fibers switch only where they wait for
// each other, and warps take turns in random order and for random stretches, so
// that a missing barrier shows as a wrong result and a surplus barrier as a
// deadlock.
//
// Invalid operations of a kernel end the program with a message: access beyond
// the CUDA block's shared memory, unaligned access, copies from memory that
// AddReadable() did not declare, deadlock. Shared memory is NaN until written,
// and so is the target of an asynchronous copy until its thread has waited for
// it.

namespace tessera::emulated {

// Calls `thread` once for each of the grid's threads.
void RunGrid(int64_t blocks, int threads, int shared_bytes,
             absl::FunctionRef<void()> thread);

// Indices of the running CUDA thread, and the size of its grid.
unsigned ThreadIndex();
unsigned BlockIndex();
unsigned GridBlocks();

// Lets other threads run; called by a thread that polls. A message about a
// deadlock names `waits_for` and `which`.
void LetOthersRun(const char* waits_for, int64_t which);
// Reports that a thread that waited may continue.
void NoteProgress();
// Runs `task` at some time while threads run: a copy engine's work.
void RunLater(absl::AnyInvocable<void()> task);
// In [0, below).
int RandomNumber(int below);

void BlockBarrier();
// bar.sync or bar.arrive: completes with that many arrivals.
void NamedBarrier(int id, int threads, bool waits);
// A barrier of the lanes in `mask`, which includes the current one.
void WarpBarrier(unsigned mask = 0xffffffff);

// The words that a lane shows the other lanes of its warp in one exchange.
struct LaneWords {
  uint32_t word[6];
};
// All lanes' words of this exchange, by lane; words of lanes outside `mask` are
// undefined. Valid until the thread's next exchange.
const LaneWords* Exchange(const LaneWords& mine, unsigned mask = 0xffffffff);

// `bytes` bytes of shared memory at `address`, which must be a multiple of
// `bytes`.
void* Shared(uint32_t address, int bytes);

// Copies from global to shared memory when the thread waits; from null, zeros.
void CopyLater(uint32_t to, const void* from, int bytes);
void WaitForCopies();

// Lets kernels copy from [begin, begin + bytes) until ForgetReadable().
void AddReadable(const void* begin, size_t bytes);
void ForgetReadable();

}  // namespace tessera::emulated

#endif  // TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_DEVICE_EMULATOR_H_
