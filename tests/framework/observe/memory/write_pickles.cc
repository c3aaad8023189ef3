// Writes what memory_snapshot_test.py reads: DIR/values.pickle, every kind of
// value, and DIR/snapshot.pickle.

#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "framework/base/file.h"
#include "framework/observe/memory/memory_snapshot.h"
#include "framework/observe/memory/pickle.h"

namespace tessera {
namespace {

using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::TraceEntry;

std::string Values() {
  PickleWriter pickle;
  pickle.BeginList();
  for (const int64_t value :
       {int64_t{0}, int64_t{-1}, int64_t{255}, int64_t{2147483647},
        int64_t{2147483648}, int64_t{-2147483648}, int64_t{-2147483649},
        int64_t{0x7f1234567890}, std::numeric_limits<int64_t>::max(),
        std::numeric_limits<int64_t>::min()}) {
    pickle.Int(value);
    pickle.Append();
  }
  pickle.Bool(true);
  pickle.Append();
  pickle.Bool(false);
  pickle.Append();
  for (const char* text : {"", "plain", "plain", "caf\xc3\xa9"}) {
    pickle.String(text);
    pickle.Append();
  }
  pickle.Int(1);
  pickle.Int(2);
  pickle.Tuple2();
  pickle.Append();
  pickle.BeginDict();
  pickle.Key("plain");
  pickle.BeginList();
  const uint32_t list = pickle.Remember();
  pickle.SetItem();
  pickle.Append();
  pickle.Repeat(list);
  pickle.Append();
  return std::move(pickle).Finish();
}

AllocatorSnapshot Snapshot() {
  const auto context = std::make_shared<AllocationContext>();
  context->frames = {{"sdpa", "op"}, {"attention", "phase"}};
  context->step = 7;
  constexpr size_t kBase = 0x7f0000000000;
  void* const stream = reinterpret_cast<void*>(0x5500);
  AllocatorSnapshot snapshot;
  snapshot.settings = "expandable_segments:False";
  SegmentInfo segment;
  segment.address = kBase;
  segment.total_size = 20 << 20;
  segment.requested_size = 1000;
  segment.allocated_size = 1024;
  segment.active_size = 1536;
  segment.stream = stream;
  segment.is_large = true;
  const auto block = [](size_t size, size_t requested) {
    BlockInfo info;
    info.size = size;
    info.requested_size = requested;
    return info;
  };
  BlockInfo allocated = block(1024, 1000);
  allocated.allocated = allocated.active = true;
  allocated.context_when_allocated = context;
  BlockInfo pending = block(512, 512);
  pending.active = true;
  segment.blocks = {allocated, pending, block((20 << 20) - 1536, 0)};
  snapshot.segments = {segment};
  const auto entry = [&](TraceEntry::Action action, size_t address,
                         size_t size) {
    TraceEntry result(action, 0, address, size, stream, {0, 0}, 0, context);
    result.time_.t_ = 1'700'000'000'000'000;
    return result;
  };
  snapshot.traces = {{entry(TraceEntry::SEGMENT_ALLOC, kBase, 20 << 20),
                      entry(TraceEntry::ALLOC, kBase, 1000),
                      entry(TraceEntry::ALLOC, kBase + 1024, 512),
                      entry(TraceEntry::FREE_REQUESTED, kBase + 1024, 512),
                      entry(TraceEntry::OOM, 4096, 1 << 30),
                      entry(TraceEntry::SNAPSHOT, 0, 0)},
                     {}};
  snapshot.traces[0].back().context_ = nullptr;
  return snapshot;
}

absl::Status Write(const std::string& folder) {
  const absl::Status status =
      WriteFileAtomically(folder + "/values.pickle", Values());
  if (!status.ok()) return status;
  return WriteFileAtomically(folder + "/snapshot.pickle",
                             PickleSnapshot(Snapshot()));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 2) return 1;
  const absl::Status status = tessera::Write(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 2;
}
