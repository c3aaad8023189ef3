#include "bench/studies/study_config.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "framework/base/field_error.h"
#include "framework/base/file.h"
#include "framework/base/nearest_name.h"
#include "framework/base/proto_override.h"
#include "framework/base/runtime_files.h"
#include "framework/base/shorten.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto.h"
#include "framework/observe/format.h"
#include "trainers/config/config_loader.h"

namespace tessera {
namespace {

std::vector<StudyChoice> ChoicesOf(const StudyAxis& axis) {
  std::vector<StudyChoice> choices(axis.choice().begin(), axis.choice().end());
  for (const std::string& value : axis.value()) {
    StudyChoice choice;
    choice.set_label(value);
    choice.add_set(absl::StrCat(axis.field(), "=", value));
    choices.push_back(std::move(choice));
  }
  return choices;
}

std::vector<std::string> LabelsOf(const StudyAxis& axis) {
  std::vector<std::string> labels;
  for (const StudyChoice& choice : ChoicesOf(axis)) {
    labels.push_back(choice.label());
  }
  return labels;
}

void ValidateAxis(const StudyAxis& axis, bool training, Violations violations) {
  violations.Check(!axis.name().empty(), "name", "is required");
  violations.Check(axis.has_field() == (axis.value_size() > 0), "field",
                   "field and value go together");
  violations.Check((axis.value_size() > 0) != (axis.choice_size() > 0), "value",
                   "give values of one field, or choices");
  const std::vector<std::string> labels = LabelsOf(axis);
  violations.Check(
      std::set<std::string>(labels.begin(), labels.end()).size() ==
          labels.size(),
      "value", "each value and each choice's label must be there only once");
  for (int i = 0; i < axis.choice_size(); ++i) {
    const StudyChoice& choice = axis.choice(i);
    const Violations in = violations.In(absl::StrCat("choice[", i, "]"));
    in.Check(!choice.label().empty(), "label", "is required");
    in.Check(training || choice.config().empty(), "config",
             "only a training study has config files");
  }
}

void ValidateTable(const StudyTable& table, Violations violations) {
  violations.Check(table.column_size() > 0, "column", "is required");
  for (int i = 0; i < table.column_size(); ++i) {
    const Violations in = violations.In(absl::StrCat("column[", i, "]"));
    in.Check(!table.column(i).title().empty(), "title", "is required");
    in.Check(!table.column(i).figure().empty(), "figure", "is required");
    in.Check(table.column(i).digits() >= 0 && table.column(i).digits() <= 9,
             "digits",
             absl::StrCat("must be in [0, 9]; is ", table.column(i).digits()));
  }
}

void ValidatePlot(const StudyPlot& plot, const std::set<std::string>& axes,
                  Violations violations) {
  const auto is_axis = [&](const std::string& name, absl::string_view field) {
    violations.Check(axes.count(name) > 0, field,
                     absl::StrCat("'", name, "' is no axis of this study"));
  };
  if (plot.has_histogram_bin()) {
    violations.Check(plot.histogram_bin() > 0, "histogram_bin",
                     absl::StrCat("must be > 0; is ", plot.histogram_bin()));
  } else if (plot.x_title().empty()) {
    is_axis(plot.x(), "x");
  } else {
    violations.Check(!plot.x().empty(), "x", "is required");
  }
  for (const std::string& name : plot.series()) is_axis(name, "series");
  violations.Check(!plot.y().empty(), "y", "is required");
}

// The cells of a study: every combination, the first axis slowest.
std::vector<StudyCell> CellsOf(const StudyConfig& config) {
  std::vector<StudyCell> cells(1);
  cells[0].configs.assign(config.config().begin(), config.config().end());
  cells[0].overrides.assign(config.set().begin(), config.set().end());
  for (const StudyAxis& axis : config.axis()) {
    std::vector<StudyCell> longer;
    for (const StudyCell& cell : cells) {
      for (const StudyChoice& choice : ChoicesOf(axis)) {
        StudyCell next = cell;
        next.labels.emplace_back(axis.name(), choice.label());
        next.configs.insert(next.configs.end(), choice.config().begin(),
                            choice.config().end());
        for (absl::string_view set : choice.set()) {
          (absl::ConsumePrefix(&set, "study.") ? next.study_overrides
                                               : next.overrides)
              .emplace_back(set);
        }
        longer.push_back(std::move(next));
      }
    }
    cells = std::move(longer);
  }
  return cells;
}

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
  const auto positive = [&](int32_t value, absl::string_view field) {
    violations.Check(value >= 1, field,
                     absl::StrCat("must be >= 1; is ", value));
  };
  positive(cell.batch(), "batch");
  positive(cell.heads(), "heads");
  positive(cell.length(), "length");
  positive(cell.head_dim(), "head_dim");
  positive(cell.search_step(), "search_step");
  violations.Check(cell.search_limit() >= cell.search_step(), "search_limit",
                   absl::StrCat("must be >= search_step, ", cell.search_step(),
                                "; is ", cell.search_limit()));
  violations.Check(cell.attention().backend() != AttentionConfig::UNSPECIFIED &&
                       cell.attention().backend() != AttentionConfig::AUTO,
                   "attention.backend", "must name a backend");
  violations.Check(cell.precision() != AttentionCell::UNSPECIFIED, "precision",
                   "must be FP32, BF16 or FP16");
  if (broken.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(broken[0].path, ": ", broken[0].message));
}

absl::Status CheckCell(const Study& study, const StudyCell& cell) {
  ASSIGN_OR_RETURN(const StudyConfig config, StudyConfigOf(study, cell));
  std::vector<Violation> broken;
  Validate(config, Violations(&broken));
  if (!broken.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("study.", broken[0].path, ": ", broken[0].message));
  }
  switch (study.config.measure_case()) {
    case StudyConfig::kTraining:
      return RunConfigOf(study, cell).status();
    case StudyConfig::kAttention: {
      ASSIGN_OR_RETURN(const AttentionCell config,
                       AttentionCellOf(study, cell));
      return CheckAttentionCell(config);
    }
    case StudyConfig::kAccumulation:
      return AccumulationOf(study, cell).status();
    case StudyConfig::MEASURE_NOT_SET:
      break;
  }
  return absl::OkStatus();
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

std::string StudyCell::Name() const {
  return absl::StrJoin(labels, " ", absl::PairFormatter("="));
}

absl::string_view StudyCell::Label(absl::string_view axis) const {
  for (const auto& [name, label] : labels) {
    if (name == axis) return label;
  }
  return "";
}

void Validate(const StudyConfig& config, Violations violations) {
  violations.Check(!config.title().empty(), "title", "is required");
  violations.Check(config.measure_case() != StudyConfig::MEASURE_NOT_SET,
                   "training",
                   "say what to measure: training, attention or accumulation");
  violations.Check(config.axis_size() > 0, "axis", "is required");
  const bool training = config.has_training();
  violations.Check(training || config.config().empty(), "config",
                   "only a training study has config files");
  std::set<std::string> axes;
  for (int i = 0; i < config.axis_size(); ++i) {
    const StudyAxis& axis = config.axis(i);
    const Violations in = violations.In(absl::StrCat("axis[", i, "]"));
    ValidateAxis(axis, training, in);
    in.Check(axes.insert(axis.name()).second, "name",
             absl::StrCat("another axis is called ", axis.name(), ", too"));
  }
  violations.Check(config.warmup() >= 0, "warmup",
                   absl::StrCat("must be >= 0; is ", config.warmup()));
  violations.Check(config.iterations() >= 1, "iterations",
                   absl::StrCat("must be >= 1; is ", config.iterations()));
  violations.Check(!config.has_time_limit_s() || config.time_limit_s() > 0,
                   "time_limit_s",
                   absl::StrCat("must be > 0; is ", config.time_limit_s()));
  violations.Check(config.min_iterations() >= 1, "min_iterations",
                   absl::StrCat("must be >= 1; is ", config.min_iterations()));
  for (const int record : config.training().record()) {
    if (record != TrainingStudy::FIRST_STEPS &&
        record != TrainingStudy::START_UP) {
      continue;
    }
    violations.Check(config.fresh_processes(), "fresh_processes",
                     absl::StrCat("must be true to record ",
                                  TrainingStudy::Record_Name(record)));
  }
  for (int i = 0; i < config.table_size(); ++i) {
    ValidateTable(config.table(i),
                  violations.In(absl::StrCat("table[", i, "]")));
  }
  for (int i = 0; i < config.plot_size(); ++i) {
    ValidatePlot(config.plot(i), axes,
                 violations.In(absl::StrCat("plot[", i, "]")));
  }
}

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

std::string PrintStudy(const Study& study) {
  return PrintWithDefaults(study.config);
}

absl::StatusOr<Study> ParseStudy(const std::string& text,
                                 const std::string& source) {
  Study study;
  RETURN_IF_ERROR(MergeTextProto(text, source, &study.config).status());
  std::vector<Violation> broken;
  Validate(study.config, Violations(&broken));
  if (!broken.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": ", broken[0].path, ": ", broken[0].message));
  }
  study.cells = CellsOf(study.config);
  return study;
}

absl::StatusOr<std::vector<int>> FilterCells(
    const Study& study, absl::Span<const std::string> filter) {
  std::map<std::string, std::vector<std::string>> axes;
  for (const StudyAxis& axis : study.config.axis()) {
    axes[axis.name()] = LabelsOf(axis);
  }
  std::map<std::string, std::set<std::string>> wanted;
  for (const std::string& part : filter) {
    const std::vector<std::string> sides =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const auto axis = axes.find(sides[0]);
    if (sides.size() != 2 || axis == axes.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--filter=", Shorten(part), ": give AXIS=VALUE,... with AXIS one of ",
          absl::StrJoin(axes, ", ", [](std::string* out, const auto& a) {
            absl::StrAppend(out, a.first);
          })));
    }
    const std::vector<std::string> values = absl::StrSplit(sides[1], ',');
    for (const std::string& value : values) {
      const std::vector<std::string>& labels = axis->second;
      if (std::find(labels.begin(), labels.end(), value) == labels.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--filter: ", axis->first, " has no value ", Shorten(value),
            "; it has ", absl::StrJoin(labels, ", ")));
      }
      wanted[axis->first].insert(value);
    }
  }
  std::vector<int> cells;
  for (size_t i = 0; i < study.cells.size(); ++i) {
    const StudyCell& cell = study.cells[i];
    const bool matches =
        std::all_of(wanted.begin(), wanted.end(), [&](const auto& axis) {
          return axis.second.count(std::string(cell.Label(axis.first))) > 0;
        });
    if (matches) cells.push_back(static_cast<int>(i));
  }
  return cells;
}

absl::StatusOr<RunConfig> RunConfigOf(const Study& study,
                                      const StudyCell& cell) {
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

absl::StatusOr<AttentionCell> AttentionCellOf(const Study& study,
                                              const StudyCell& cell) {
  return Overridden(study.config.attention().cell(), cell.overrides);
}

absl::StatusOr<AccumulationStudy> AccumulationOf(const Study& study,
                                                 const StudyCell& cell) {
  return Overridden(study.config.accumulation(), cell.overrides);
}

absl::StatusOr<std::string> PrintCell(const Study& study,
                                      const StudyCell& cell) {
  if (study.config.has_training()) {
    ASSIGN_OR_RETURN(const RunConfig config, RunConfigOf(study, cell));
    return PrintWithDefaults(config);
  }
  if (study.config.has_attention()) {
    ASSIGN_OR_RETURN(const AttentionCell config, AttentionCellOf(study, cell));
    return PrintWithDefaults(config);
  }
  ASSIGN_OR_RETURN(const AccumulationStudy config, AccumulationOf(study, cell));
  return PrintWithDefaults(config);
}

}  // namespace tessera
