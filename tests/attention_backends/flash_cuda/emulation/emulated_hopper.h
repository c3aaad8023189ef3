#ifndef TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_EMULATED_HOPPER_H_
#define TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_EMULATED_HOPPER_H_

// The parts of CUDA that only the Hopper kernels use: mbarriers, the copy
// engine, and asynchronous products of the tensor cores. Include it before the
// kernels: it replaces ptx.cuh and wgmma.cuh.
//
// Asynchronous operations happen early or late, at random: copies while other
// threads run, products when they are issued or when they are waited for. The
// target of a copy is NaN until the copy has arrived.

#define FRAMEWORK_CUDA_HOPPER_PTX_CUH_
#define FRAMEWORK_CUDA_HOPPER_WGMMA_CUH_
#define __cuda_cuda_h__  // cuda.h's own guard

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "framework/cuda/head_view.h"
#include "tests/attention_backends/flash_cuda/emulation/device_emulator.h"
#include "tests/attention_backends/flash_cuda/emulation/emulated_cuda.h"

#define __grid_constant__
// CUDA blocks run one after the other, so one variable serves all threads.
#define __shared__ static

inline int atomicAdd(int* to, int x) {
  const int before = *to;
  *to += x;
  return before;
}

// A [batch, heads, rows, columns] tensor of 2-byte elements and the box that
// one copy moves.
struct CUtensorMap {
  tessera::HeadView view;
  int rows = 0, columns = 0;
  int box_rows = 0, box_columns = 0;
};

// This header uses the declarations above.
#include "framework/cuda/hopper/tensor_map.h"

namespace tessera {

using std::max;
using std::min;

class Mbarrier {
 public:
  void Init(int arrivals) { *this = Mbarrier(arrivals); }
  void Arrive() { Note(1, 0); }
  void ArriveExpecting(int bytes) { Note(1, bytes); }
  void Arrived(int bytes) { Note(0, -bytes); }
  void Wait(uint32_t parity) {
    while (phase_ == parity) {
      emulated::LetOthersRun("mbarrier", SharedAddress(this));
    }
  }

 private:
  explicit Mbarrier(int arrivals) : arrivals_(arrivals), missing_(arrivals) {}

  void Note(int arrivals, int bytes) {
    missing_ -= arrivals;
    bytes_ += bytes;
    if (missing_ > 0 || bytes_ != 0) return;
    missing_ = arrivals_;
    phase_ ^= 1;
    emulated::NoteProgress();
  }

  int arrivals_, missing_, bytes_ = 0;
  uint32_t phase_ = 0;
};

inline void FenceBarrierInit() {}
// Kernels run one after the other.
inline void LetNextKernelStart() {}
inline void WaitForLastKernel() {}
inline void FenceProxyAsync() {}

struct TileCoordinate {
  int column, row, head, batch;
};

// Calls fn(offset in shared memory, element or null) for a box's elements.
template <typename Fn>
void ForEachOfBox(const CUtensorMap& map, const TileCoordinate& at,
                  const Fn& fn) {
  const int row_bytes = 2 * map.box_columns;
  uint16_t* const head = static_cast<uint16_t*>(map.view.data) +
                         at.batch * map.view.batch_stride +
                         at.head * map.view.head_stride;
  for (int i = 0; i < map.box_rows; ++i) {
    for (int j = 0; j < map.box_columns; ++j) {
      const int linear = i * row_bytes + 2 * j;
      const int swizzle = (linear >> 7) & (row_bytes / 16 - 1);
      const bool exists = at.row + i < map.rows && at.column + j < map.columns;
      fn(linear ^ swizzle << 4,
         exists ? head + (at.row + i) * map.view.row_stride + at.column + j
                : nullptr);
    }
  }
}

inline void TmaLoad(const CUtensorMap& map, const TileCoordinate& at,
                    Mbarrier* barrier, void* shared) {
  const int bytes = 2 * map.box_rows * map.box_columns;
  std::memset(shared, 0xff, bytes);
  emulated::RunLater([=] {
    ForEachOfBox(map, at, [&](int offset, const uint16_t* element) {
      const uint16_t value = element == nullptr ? 0 : *element;
      std::memcpy(static_cast<char*>(shared) + offset, &value, 2);
    });
    barrier->Arrived(bytes);
  });
}

inline void BulkLoad(const void* global, int bytes, Mbarrier* barrier,
                     void* shared) {
  std::memset(shared, 0xff, bytes);
  emulated::RunLater([=] {
    std::memcpy(shared, global, bytes);
    barrier->Arrived(bytes);
  });
}

// A thread's operations in flight. Products form groups; the last group in the
// list is not committed yet.
struct InFlight {
  int stores = 0;
  int completed = 0;  // groups that have left the list
  std::vector<std::vector<absl::AnyInvocable<void()>>> products =
      std::vector<std::vector<absl::AnyInvocable<void()>>>(1);

  int committed() const {
    return completed + static_cast<int>(products.size()) - 1;
  }
  void Complete(int groups) {
    for (; completed < groups; ++completed) {
      for (auto& product : products.front()) product();
      products.erase(products.begin());
    }
  }
};
inline InFlight& InFlightOf(int thread) {
  static auto* const all = new std::vector<InFlight>(1024);
  return (*all)[thread];
}
inline InFlight& MyInFlight() { return InFlightOf(threadIdx.x); }

inline void TmaStore(const CUtensorMap& map, const TileCoordinate& at,
                     const void* shared) {
  InFlight* const mine = &MyInFlight();
  ++mine->stores;
  emulated::RunLater([=] {
    ForEachOfBox(map, at, [&](int offset, uint16_t* element) {
      if (element == nullptr) return;
      std::memcpy(element, static_cast<const char*>(shared) + offset, 2);
    });
    --mine->stores;
  });
}
inline void TmaCommit() {}
inline void TmaWaitRead() {
  while (MyInFlight().stores > 0) {
    emulated::LetOthersRun("stores", MyInFlight().stores);
  }
}

inline void BarrierSync(int id, int threads) {
  emulated::NamedBarrier(id, threads, /*waits=*/true);
}
inline void BarrierArrive(int id, int threads) {
  emulated::NamedBarrier(id, threads, /*waits=*/false);
}

template <int kRegisters>
void ShrinkRegisters() {}
template <int kRegisters>
void GrowRegisters() {}

inline int LoadAcquire(const int* address) {
  emulated::LetOthersRun("memory", *address);
  return *address;
}
inline void AddRelease(int* address, int value) { *address += value; }
inline void AddGlobal(float* address, float a, float b, float c, float d) {
  const float x[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) address[i] += x[i];
}

// Row i of matrix m is at the address that lane 8 m + i gives.
inline void StoreMatrices(uint32_t address, const uint32_t (&r)[4]) {
  const auto* const rows = emulated::Exchange({.word = {address}});
  const int lane = threadIdx.x % 32;
  for (int m = 0; m < 4; ++m) {
    char* const row = static_cast<char*>(
        emulated::Shared(rows[8 * m + lane / 4].word[0], 16));
    std::memcpy(row + lane % 4 * 4, &r[m], 4);
  }
}
inline void StoreMatricesTransposed(uint32_t address, const uint32_t (&r)[4]) {
  const auto* const rows = emulated::Exchange({.word = {address}});
  const int lane = threadIdx.x % 32;
  for (int m = 0; m < 4; ++m) {
    for (int half = 0; half < 2; ++half) {
      char* const row = static_cast<char*>(
          emulated::Shared(rows[8 * m + lane % 4 * 2 + half].word[0], 16));
      const auto value = static_cast<uint16_t>(r[m] >> 16 * half);
      std::memcpy(row + lane / 4 * 2, &value, 2);
    }
  }
}

// A thread's two rows of A, 16 columns each.
struct RowsOfA {
  float row[2][16];
};

enum class Major { kK = 0, kMn = 1 };

// Element (i, k) of an operand; k < 16, i along M or N (PTX ISA, "Matrix
// descriptor" and the canonical layouts of "wgmma").
template <typename T>
float ElementOf(uint64_t descriptor, Major major, int i, int k) {
  const uint32_t start = (descriptor & 0x3FFF) << 4;
  const uint32_t leading = (descriptor >> 16 & 0x3FFF) << 4;
  const uint32_t stride = (descriptor >> 32 & 0x3FFF) << 4;
  const int row_bytes = 256 >> (descriptor >> 62);
  const int width = row_bytes / 2;
  uint32_t address = start;
  if (major == Major::kK) {
    address += i / 8 * stride + i % 8 * row_bytes + 2 * k;
  } else {
    address += i / width * leading + k / 8 * stride + k % 8 * row_bytes +
               i % width * 2;
  }
  address ^= (address >> 7 & (row_bytes / 16 - 1)) << 4;
  uint16_t bits;
  std::memcpy(&bits, emulated::Shared(address, 2), 2);
  return emulated::Bits<T>(bits);
}

// Named barriers beyond the 16 of the hardware.
inline constexpr int kFirstWarpgroupBarrier = 16;

// Runs `product` now or when it is waited for.
inline void Issue(absl::AnyInvocable<void()> product) {
  InFlight& mine = MyInFlight();
  mine.products.back().push_back(std::move(product));
  if (emulated::RandomNumber(2) == 0) return;
  mine.Complete(mine.committed());
  for (auto& issued : mine.products.back()) issued();
  mine.products.back().clear();
}

// Waits for the four warps of a warpgroup: no product begins before all arrive.
inline void WgmmaFence() {
  const int warpgroup = threadIdx.x / 128;
  emulated::NamedBarrier(kFirstWarpgroupBarrier + warpgroup, 128,
                         /*waits=*/true);
}
inline void WgmmaCommit() { MyInFlight().products.emplace_back(); }
// A product belongs to all four warps and completes when it has completed for
// each. One thread may then release what all have read, as in CUTLASS's
// pipelines.
template <int kPending>
void WgmmaWait() {
  const int groups = MyInFlight().committed() - kPending;
  const int first = threadIdx.x / 128 * 128;
  for (int thread = first; thread < first + 128; ++thread) {
    while (InFlightOf(thread).committed() < groups) {
      emulated::LetOthersRun("products", groups);
    }
  }
  for (int thread = first; thread < first + 128; ++thread) {
    InFlightOf(thread).Complete(groups);
  }
}
inline void PinRegister(float*&) {}
template <int kCount>
void PinRegisters(float (&)[kCount]) {}
template <int kRows, int kCount>
void PinRegisters(uint32_t (&)[kRows][kCount]) {}

// The first of this thread's two rows of 64.
inline int FragmentRow() {
  return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
}

template <int kN>
struct Wgmma {
  template <typename T, Major kA, Major kB>
  static void Shared(float (&d)[kN / 2], uint64_t a, uint64_t b, int add) {
    const int row = FragmentRow();
    Issue([=, sums = d, first = threadIdx.x % 4 * 2] {
      RowsOfA rows;
      for (int r = 0; r < 2; ++r) {
        for (int k = 0; k < 16; ++k) {
          rows.row[r][k] = ElementOf<T>(a, kA, row + 8 * r, k);
        }
      }
      Multiply<T, kB>(rows, b, first, add, sums);
    });
  }

  template <typename T, Major kB>
  static void Registers(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b,
                        int add) {
    const auto* const words =
        emulated::Exchange({.word = {a[0], a[1], a[2], a[3]}});
    const int quad = threadIdx.x % 32 / 4 * 4;
    RowsOfA rows;
    for (int k = 0; k < 16; k += 2) {
      for (int r = 0; r < 2; ++r) {
        const float2 pair =
            Unpack<T>(words[quad + k % 8 / 2].word[k / 8 * 2 + r]);
        rows.row[r][k] = pair.x;
        rows.row[r][k + 1] = pair.y;
      }
    }
    Issue([=, sums = d, first = threadIdx.x % 4 * 2] {
      Multiply<T, kB>(rows, b, first, add, sums);
    });
  }

 private:
  template <typename T, Major kB>
  static void Multiply(const RowsOfA& a, uint64_t b, int first, int add,
                       float* d) {
    for (int i = 0; i < kN / 2; ++i) {
      const int column = i / 4 * 8 + first + i % 2;
      float sum = add ? d[i] : 0;
      for (int k = 0; k < 16; ++k) {
        sum += a.row[i / 2 % 2][k] * ElementOf<T>(b, kB, column, k);
      }
      d[i] = sum;
    }
  }
};

// Supports 2-byte elements.
inline cudaError_t MakeTensorMap(const TensorMapSpec& spec, CUtensorMap* map) {
  *map = {.view = spec.view,
          .rows = static_cast<int>(spec.rows),
          .columns = static_cast<int>(spec.columns),
          .box_rows = spec.box_rows,
          .box_columns = spec.box_columns};
  return cudaSuccess;
}

}  // namespace tessera

#endif  // TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_EMULATED_HOPPER_H_
