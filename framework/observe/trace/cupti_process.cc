#include "framework/observe/trace/cupti_process.h"

#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_status.h"

namespace tessera {
namespace {

void CUPTIAPI FinalizeAtExit(void*, CUpti_CallbackDomain, CUpti_CallbackId,
                             const void* data) {
  const auto* call = static_cast<const CUpti_CallbackData*>(data);
  if (call->callbackSite == CUPTI_API_EXIT) cuptiFinalize();
}

}  // namespace

std::string CuptiError(CUptiResult result, absl::string_view call) {
  const char* text = nullptr;
  if (cuptiGetErrorMessage(result, &text) != CUPTI_SUCCESS) text = "unknown";
  return absl::StrCat(call, ": ", text);
}

// CUPTI may leave only from the exit of a CUDA call (CUPTI's manual,
// cuptiFinalize()).
absl::Status DetachCupti() {
  const auto check = [](CUptiResult result, absl::string_view call) {
    return result == CUPTI_SUCCESS
               ? absl::OkStatus()
               : absl::FailedPreconditionError(absl::StrCat(
                     "CUPTI cannot be detached: ", CuptiError(result, call)));
  };
  CUpti_SubscriberHandle subscriber = nullptr;
  RETURN_IF_ERROR(check(cuptiSubscribe(&subscriber, FinalizeAtExit, nullptr),
                        "cuptiSubscribe"));
  RETURN_IF_ERROR(check(
      cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API,
                          CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020),
      "cuptiEnableCallback"));
  return AsStatus(cudaDeviceSynchronize(), "the device's work under a trace");
}

std::string DemangledSymbol(const char* symbol) {
  int status = 0;
  char* text = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string name = status == 0 ? text : symbol;
  std::free(text);
  return name;
}

}  // namespace tessera
