// Times the collectives of ProcessGroup on the ranks of a run.
//
//   launch --nproc=2 --program=comm_bench --beside
//
// Rank 0 prints a line of JSON for each operation, dtype and size: the time of
// a call when calls run back to back, the bandwidth (bytes of the operand over
// time, and the bus's), and what a call costs the host. With --beside, also
// what the collectives cost matrix products beside them. Without a GPU the
// ranks use Gloo.

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "bench/dist/comm_timing.h"
#include "bench/measure/attention_case.h"
#include "bench/measure/timing.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/dist/process_group.h"
#include "framework/dist/world.h"
#include "nlohmann/json.hpp"
#include "trainers/build_info.h"
#include "trainers/program_flags.h"
#include "trainers/rank_errors.h"

ABSL_FLAG(std::vector<std::string>, operations,
          std::vector<std::string>({"all_reduce", "reduce_scatter",
                                    "all_gather", "all_to_all"}),
          "operations to time, separated by commas; also broadcast");
ABSL_FLAG(std::vector<std::string>, dtypes,
          std::vector<std::string>({"BF16", "FP32"}), "BF16, FP32 or both");
ABSL_FLAG(int64_t, min_kib, 1, "smallest operand; each is 4 times the last");
ABSL_FLAG(int64_t, max_kib, 0,
          "largest operand; 0: 4 GiB on a GPU, 1 MiB on a CPU");
ABSL_FLAG(bool, beside, false,
          "also time the collectives beside matrix products; needs a GPU");
ABSL_FLAG(int, products, 40, "with --beside: least number of products");
ABSL_FLAG(int, samples, 7, "number of samples of each time");

namespace tessera {
namespace {

constexpr int64_t kKib = 1024, kMib = 1024 * kKib, kGib = 1024 * kMib;
// Left free on a GPU for the libraries and the products.
constexpr int64_t kReserveBytes = 2 * kGib;

// The tensors of a collective on this rank.
struct Operands {
  at::Tensor whole;
  at::Tensor own;    // this rank's part of `whole`
  at::Tensor other;  // as large as `whole`; undefined if not needed
};

// An operation of ProcessGroup, as the bench calls it. ReduceScatterSum() and
// AllGather() have their shard at its place in the whole.
struct Collective {
  absl::string_view name;  // "all_reduce"
  // Bytes that a link of each rank carries in one direction, in units of the
  // bytes of `whole`, if the operation moves as few as possible. It makes
  // bandwidths of different operations and worlds comparable, as in nccl-tests.
  double (*bus_factor)(int world);
  bool needs_other = false;
  bool sums_in_place = false;
  absl::Status (*call)(ProcessGroup& group, const Operands& operands);
};

double Once(int) { return 1; }
// Each rank already has its own part.
double OtherParts(int world) { return (world - 1.0) / world; }
double OtherPartsTwice(int world) { return 2 * OtherParts(world); }

constexpr Collective kCollectives[] = {
    {.name = "all_reduce",
     .bus_factor = OtherPartsTwice,
     .sums_in_place = true,
     .call = [](ProcessGroup& group,
                const Operands& o) { return group.AllReduceSum(o.whole); }},
    {.name = "reduce_scatter",
     .bus_factor = OtherParts,
     .call =
         [](ProcessGroup& group, const Operands& o) {
           return group.ReduceScatterSum(o.whole, o.own);
         }},
    {.name = "all_gather",
     .bus_factor = OtherParts,
     .call = [](ProcessGroup& group,
                const Operands& o) { return group.AllGather(o.own, o.whole); }},
    {.name = "all_to_all",
     .bus_factor = OtherParts,
     .needs_other = true,
     .call =
         [](ProcessGroup& group, const Operands& o) {
           return group.AllToAll(o.whole, o.other);
         }},
    {.name = "broadcast",
     .bus_factor = Once,
     .call =
         [](ProcessGroup& group, const Operands& o) {
           return group.Broadcast(o.whole, /*root=*/0);
         }},
};

// InvalidArgument lists the names.
absl::StatusOr<const Collective*> FindCollective(absl::string_view name) {
  for (const Collective& collective : kCollectives) {
    if (collective.name == name) return &collective;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no operation '", name, "'; the operations are ",
      absl::StrJoin(kCollectives, ", ", [](std::string* out, const auto& c) {
        absl::StrAppend(out, c.name);
      })));
}

// Operands of at most `bytes` bytes per tensor: as many elements as divide by
// the world, at least one for each rank. Random, but zeros for a sum in place,
// which would grow from call to call.
absl::StatusOr<Operands> MakeOperands(const Collective& collective,
                                      int64_t bytes, at::ScalarType dtype,
                                      c10::Device device,
                                      const ProcessGroup& group) {
  Operands operands;
  RETURN_IF_ERROR(StatusFromTorch([&] {
    const int64_t element = static_cast<int64_t>(c10::elementSize(dtype));
    const int64_t part =
        std::max<int64_t>(1, bytes / element / group.world_size());
    operands.whole = at::zeros({part * group.world_size()},
                               at::TensorOptions(device).dtype(dtype));
    if (!collective.sums_in_place) operands.whole.normal_();
    operands.own = operands.whole.narrow(0, part * group.rank(), part);
    if (collective.needs_other) {
      operands.other = at::empty_like(operands.whole);
    }
  }));
  return operands;
}

struct Options {
  std::vector<const Collective*> operations;
  std::vector<std::pair<std::string, at::ScalarType>> dtypes;
  int64_t min_bytes = 0, max_bytes = 0;
  bool beside = false;
  int products = 0, samples = 0;
};

absl::Status AtLeastOne(absl::string_view flag, int64_t value) {
  if (value >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", value, " must be at least 1"));
}

absl::Status ReadSizes(bool is_cuda, Options* options) {
  const int64_t min_kib = absl::GetFlag(FLAGS_min_kib);
  int64_t max_kib = absl::GetFlag(FLAGS_max_kib);
  if (max_kib == 0) max_kib = (is_cuda ? 4 * kGib : kMib) / kKib;
  RETURN_IF_ERROR(AtLeastOne("min_kib", min_kib));
  if (max_kib < min_kib || max_kib > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max_kib=", max_kib, " must be at least --min_kib=", min_kib,
        " and less than 2^31"));
  }
  options->min_bytes = min_kib * kKib;
  options->max_bytes = max_kib * kKib;
  return absl::OkStatus();
}

absl::StatusOr<Options> OptionsFromFlags(bool is_cuda) {
  Options options = {.beside = absl::GetFlag(FLAGS_beside),
                     .products = absl::GetFlag(FLAGS_products),
                     .samples = absl::GetFlag(FLAGS_samples)};
  for (const std::string& name : absl::GetFlag(FLAGS_operations)) {
    ASSIGN_OR_RETURN(options.operations.emplace_back(), FindCollective(name));
  }
  for (const std::string& name : absl::GetFlag(FLAGS_dtypes)) {
    if (name != "BF16" && name != "FP32") {
      return absl::InvalidArgumentError(absl::StrCat(
          "--dtypes has '", name, "'; the dtypes are BF16 and FP32"));
    }
    options.dtypes.emplace_back(name,
                                name == "BF16" ? at::kBFloat16 : at::kFloat);
  }
  RETURN_IF_ERROR(ReadSizes(is_cuda, &options));
  RETURN_IF_ERROR(AtLeastOne("products", options.products));
  RETURN_IF_ERROR(AtLeastOne("samples", options.samples));
  if (options.beside && !is_cuda) {
    return absl::InvalidArgumentError(
        "--beside needs a GPU, on which two streams run at a time, and this "
        "machine or build has none; remove it");
  }
  return options;
}

// Fewer calls of an operand that takes long.
int CallsPerSample(int64_t bytes) {
  if (bytes <= kMib) return 50;
  return bytes <= 64 * kMib ? 20 : 5;
}

// The bytes that operands may take on every rank.
absl::StatusOr<double> BytesForOperands(const CommBench& bench) {
  if (!bench.device.is_cuda()) return std::numeric_limits<double>::max();
  const double free =
      static_cast<double>(bench.device.free_bytes - kReserveBytes);
  ASSIGN_OR_RETURN(const std::vector<double> least,
                   MaxOverRanks({-free}, bench.group, bench.device.device));
  return -least[0];
}

double GbPerS(double bytes, double ms) { return bytes / ms * 1e-6; }

nlohmann::ordered_json BesideJson(const BesideProducts& beside) {
  return {{"product_ms", ToJson(beside.product_ms)},
          {"product_beside_ms", ToJson(beside.product_beside_ms)},
          {"time_ms", ToJson(beside.ms)},
          {"slow_down", beside.slow_down},
          {"lost_ms", beside.lost_ms}};
}

// Adds the figures of one operation and operand to its record.
absl::Status Measure(const CommBench& bench, const Options& options,
                     const Collective& collective, const Operands& operands,
                     nlohmann::ordered_json* record) {
  const auto call = [&] { return collective.call(*bench.group, operands); };
  const int64_t bytes = static_cast<int64_t>(operands.whole.nbytes());
  ASSIGN_OR_RETURN(const BackToBack times,
                   TimeBackToBack(bench, call, CallsPerSample(bytes)));
  const double gb_per_s = GbPerS(static_cast<double>(bytes), times.ms.median);
  (*record)["bytes"] = bytes;
  (*record)["time_ms"] = ToJson(times.ms);
  (*record)["algorithm_gb_per_s"] = gb_per_s;
  (*record)["bus_gb_per_s"] =
      gb_per_s * collective.bus_factor(bench.group->world_size());
  (*record)["host_us"] = times.host_us;
  if (!options.beside) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      const BesideProducts beside,
      TimeBesideProducts(bench, call, times.ms.median, options.products));
  (*record)["beside"] = BesideJson(beside);
  return absl::OkStatus();
}

// The record of one operation and size.
absl::StatusOr<nlohmann::ordered_json> RecordOf(
    const CommBench& bench, const Options& options,
    const Collective& collective,
    const std::pair<std::string, at::ScalarType>& dtype, int64_t bytes,
    double available_bytes) {
  nlohmann::ordered_json record = {{"side", "ours"},
                                   {"operation", collective.name},
                                   {"dtype", dtype.first},
                                   {"size", bytes},
                                   {"world", bench.group->world_size()},
                                   {"backend", bench.group->backend()},
                                   {"device", bench.device.name},
                                   {"status", "OK"}};
  const int64_t needed = (collective.needs_other ? 2 : 1) * bytes;
  if (static_cast<double>(needed) > available_bytes) {
    record["status"] = "OOM";
    return record;
  }
  const c10::Device device = bench.device.device;
  ASSIGN_OR_RETURN(
      const Operands operands,
      MakeOperands(collective, bytes, dtype.second, device, *bench.group));
  RETURN_IF_ERROR(Measure(bench, options, collective, operands, &record));
  return record;
}

absl::Status TimeAll(const CommBench& bench, const Options& options) {
  ASSIGN_OR_RETURN(const double available_bytes, BytesForOperands(bench));
  for (const Collective* collective : options.operations) {
    for (const auto& dtype : options.dtypes) {
      for (int64_t bytes = options.min_bytes; bytes <= options.max_bytes;
           bytes *= 4) {
        ASSIGN_OR_RETURN(const nlohmann::ordered_json record,
                         RecordOf(bench, options, *collective, dtype, bytes,
                                  available_bytes));
        RETURN_IF_ERROR(
            StatusFromTorch([&] { EmptyCache(bench.device.device); }));
        if (bench.group->rank() == 0) {
          std::cout << record.dump() << std::endl;
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Run(const WorldInfo& world) {
  ASSIGN_OR_RETURN(DeviceInfo device, OpenBenchDevice(CudaDeviceIndex(
                                          world, VisibleCudaDevices())));
  ASSIGN_OR_RETURN(const Options options, OptionsFromFlags(device.is_cuda()));
  if (world.world_size < 2) {
    return absl::InvalidArgumentError(
        "a collective needs at least 2 ranks, and this process is the only "
        "one; start it with launch --nproc=2 --program=comm_bench");
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                   ProcessGroup::Create(world, device.device));
  const CommBench bench = {.device = device,
                           .group = group.get(),
                           .stream = CollectiveStream(device.device),
                           .samples = options.samples};
  RETURN_IF_ERROR(TimeAll(bench, options));
  return group->Finish();
}

absl::Status Main() {
  ASSIGN_OR_RETURN(const WorldInfo world, WorldFromEnvironment());
  if (world.world_size > 1) {
    SetLogPrefix(absl::StrCat("[rank ", world.rank, "] "));
  }
  return ReportOncePerMachine(StatusFromTorchOr([&] { return Run(world); }),
                              world);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgram(
      argc, argv,
      {.usage = "times the collectives between ranks: launch --nproc=2 "
                "--program=comm_bench [--operations=all_reduce,...] "
                "[--beside]",
       .version = tessera::BuildSummary()},
      tessera::Main);
}
