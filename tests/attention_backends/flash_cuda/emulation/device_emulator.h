#ifndef TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_DEVICE_EMULATOR_H_
#define TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_DEVICE_EMULATOR_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"

// A block's shared memory.
extern "C" unsigned char tessera_emulated_shared[];

// Runs a grid of CUDA threads on one CPU thread, block after block, each CUDA
// thread a fiber. Fibers change only where they wait for each other, and warps
// take turns in random order and for random stretches, so that a barrier too
// few shows as a wrong result, one too many as a deadlock.
//
// What a kernel may not do ends the program with a message: shared memory
// beyond the block's, unaligned accesses, copies from memory that no
// AddReadable() covers, threads that wait for each other for ever. Shared
// memory is NaN until written, and so is the target of a copy in the background
// until its thread has waited for it.

namespace tessera::emulated {

// Calls `thread` once for each of the grid's threads.
void RunGrid(int64_t blocks, int threads, int shared_bytes,
             absl::FunctionRef<void()> thread);

// Of the CUDA thread that runs.
unsigned ThreadIndex();
unsigned BlockIndex();
unsigned GridBlocks();

// Lets others run; to be called by a thread that polls. What it waits for is
// said where all wait for ever.
void LetOthersRun(const char* waits_for, int64_t which);
// A thread that waited may go on.
void NoteProgress();
// Runs `task` at some time while threads run: a copy engine's work.
void RunLater(absl::AnyInvocable<void()> task);
// In [0, below).
int RandomNumber(int below);

void BlockBarrier();
// bar.sync or bar.arrive: completes with that many arrivals.
void NamedBarrier(int id, int threads, bool waits);
// Of the lanes in `mask`, this one among them.
void WarpBarrier(unsigned mask = 0xffffffff);

// What a lane shows the others of its warp in one exchange.
struct LaneWords {
  uint32_t word[6];
};
// All lanes' words of this exchange, by lane; those of lanes outside `mask`
// mean nothing. Valid until the thread's next exchange.
const LaneWords* Exchange(const LaneWords& mine, unsigned mask = 0xffffffff);

// `bytes` of the block's shared memory at an address that is a multiple of
// them.
void* Shared(uint32_t address, int bytes);

// Copies global to shared memory once the thread waits; null: zeros.
void CopyLater(uint32_t to, const void* from, int bytes);
void WaitForCopies();

// Kernels may copy from [begin, begin + bytes) until ForgetReadable().
void AddReadable(const void* begin, size_t bytes);
void ForgetReadable();

}  // namespace tessera::emulated

#endif  // TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_DEVICE_EMULATOR_H_
