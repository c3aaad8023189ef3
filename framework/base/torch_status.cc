#include "framework/base/torch_status.h"

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "c10/util/Exception.h"

namespace tessera {
namespace {

class StatusException : public std::exception {
 public:
  explicit StatusException(absl::Status status)
      : status_(std::move(status)), what_(status_.ToString()) {}
  const char* what() const noexcept override { return what_.c_str(); }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
  std::string what_;
};

// Parts of the messages of an allocation that failed, for which LibTorch throws
// no exception of its own type: its host allocator; cuBLAS, cuSOLVER and cuDNN;
// the driver and NCCL. If a GPU has too little memory for cuBLAS's handle,
// cublasCreate() says that it is not initialized.
constexpr absl::string_view kOutOfMemory[] = {
    "DefaultCPUAllocator: can't allocate memory",
    "STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate",
    "out of memory",
};

// cudaErrorMemoryAllocation.
constexpr int32_t kCudaOutOfMemory = 2;

bool IsOutOfMemory(const c10::Error& error) {
  const auto* const of_device =
      dynamic_cast<const c10::AcceleratorError*>(&error);
  if (of_device != nullptr) {
    return of_device->get_error_code() == kCudaOutOfMemory;
  }
  return absl::c_any_of(kOutOfMemory, [&](absl::string_view part) {
    return absl::StrContains(error.what_without_backtrace(), part);
  });
}

// Drops the "Exception raised from ..." and stack that LibTorch appends.
std::string FirstLine(absl::string_view message) {
  return std::string(message.substr(0, message.find('\n')));
}

}  // namespace

absl::Status StatusFromTorchOr(absl::FunctionRef<absl::Status()> fn) {
  try {
    return fn();
  } catch (const StatusException& error) {
    return error.status();
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string what = FirstLine(error.what_without_backtrace());
    return IsOutOfMemory(error)
               ? absl::ResourceExhaustedError(what)
               : absl::InternalError(absl::StrCat("LibTorch: ", what));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the host is out of memory");
  } catch (const std::exception& error) {
    return absl::InternalError(FirstLine(error.what()));
  }
}

absl::Status StatusFromTorch(absl::FunctionRef<void()> fn) {
  return StatusFromTorchOr([fn] {
    fn();
    return absl::OkStatus();
  });
}

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw StatusException(status);
}

}  // namespace tessera
