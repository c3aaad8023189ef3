#include "framework/observe/memory/memory_snapshot.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "framework/observe/memory/pickle.h"

namespace tessera {
namespace {

using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::TraceEntry;

absl::string_view StateOf(const BlockInfo& block) {
  return block.allocated ? "active_allocated"
         : block.active  ? "active_pending_free"
                         : "inactive";
}

absl::string_view NameOf(TraceEntry::Action action) {
  switch (action) {
    case TraceEntry::ALLOC:
      return "alloc";
    case TraceEntry::FREE_REQUESTED:
      return "free_requested";
    case TraceEntry::FREE_COMPLETED:
      return "free_completed";
    case TraceEntry::SEGMENT_ALLOC:
      return "segment_alloc";
    case TraceEntry::SEGMENT_FREE:
      return "segment_free";
    case TraceEntry::SEGMENT_MAP:
      return "segment_map";
    case TraceEntry::SEGMENT_UNMAP:
      return "segment_unmap";
    case TraceEntry::SNAPSHOT:
      return "snapshot";
    case TraceEntry::OOM:
      return "oom";
  }
  return "";
}

class SnapshotPickler {
 public:
  std::string Pickle(const AllocatorSnapshot& snapshot) {
    pickle_.BeginDict();
    pickle_.Key("segments");
    pickle_.BeginList();
    for (const SegmentInfo& segment : snapshot.segments) {
      Segment(segment);
      pickle_.Append();
    }
    pickle_.SetItem();
    pickle_.Key("device_traces");
    pickle_.BeginList();
    for (const std::vector<TraceEntry>& trace : snapshot.traces) {
      pickle_.BeginList();
      for (const TraceEntry& entry : trace) {
        Entry(entry);
        pickle_.Append();
      }
      pickle_.Append();
    }
    pickle_.SetItem();
    pickle_.Key("allocator_settings");
    pickle_.BeginDict();
    Field("PYTORCH_CUDA_ALLOC_CONF", snapshot.settings);
    pickle_.Key("expandable_segments");
    pickle_.Bool(snapshot.expandable_segments);
    pickle_.SetItem();
    pickle_.SetItem();
    return std::move(pickle_).Finish();
  }

 private:
  void Field(absl::string_view key, int64_t value) {
    pickle_.Key(key);
    pickle_.Int(value);
    pickle_.SetItem();
  }
  void Field(absl::string_view key, absl::string_view value) {
    pickle_.Key(key);
    pickle_.String(value);
    pickle_.SetItem();
  }

  void Segment(const SegmentInfo& segment) {
    pickle_.BeginDict();
    Field("device", segment.device);
    Field("address", static_cast<int64_t>(segment.address));
    Field("total_size", static_cast<int64_t>(segment.total_size));
    Field("allocated_size", static_cast<int64_t>(segment.allocated_size));
    Field("active_size", static_cast<int64_t>(segment.active_size));
    Field("requested_size", static_cast<int64_t>(segment.requested_size));
    Field("stream", reinterpret_cast<int64_t>(segment.stream));
    Field("segment_type", segment.is_large ? "large" : "small");
    pickle_.Key("segment_pool_id");
    pickle_.Int(static_cast<int64_t>(segment.owner_private_pool_id.first));
    pickle_.Int(static_cast<int64_t>(segment.owner_private_pool_id.second));
    pickle_.Tuple2();
    pickle_.SetItem();
    pickle_.Key("is_expandable");
    pickle_.Bool(segment.is_expandable);
    pickle_.SetItem();
    Frames(segment.context_when_allocated.get());
    pickle_.Key("blocks");
    pickle_.BeginList();
    size_t address = segment.address;
    for (const BlockInfo& block : segment.blocks) {
      pickle_.BeginDict();
      Field("address", static_cast<int64_t>(address));
      Field("size", static_cast<int64_t>(block.size));
      Field("requested_size", static_cast<int64_t>(block.requested_size));
      Field("state", StateOf(block));
      Frames(block.context_when_allocated.get());
      pickle_.Append();
      address += block.size;
    }
    pickle_.SetItem();
  }

  void Entry(const TraceEntry& entry) {
    pickle_.BeginDict();
    Field("action", NameOf(entry.action_));
    Field(entry.action_ == TraceEntry::OOM ? "device_free" : "addr",
          static_cast<int64_t>(entry.addr_));
    Field("size", static_cast<int64_t>(entry.size_));
    Field("stream", reinterpret_cast<int64_t>(entry.stream_));
    Field("time_us", static_cast<int64_t>(entry.time_.t_));
    Frames(entry.context_.get());
  }

  void Frames(const c10::GatheredContext* gathered) {
    pickle_.Key("frames");
    const auto found = contexts_.find(gathered);
    if (found != contexts_.end()) {
      pickle_.Repeat(found->second);
    } else {
      pickle_.BeginList();
      const auto* const context =
          dynamic_cast<const AllocationContext*>(gathered);
      if (context != nullptr) {
        for (const AllocationContext::Frame& frame : context->frames) {
          pickle_.BeginDict();
          Field("name", frame.name);
          Field("filename", frame.kind);
          Field("line", context->step);
          pickle_.Append();
        }
      }
      contexts_[gathered] = pickle_.Remember();
    }
    pickle_.SetItem();
  }

  PickleWriter pickle_;
  absl::flat_hash_map<const c10::GatheredContext*, uint32_t> contexts_;
};

}  // namespace

std::string PickleSnapshot(const AllocatorSnapshot& snapshot) {
  return SnapshotPickler().Pickle(snapshot);
}

}  // namespace tessera
