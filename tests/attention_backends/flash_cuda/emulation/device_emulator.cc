#include "tests/attention_backends/flash_cuda/emulation/device_emulator.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

// At least as much as any GPU has per CUDA block; panels need an alignment of
// 1,024 bytes.
alignas(1024) unsigned char tessera_emulated_shared[256 << 10];

// Pushes the registers that a call preserves, stores the stack pointer in
// *from, and continues on the stack `to`. swapcontext() does the same and sets
// the signal mask, a system call; the tests took three times as long with it.
extern "C" void tessera_switch_stack(void** from, void* to);
asm(R"(
.text
.type tessera_switch_stack, @function
tessera_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tessera_switch_stack, . - tessera_switch_stack
)");

namespace tessera::emulated {
namespace {

constexpr int kLanes = 32;
constexpr size_t kStackBytes = size_t{256} << 10;
constexpr int kMostTurns = 40;  // of a warp in a row
// Every thread has a turn in each round; one that polls may need several.
constexpr int kMostIdleRounds = 20;

struct Copy {
  uint32_t to;
  const void* from;
  int bytes;
};

struct Barrier {
  int arrived = 0, generation = 0;
};

struct Fiber {
  // Whether a turn would be of no use. Most turns are: without this, the tests
  // take twice as long.
  bool Waits() const {
    return barrier != nullptr && barrier->generation == generation;
  }

  void* stack_pointer = nullptr;
  std::vector<char> stack;
  bool done = false;
  const Barrier* barrier = nullptr;
  int generation = 0;
  int exchanges = 0;
  const char* waits_for = "";
  int64_t which = 0;
  std::vector<Copy> copies;
};

struct Warp {
  // Two exchanges suffice: no lane begins the second next before all have left
  // the current one.
  LaneWords words[2][kLanes];
  std::map<unsigned, Barrier> barriers;  // by mask
};

struct Grid {
  void* scheduler = nullptr;  // its stack pointer
  absl::FunctionRef<void()>* thread = nullptr;
  unsigned block = 0, blocks = 0;
  int current = 0;
  int64_t progress = 0;  // barriers passed, copies made, threads ended
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier barrier;
  std::map<int, Barrier> named_barriers;
  std::vector<absl::AnyInvocable<void()>> tasks;
  uint32_t shared_bytes = 0;
  std::mt19937 random;
};

Grid& TheGrid() {
  static Grid* const grid = new Grid;
  return *grid;
}

std::vector<std::pair<const char*, const char*>>& Readable() {
  static auto* const ranges =
      new std::vector<std::pair<const char*, const char*>>;
  return *ranges;
}

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "CUDA block %u, thread %u: %s\n", BlockIndex(),
               ThreadIndex(), what.c_str());
  std::abort();
}

Fiber& Current() {
  Grid& grid = TheGrid();
  return grid.fibers[grid.current];
}

void Arrive(Barrier& barrier, int count, const char* name, int64_t which,
            bool waits = true) {
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    NoteProgress();
  } else if (waits) {
    Current().barrier = &barrier;
    Current().generation = barrier.generation;
    LetOthersRun(name, which);
  }
}

void Enter() {
  Grid& grid = TheGrid();
  (*grid.thread)();
  if (!Current().copies.empty()) Fail("ended without waiting for its copies");
  Current().done = true;
  NoteProgress();
  LetOthersRun("nothing", 0);
}

void Start(Fiber& fiber) {
  fiber.stack.resize(kStackBytes);
  fiber.done = false;
  fiber.barrier = nullptr;
  fiber.exchanges = 0;
  // Six registers and where tessera_switch_stack() returns to. A function
  // begins with its stack 8 bytes below a multiple of 16.
  const uintptr_t top =
      reinterpret_cast<uintptr_t>(fiber.stack.data() + kStackBytes) & ~15;
  void** const frame = reinterpret_cast<void**>(top) - 8;
  std::fill_n(frame, 8, nullptr);
  frame[6] = reinterpret_cast<void*>(&Enter);
  fiber.stack_pointer = frame;
}

// Gives every thread of a warp a turn; returns how many have ended.
int RunWarp(Grid& grid, int warp) {
  int ended = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    grid.current = warp * kLanes + lane;
    Fiber& fiber = Current();
    if (fiber.done || fiber.Waits()) continue;
    tessera_switch_stack(&grid.scheduler, fiber.stack_pointer);
    ended += fiber.done;
  }
  return ended;
}

std::string WhatIsWaitedFor(const Grid& grid) {
  std::map<std::string, int> threads;
  for (const Fiber& fiber : grid.fibers) {
    if (!fiber.done) {
      ++threads[absl::StrCat(fiber.waits_for, " ", fiber.which)];
    }
  }
  std::string list;
  for (const auto& [what, count] : threads) {
    absl::StrAppend(&list, " ", count, " for ", what, ",");
  }
  return list;
}

void RunTask(Grid& grid, bool newest) {
  if (grid.tasks.empty()) return;
  const size_t i =
      newest ? grid.tasks.size() - 1 : grid.random() % grid.tasks.size();
  absl::AnyInvocable<void()> task = std::move(grid.tasks[i]);
  grid.tasks.erase(grid.tasks.begin() + i);
  task();
  NoteProgress();
}

// At random, one warpgroup lags behind the others or none does, and copies are
// made soon or, the newest first, only once every thread waits.
void RunBlock(Grid& grid, int threads) {
  const int warps = threads / kLanes, warpgroups = (warps + 3) / 4;
  std::vector<int> order(warps);
  std::iota(order.begin(), order.end(), 0);
  const int lagging = grid.random() % (warpgroups + 1);
  const bool copies_soon = grid.random() % 2 == 0;
  int left = threads, idle_rounds = 0;
  while (left > 0) {
    const int64_t before = grid.progress;
    std::shuffle(order.begin(), order.end(), grid.random);
    for (const int warp : order) {
      if (warp / 4 == lagging && idle_rounds == 0) continue;
      const int turns = 1 + grid.random() % kMostTurns;
      for (int turn = 0; turn < turns; ++turn) left -= RunWarp(grid, warp);
      if (copies_soon && grid.random() % 2 == 0) {
        RunTask(grid, /*newest=*/false);
      }
    }
    idle_rounds = grid.progress == before ? idle_rounds + 1 : 0;
    if (idle_rounds > 1 && !grid.tasks.empty()) {
      RunTask(grid, /*newest=*/true);
      idle_rounds = 0;
    }
    if (idle_rounds == kMostIdleRounds) {
      Fail(absl::StrCat("deadlock, waiting threads:", WhatIsWaitedFor(grid)));
    }
  }
  // Another CUDA block uses the shared memory from here on.
  if (!grid.tasks.empty()) Fail("the CUDA block ended before its copies");
}

}  // namespace

void RunGrid(int64_t blocks, int threads, int shared_bytes,
             absl::FunctionRef<void()> thread) {
  Grid& grid = TheGrid();
  grid.thread = &thread;
  grid.blocks = blocks;
  grid.shared_bytes = shared_bytes;
  grid.fibers.resize(threads);
  for (int64_t block = 0; block < blocks; ++block) {
    grid.block = block;
    std::memset(tessera_emulated_shared, 0xff, shared_bytes);
    grid.named_barriers.clear();
    grid.warps.assign(threads / kLanes, Warp());
    for (Fiber& fiber : grid.fibers) Start(fiber);
    RunBlock(grid, threads);
  }
}

unsigned ThreadIndex() { return TheGrid().current; }
unsigned BlockIndex() { return TheGrid().block; }
unsigned GridBlocks() { return TheGrid().blocks; }

void LetOthersRun(const char* waits_for, int64_t which) {
  Grid& grid = TheGrid();
  Current().waits_for = waits_for;
  Current().which = which;
  tessera_switch_stack(&Current().stack_pointer, grid.scheduler);
}
void NoteProgress() { ++TheGrid().progress; }
void RunLater(absl::AnyInvocable<void()> task) {
  TheGrid().tasks.push_back(std::move(task));
}
int RandomNumber(int below) { return TheGrid().random() % below; }

void NamedBarrier(int id, int threads, bool waits) {
  Arrive(TheGrid().named_barriers[id], threads, "named barrier", id, waits);
}

void BlockBarrier() {
  Grid& grid = TheGrid();
  Arrive(grid.barrier, static_cast<int>(grid.fibers.size()), "barrier", 0);
}

void WarpBarrier(unsigned mask) {
  Grid& grid = TheGrid();
  Arrive(grid.warps[grid.current / kLanes].barriers[mask],
         __builtin_popcount(mask), "lanes", mask);
}

const LaneWords* Exchange(const LaneWords& mine, unsigned mask) {
  Grid& grid = TheGrid();
  LaneWords* const words =
      grid.warps[grid.current / kLanes].words[Current().exchanges++ % 2];
  words[grid.current % kLanes] = mine;
  WarpBarrier(mask);
  return words;
}

void* Shared(uint32_t address, int bytes) {
  const uint32_t size = TheGrid().shared_bytes;
  if (address + bytes > size) {
    Fail(absl::StrCat("accesses shared memory at ", address, " of ", size));
  }
  if (address % bytes != 0) {
    Fail(absl::StrCat("accesses ", bytes, " unaligned bytes at ", address));
  }
  return tessera_emulated_shared + address;
}

void CopyLater(uint32_t to, const void* from, int bytes) {
  std::memset(Shared(to, bytes), 0xff, bytes);
  Current().copies.push_back({to, from, bytes});
}

void WaitForCopies() {
  for (const Copy& copy : Current().copies) {
    void* const to = Shared(copy.to, copy.bytes);
    if (copy.from == nullptr) {
      std::memset(to, 0, copy.bytes);
      continue;
    }
    const char* const from = static_cast<const char*>(copy.from);
    if (reinterpret_cast<uintptr_t>(from) % copy.bytes != 0) {
      Fail(absl::StrCat("copies ", copy.bytes, " unaligned bytes"));
    }
    const bool readable = std::any_of(
        Readable().begin(), Readable().end(), [&](const auto& range) {
          return range.first <= from && from + copy.bytes <= range.second;
        });
    if (!readable) Fail("copies from outside the readable memory");
    std::memcpy(to, from, copy.bytes);
  }
  Current().copies.clear();
}

void AddReadable(const void* begin, size_t bytes) {
  const char* const first = static_cast<const char*>(begin);
  Readable().emplace_back(first, first + bytes);
}
void ForgetReadable() { Readable().clear(); }

}  // namespace tessera::emulated
