#include "framework/dist/c10d_backend.h"

#include <cstdlib>
#include <memory>
#include <regex>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "c10/core/DeviceGuard.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"
#ifdef USE_C10D_NCCL
#include "torch/csrc/distributed/c10d/NCCLUtils.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
#endif

namespace tessera {
namespace {

using Backend = c10::intrusive_ptr<c10d::Backend>;
using Store = c10::intrusive_ptr<c10d::Store>;

std::shared_ptr<gloo::transport::Device> GlooDevice(const WorldInfo& world) {
  const bool one_machine = world.local_world_size == world.world_size ||
                           IsLoopback(world.master_addr);
  if (one_machine) {
    return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  }
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

// Among which ranks a backend is, and which of them this one is.
struct Place {
  int rank = 0, ranks = 1;
};

Backend ConnectGloo(const WorldInfo& world, const Place& place,
                    const Store& store, absl::Duration timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(
      absl::ToChronoMilliseconds(timeout));
  options->devices.push_back(GlooDevice(world));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, place.rank,
                                                     place.ranks, options);
}

#ifdef USE_C10D_NCCL
Backend ConnectNccl(const Place& place, at::Device device, const Store& store,
                    absl::Duration timeout, bool copy_engines) {
  const c10::DeviceGuard guard(device);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = absl::ToChronoMilliseconds(timeout);
  if (copy_engines) options->config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      store, place.rank, place.ranks, options);
  // Connect now and not in the first collective, which may be under CUDA graph
  // capture; problems of the GPUs are then reported before step 0.
  backend->eagerConnectSingleDevice(device);
  return backend;
}
#endif

absl::StatusOr<Backend> Connect(const WorldInfo& world, const Place& place,
                                at::Device device, const Store& store,
                                absl::Duration timeout, bool copy_engines) {
  if (device.is_cpu()) return ConnectGloo(world, place, store, timeout);
#ifdef USE_C10D_NCCL
  if (device.is_cuda() && device.has_index()) {
    return ConnectNccl(place, device, store, timeout, copy_engines);
  }
  constexpr absl::string_view kSupported = "cpu, or cuda with an index";
#else
  constexpr absl::string_view kSupported =
      "cpu in this build; build with --config=cuda for GPUs";
#endif
  return absl::InvalidArgumentError(
      absl::StrCat("no process group for device ", device.str(),
                   "; supported are ", kSupported));
}

}  // namespace

absl::StatusOr<Backend> ConnectBackend(const WorldInfo& world,
                                       const std::vector<int>& ranks,
                                       const std::string& part,
                                       at::Device device, const Store& store,
                                       absl::Duration timeout,
                                       bool copy_engines) {
  const Place place = {
      .rank = static_cast<int>(absl::c_find(ranks, world.rank) - ranks.begin()),
      .ranks = static_cast<int>(ranks.size())};
  Backend backend;
  RETURN_IF_ERROR(StatusFromTorchOr([&]() -> absl::Status {
    // A key prefix for each, because the backends choose their keys freely.
    ASSIGN_OR_RETURN(backend,
                     Connect(world, place, device,
                             c10::make_intrusive<c10d::PrefixStore>(
                                 absl::StrCat(part, "/", ranks.front()), store),
                             timeout, copy_engines));
    return absl::OkStatus();
  }));
  return backend;
}

std::string LibraryOf(at::Device device) {
#ifdef USE_C10D_NCCL
  if (device.is_cuda()) return absl::StrCat("NCCL ", c10d::getNcclVersion());
#endif
  return "Gloo";
}

std::string ReasonOf(const absl::Status& status) {
  const std::string message(status.message());
  const std::regex in_brackets(R"(\[[^\]\s]*/[^\]\s]*:\d+\] )");
  const std::regex in_text(R"( in: \S*/\S*:\d+, )");
  return std::regex_replace(std::regex_replace(message, in_brackets, ""),
                            in_text, ": ");
}

}  // namespace tessera
