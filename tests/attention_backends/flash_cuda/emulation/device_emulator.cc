#include "tests/attention_backends/flash_cuda/emulation/device_emulator.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera::emulated {
namespace {

constexpr int kLanes = 32;
constexpr size_t kStackBytes = size_t{256} << 10;
constexpr int kMostTurns = 40;  // of a warp in one go

struct Copy {
  uint32_t to;
  const void* from;
  int bytes;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
  int exchanges = 0;
  std::vector<Copy> copies;
};

struct Barrier {
  int arrived = 0, generation = 0;
};

struct Warp {
  // Two exchanges: no lane begins the next but one before all have left this.
  LaneWords words[2][kLanes];
  std::map<unsigned, Barrier> barriers;  // by mask
};

struct Grid {
  ucontext_t scheduler;
  absl::FunctionRef<void()>* thread = nullptr;
  unsigned block = 0;
  int current = 0;
  int64_t progress = 0;  // barriers passed and threads ended
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier barrier;
  std::vector<unsigned char> shared;
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
  std::fprintf(stderr, "block %u, thread %u: %s\n", BlockIndex(), ThreadIndex(),
               what.c_str());
  std::abort();
}

Fiber& Current() {
  Grid& grid = TheGrid();
  return grid.fibers[grid.current];
}

void LetOthersRun() {
  Grid& grid = TheGrid();
  swapcontext(&grid.fibers[grid.current].context, &grid.scheduler);
}

void Arrive(Barrier& barrier, int count) {
  const int generation = barrier.generation;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    ++TheGrid().progress;
    return;
  }
  while (barrier.generation == generation) LetOthersRun();
}

void Enter() {
  Grid& grid = TheGrid();
  (*grid.thread)();
  if (!Current().copies.empty()) Fail("ended before its copies did");
  Current().done = true;
  ++grid.progress;
  LetOthersRun();
}

void Start(Fiber& fiber) {
  fiber.stack.resize(kStackBytes);
  fiber.done = false;
  fiber.exchanges = 0;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  makecontext(&fiber.context, Enter, 0);
}

// Gives every thread of a warp a turn; returns how many have ended in it.
int RunWarp(Grid& grid, int warp) {
  int ended = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    grid.current = warp * kLanes + lane;
    Fiber& fiber = Current();
    if (fiber.done) continue;
    swapcontext(&grid.scheduler, &fiber.context);
    ended += fiber.done;
  }
  return ended;
}

void RunBlock(Grid& grid, int threads) {
  std::vector<int> order(threads / kLanes);
  std::iota(order.begin(), order.end(), 0);
  int left = threads;
  while (left > 0) {
    const int64_t before = grid.progress;
    std::shuffle(order.begin(), order.end(), grid.random);
    for (const int warp : order) {
      const int turns = 1 + grid.random() % kMostTurns;
      for (int turn = 0; turn < turns; ++turn) left -= RunWarp(grid, warp);
    }
    if (grid.progress == before) Fail("all threads wait for each other");
  }
}

}  // namespace

void RunGrid(int64_t blocks, int threads, int shared_bytes,
             absl::FunctionRef<void()> thread) {
  Grid& grid = TheGrid();
  grid.thread = &thread;
  grid.fibers.resize(threads);
  for (int64_t block = 0; block < blocks; ++block) {
    grid.block = block;
    grid.shared.assign(shared_bytes, 0xff);
    grid.warps.assign(threads / kLanes, Warp());
    for (Fiber& fiber : grid.fibers) Start(fiber);
    RunBlock(grid, threads);
  }
}

unsigned ThreadIndex() { return TheGrid().current; }
unsigned BlockIndex() { return TheGrid().block; }

void BlockBarrier() {
  Grid& grid = TheGrid();
  Arrive(grid.barrier, static_cast<int>(grid.fibers.size()));
}

void WarpBarrier(unsigned mask) {
  Grid& grid = TheGrid();
  Arrive(grid.warps[grid.current / kLanes].barriers[mask],
         __builtin_popcount(mask));
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
  std::vector<unsigned char>& shared = TheGrid().shared;
  if (address + bytes > shared.size()) {
    Fail(absl::StrCat("shared memory at ", address, " of ", shared.size()));
  }
  if (address % bytes != 0) {
    Fail(absl::StrCat(bytes, " bytes of shared memory at ", address));
  }
  return &shared[address];
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
    if (!readable) Fail("copies from outside its tensors");
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
