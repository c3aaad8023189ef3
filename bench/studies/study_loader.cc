#include "bench/studies/study_loader.h"

#include <algorithm>
#include <map>
#include <memory>

#include "absl/algorithm/container.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "framework/base/field_error.h"
#include "framework/base/file.h"
#include "framework/base/proto_override.h"
#include "framework/base/runtime_files.h"
#include "framework/base/shorten.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto.h"
#include "framework/observe/format.h"
#include "trainers/config/config_loader.h"

namespace tessera {
namespace {

template <typename Message>
absl::StatusOr<Message> Overridden(Message message,
                                   const std::vector<std::string>& overrides) {
  for (const std::string& assignment : overrides) {
    RETURN_IF_ERROR(ApplyOverride(assignment, &message).status());
  }
  return message;
}

absl::Status CheckAttentionCell(const AttentionCell& cell) {
  std::vector<Violation> broken;
  const Violations violations(&broken);
  violations.CheckAtLeast(1, cell.batch(), "batch");
  violations.CheckAtLeast(1, cell.heads(), "heads");
  violations.CheckAtLeast(1, cell.length(), "length");
  violations.CheckAtLeast(1, cell.head_dim(), "head_dim");
  violations.CheckAtLeast(1, cell.search_step(), "search_step");
  violations.Check(cell.search_limit() >= cell.search_step(), "search_limit",
                   absl::StrCat("must be >= search_step, ", cell.search_step(),
                                "; is ", cell.search_limit()));
  violations.Check(cell.attention().backend() != AttentionConfig::UNSPECIFIED &&
                       cell.attention().backend() != AttentionConfig::AUTO,
                   "attention.backend", "must name a backend");
  violations.Check(cell.precision() != AttentionCell::UNSPECIFIED, "precision",
                   "must be FP32, BF16 or FP16");
  return FirstViolation(broken);
}

absl::Status CheckCell(const Study& study, const StudyCell& cell) {
  ASSIGN_OR_RETURN(const StudyConfig config, StudyConfigOf(study, cell));
  std::vector<Violation> broken;
  Validate(config, Violations(&broken));
  RETURN_IF_ERROR(FirstViolation(broken, "study."));
  ASSIGN_OR_RETURN(const CellConfig runs, CellConfigOf(study, cell));
  const auto* const attention = std::get_if<AttentionCell>(&runs);
  return attention == nullptr ? absl::OkStatus()
                              : CheckAttentionCell(*attention);
}

// A line for each fault, with the first of the cells that have it.
std::vector<std::string> FaultsOfCells(const Study& study,
                                       const std::string& path) {
  std::vector<std::string> messages;  // in the order of the cells
  std::map<std::string, std::vector<std::string>> cells;  // by message
  for (const StudyCell& cell : study.cells) {
    const absl::Status status = CheckCell(study, cell);
    if (status.ok()) continue;
    // After the first line a missing config's message lists those there are.
    const absl::string_view text = status.message();
    const std::string message(
        absl::IsNotFound(status) ? text.substr(0, text.find('\n')) : text);
    if (cells.count(message) == 0) messages.push_back(message);
    cells[message].push_back(cell.Name());
  }
  std::vector<std::string> faults;
  for (const std::string& message : messages) {
    const size_t others = cells[message].size() - 1;
    faults.push_back(absl::StrCat(
        path, ": ", cells[message][0],
        others > 0 ? absl::StrCat(" and ", FormatCountOf(others, "more cell"))
                   : "",
        ": ", message));
  }
  return faults;
}

absl::StatusOr<std::string> ReadStudy(const std::string& path) {
  std::string file = UserPath(path);
  if (!FileExists(file)) {
    absl::StatusOr<std::string> found = FindRuntimeFile(path);
    if (!found.ok()) {
      return absl::NotFoundError(absl::StrCat(
          "there is no study ", Shorten(path), "; there are configs/studies/",
          absl::StrJoin(ListRuntimeFiles("configs/studies"), ", ")));
    }
    file = *std::move(found);
  }
  return ReadFile(file, kMaxTextProtoBytes);
}

// The files that a study consists of: its own, its base's and so on.
class StudySource {
 public:
  static absl::StatusOr<std::unique_ptr<StudySource>> Read(
      const std::string& path, StudyConfig* config, int depth = 0) {
    ASSIGN_OR_RETURN(const std::string text, ReadStudy(path));
    StudyConfig own;
    ASSIGN_OR_RETURN(TextProtoLocations places,
                     MergeTextProto(text, Shorten(path), &own));
    auto source = absl::WrapUnique(new StudySource(std::move(places)));
    if (own.has_base()) {
      const absl::Status read = source->ReadBase(path, own, config, depth);
      if (!read.ok()) {
        return WithPlace(FieldError("base", read),
                         [&](absl::string_view field) {
                           return source->own_.Describe(field);
                         });
      }
    }
    auto axes = config->axis();
    source->own_axes_.assign(axes.size(), -1);
    for (int i = 0; i < own.axis_size(); ++i) {
      const auto same = absl::c_find_if(axes, [&](const StudyAxis& axis) {
        return source->base_ != nullptr && axis.name() == own.axis(i).name();
      });
      const size_t place = same - axes.begin();
      if (same == axes.end()) {
        *axes.Add() = own.axis(i);
        source->own_axes_.push_back(i);
      } else {
        *same = own.axis(i);
        source->own_axes_[place] = i;
      }
    }
    RETURN_IF_ERROR(MergeTextProto(text, Shorten(path), config).status());
    *config->mutable_axis() = std::move(axes);
    config->clear_base();
    return source;
  }

  // "FILE:line:column" of a field, as TextProtoLocations::Describe().
  std::string Describe(const std::string& path) const {
    absl::string_view rest = path;
    int axis = -1;
    if (!absl::ConsumePrefix(&rest, "axis[") ||
        !absl::SimpleAtoi(rest.substr(0, rest.find(']')), &axis)) {
      return base_ == nullptr || own_.Has(path) ? own_.Describe(path)
                                                : base_->Describe(path);
    }
    const int own = own_axes_[axis];
    if (own < 0) return base_->Describe(path);
    return own_.Describe(
        absl::StrCat("axis[", own, rest.substr(rest.find(']'))));
  }

 private:
  explicit StudySource(TextProtoLocations own) : own_(std::move(own)) {}

  absl::Status ReadBase(const std::string& path, const StudyConfig& own,
                        StudyConfig* config, int depth) {
    constexpr int kMaxDepth = 8;
    if (depth == kMaxDepth) {
      return absl::InvalidArgumentError(absl::StrCat(
          "is the ", kMaxDepth, "th in a row; is a study its own base?"));
    }
    ASSIGN_OR_RETURN(const std::string base, PathNamedIn(path, own.base()));
    ASSIGN_OR_RETURN(base_, Read(base, config, depth + 1));
    return absl::OkStatus();
  }

  const TextProtoLocations own_;
  std::unique_ptr<StudySource> base_;
  // By axis of the study: which of its own file it is; -1: the base's.
  std::vector<int> own_axes_;
};

}  // namespace

absl::StatusOr<Study> LoadStudy(const std::string& path) {
  Study study;
  study.name = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  study.name = std::string(absl::StripSuffix(study.name, ".pbtxt"));
  ASSIGN_OR_RETURN(const auto source, StudySource::Read(path, &study.config));
  std::vector<Violation> violations;
  Validate(study.config, Violations(&violations));
  std::vector<std::string> faults;
  for (const Violation& violation : violations) {
    faults.push_back(absl::StrCat(source->Describe(violation.path), ": ",
                                  violation.path, ": ", violation.message));
  }
  if (faults.empty()) {
    study.cells = CellsOf(study.config);
    faults = FaultsOfCells(study, Shorten(path));
  }
  if (faults.empty()) return study;
  constexpr size_t kMaxFaults = 10;
  const size_t more = faults.size() - std::min(faults.size(), kMaxFaults);
  faults.resize(faults.size() - more);
  if (more > 0) faults.push_back(absl::StrCat("and ", more, " more like it"));
  return absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
}

absl::StatusOr<CellConfig> CellConfigOf(const Study& study,
                                        const StudyCell& cell) {
  if (study.config.has_attention()) {
    return Overridden(study.config.attention().cell(), cell.overrides);
  }
  if (study.config.has_accumulation()) {
    return Overridden(study.config.accumulation(), cell.overrides);
  }
  if (study.config.has_norm_statistics()) {
    return Overridden(study.config.norm_statistics(), cell.overrides);
  }
  // Cells do not evaluate, so their memory plans must not count it.
  std::vector<std::string> overrides = {"data={synthetic {}}",
                                        "training.eval_batches=0"};
  overrides.insert(overrides.end(), cell.overrides.begin(),
                   cell.overrides.end());
  return LoadRunConfig(cell.configs, overrides);
}

absl::StatusOr<StudyConfig> StudyConfigOf(const Study& study,
                                          const StudyCell& cell) {
  return Overridden(study.config, cell.study_overrides);
}

absl::StatusOr<std::string> PrintCell(const Study& study,
                                      const StudyCell& cell) {
  ASSIGN_OR_RETURN(const CellConfig config, CellConfigOf(study, cell));
  return std::visit(
      [](const auto& message) { return PrintWithDefaults(message); }, config);
}

}  // namespace tessera
