#include "framework/base/exit_code.h"

#include <cstring>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "framework/base/log.h"
#include "framework/base/shorten.h"

namespace tessera {
namespace {

constexpr absl::string_view kSignalPayload = "tessera/signal";
constexpr absl::string_view kQuietPayload = "tessera/quiet";

int CancelledExitCode(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kSignalPayload);
  int signo = 0;
  if (payload.has_value() && absl::SimpleAtoi(std::string(*payload), &signo)) {
    return SignalExitCode(signo);
  }
  return 1;
}

}  // namespace

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kDeadlineExceeded:
      return 2;
    case absl::StatusCode::kResourceExhausted:
      return 3;
    case absl::StatusCode::kUnavailable:
      return kPeerIsGoneExitCode;
    case absl::StatusCode::kCancelled:
      return CancelledExitCode(status);
    default:
      return 1;
  }
}

absl::Status SignalStatus(int signo) {
  absl::Status status = absl::CancelledError(
      absl::StrCat("stopped by signal ", signo, " (", strsignal(signo), ")"));
  status.SetPayload(kSignalPayload, absl::Cord(absl::StrCat(signo)));
  return status;
}

absl::Status QuietStatus(absl::Status status) {
  status.SetPayload(kQuietPayload, absl::Cord());
  return status;
}

int ReportAndExitCode(const absl::Status& status) {
  if (!status.ok() && !status.GetPayload(kQuietPayload).has_value()) {
    LogError(ShortenMessage(status.message()));
  }
  return ExitCode(status);
}

}  // namespace tessera
