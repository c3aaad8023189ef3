#include "framework/base/torch_status.h"

#include <exception>
#include <new>
#include <string>
#include <utility>

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

// LibTorch's host allocator throws this without an exception type of its own.
constexpr absl::string_view kCpuOutOfMemory =
    "DefaultCPUAllocator: can't allocate memory";

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
    if (absl::StrContains(what, kCpuOutOfMemory)) {
      return absl::ResourceExhaustedError(what);
    }
    return absl::InternalError(absl::StrCat("LibTorch: ", what));
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
