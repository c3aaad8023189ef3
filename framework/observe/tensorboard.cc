#include "framework/observe/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"
#include "framework/observe/crc32c.h"
#include "framework/observe/tensorboard_event.pb.h"

namespace tessera {
namespace {

void AppendLittleEndian(uint64_t value, int num_bytes, std::string* out) {
  for (int byte = 0; byte < num_bytes; ++byte) {
    out->push_back(static_cast<char>(value >> (8 * byte)));
  }
}

std::string HostName() {
  std::array<char, 256> name = {};
  // Leaves room for a NUL, which gethostname() omits after a long name.
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

constexpr absl::string_view kFilePrefix = "events.out.tfevents.";

// SECONDS of the newest event file in `folder`; 0 if there is none.
absl::StatusOr<int64_t> LastFileSeconds(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(folder));
  int64_t last = 0;
  for (absl::string_view name : names) {
    int64_t seconds;
    if (absl::ConsumePrefix(&name, kFilePrefix) &&
        absl::SimpleAtoi(name.substr(0, name.find('.')), &seconds)) {
      last = std::max(last, seconds);
    }
  }
  return last;
}

}  // namespace

std::string TfRecord(absl::string_view data) {
  std::string record;
  AppendLittleEndian(data.size(), 8, &record);
  AppendLittleEndian(MaskedCrc32c(record), 4, &record);
  absl::StrAppend(&record, data);
  AppendLittleEndian(MaskedCrc32c(data), 4, &record);
  return record;
}

TensorboardWriter::TensorboardWriter(std::string path, int descriptor,
                                     Clock clock)
    : path_(std::move(path)),
      descriptor_(descriptor),
      clock_(std::move(clock)) {}

absl::StatusOr<std::unique_ptr<TensorboardWriter>> TensorboardWriter::Create(
    const std::string& folder, Clock clock) {
  ASSIGN_OR_RETURN(const int64_t last, LastFileSeconds(folder));
  const std::string path = absl::StrFormat(
      "%s/%s%010d.%s.%d", folder, kFilePrefix,
      std::max(absl::ToUnixSeconds(clock()), last + 1), HostName(), getpid());
  const int descriptor = open(
      path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    return SystemError(errno, absl::StrCat("cannot create ", path));
  }
  auto writer = absl::WrapUnique(
      new TensorboardWriter(path, descriptor, std::move(clock)));
  tensorboard::Event version;
  version.set_wall_time(writer->UnixSeconds());
  version.set_file_version("brain.Event:2");
  RETURN_IF_ERROR(writer->Append(version.SerializeAsString()));
  return writer;
}

absl::Status TensorboardWriter::SupersedeFrom(int64_t step) {
  tensorboard::Event event;
  event.set_wall_time(UnixSeconds());
  event.set_step(step);
  event.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  return Append(event.SerializeAsString());
}

absl::Status TensorboardWriter::Write(int64_t step,
                                      absl::Span<const Scalar> scalars) {
  tensorboard::Event event;
  event.set_wall_time(UnixSeconds());
  event.set_step(step);
  for (const Scalar& scalar : scalars) {
    tensorboard::Summary::Value* value = event.mutable_summary()->add_value();
    value->set_tag(scalar.tag);
    value->set_simple_value(static_cast<float>(scalar.value));
  }
  return Append(event.SerializeAsString());
}

absl::Status TensorboardWriter::OnStepLogged(const StepRecord& record) {
  std::vector<Scalar> scalars;
  const auto add = [&](const auto& table) {
    for (const StepField& field : table) {
      if (const auto value = field.read(record)) {
        scalars.push_back({absl::StrCat(field.group, "/", field.name), *value});
      }
    }
  };
  add(kStepFields);
  // Those inside others would be hundreds of curves.
  for (const PhaseTime& phase : record.phases) {
    if (absl::StrContains(phase.path, "/")) continue;
    scalars.push_back({absl::StrCat("phase/", phase.path, "_ms"), phase.ms});
  }
  add(kGpuFields);
  return Write(record.step, scalars);
}

absl::Status TensorboardWriter::OnValidationEnd(const EvalRecord& record) {
  // A chart for each figure, with the sets of data beside each other.
  const std::string of_set =
      record.set == kValidationName ? "" : absl::StrCat("/", record.set);
  std::vector<Scalar> scalars = {{"eval/loss" + of_set, record.loss}};
  if (record.bits_per_byte.has_value()) {
    scalars.push_back({"eval/bits_per_byte" + of_set, *record.bits_per_byte});
  }
  return Write(record.step, scalars);
}

absl::Status TensorboardWriter::Append(absl::string_view event) {
  return WriteAll(descriptor_.fd(), TfRecord(event), path_);
}

double TensorboardWriter::UnixSeconds() const {
  return absl::ToUnixMicros(clock_()) * 1e-6;
}

}  // namespace tessera
