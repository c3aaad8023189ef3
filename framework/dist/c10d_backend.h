#ifndef FRAMEWORK_DIST_C10D_BACKEND_H_
#define FRAMEWORK_DIST_C10D_BACKEND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "c10/core/Device.h"
#include "framework/dist/world.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace tessera {

// Connects `ranks`, of which this one is a member: with NCCL for a CUDA device
// (which must have an index), with Gloo for the CPU. Each rank is a member of
// one such part of the world by the name `part`. Gloo uses 127.0.0.1 if all
// ranks are on one machine, otherwise the interface in GLOO_SOCKET_IFNAME or
// that of the host name.
//
// `timeout` limits each collective operation. With `copy_engines`, those move
// what is gathered and exchanged, if it is in memory that the backend knows
// (CopyEngineMemory). InvalidArgument for another kind of device, or one that
// this build has no backend for.
absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> ConnectBackend(
    const WorldInfo& world, const std::vector<int>& ranks,
    const std::string& part, at::Device device,
    const c10::intrusive_ptr<c10d::Store>& store, absl::Duration timeout,
    bool copy_engines = false);

// The library behind the backend of a device: "NCCL 2.28.9", as it was loaded,
// or "Gloo".
std::string LibraryOf(at::Device device);

// The reason for a failure of a backend, without the places in the sources of
// Gloo and NCCL's wrapper that it names: "[/gloo/pair.cc:547] Connection
// closed" and "NCCL error in: /c10d/NCCLUtils.cpp:77, remote process exited".
std::string ReasonOf(const absl::Status& status);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_C10D_BACKEND_H_
