#include "bench/studies/study_config.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "framework/base/shorten.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto.h"

namespace tessera {
namespace {

constexpr char kNoConfigs[] =
    "only studies of training and memory_formats have config files";

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

using LabelsByAxis = std::map<std::string, std::vector<std::string>>;

LabelsByAxis LabelsOf(const StudyConfig& config) {
  LabelsByAxis axes;
  for (const StudyAxis& axis : config.axis()) {
    axes[axis.name()] = LabelsOf(axis);
  }
  return axes;
}

std::string NamesOf(const LabelsByAxis& axes) {
  return absl::StrJoin(axes, ", ", [](std::string* out, const auto& axis) {
    absl::StrAppend(out, axis.first);
  });
}

void ValidateAxis(const StudyAxis& axis, bool has_configs,
                  Violations violations) {
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
    in.Check(has_configs || choice.config().empty(), "config", kNoConfigs);
  }
}

// `relative_to`: that of a column.
void ValidateBase(const std::string& relative_to, const LabelsByAxis& axes,
                  Violations violations) {
  for (const absl::string_view part : absl::StrSplit(relative_to, ',')) {
    const std::vector<std::string> sides =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const auto axis = axes.find(sides[0]);
    const bool is_axis = sides.size() == 2 && axis != axes.end();
    violations.Check(
        is_axis && absl::c_linear_search(axis->second, sides[1]), "relative_to",
        absl::StrCat("'", part, "' is not AXIS=VALUE of this study; ",
                     is_axis ? absl::StrCat(axis->first, " has ",
                                            absl::StrJoin(axis->second, ", "))
                             : absl::StrCat("its axes are ", NamesOf(axes))));
  }
}

void ValidateTable(const StudyTable& table, const LabelsByAxis& axes,
                   Violations violations) {
  violations.Check(table.column_size() > 0, "column", "is required");
  for (int i = 0; i < table.column_size(); ++i) {
    const Violations in = violations.In(absl::StrCat("column[", i, "]"));
    in.Check(!table.column(i).title().empty(), "title", "is required");
    in.Check(!table.column(i).figure().empty(), "figure", "is required");
    in.Check(table.column(i).relative_to().empty() ||
                 table.column(i).spread().empty(),
             "spread",
             "is of the figure, not of a ratio; remove it or relative_to");
    in.Check(table.column(i).digits() >= 0 && table.column(i).digits() <= 9,
             "digits",
             absl::StrCat("must be in [0, 9]; is ", table.column(i).digits()));
    if (table.column(i).has_relative_to()) {
      ValidateBase(table.column(i).relative_to(), axes, in);
    }
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

void ValidateRecords(const StudyConfig& config, Violations violations) {
  const TrainingStudy& training = config.training();
  // Counting makes steps. A process counts once: CUPTI is taken out of it after
  // that, and after a trace.
  const bool counts =
      absl::c_linear_search(training.record(), TrainingStudy::COUNTERS);
  violations.Check(training.call() != TrainingStudy::NO_CALL, "training.call",
                   "must be STEP, FORWARD or FORWARD_BACKWARD");
  for (const int record : training.record()) {
    const std::string& name = TrainingStudy::Record_Name(record);
    const bool begins = record == TrainingStudy::FIRST_STEPS ||
                        record == TrainingStudy::START_UP;
    if (begins || record == TrainingStudy::COUNTERS) {
      violations.Check(config.fresh_processes(), "fresh_processes",
                       absl::StrCat("must be true to record ", name));
    }
    if (begins) {
      violations.Check(!counts, "training.record",
                       absl::StrCat("COUNTERS cannot be recorded with ", name,
                                    "; remove one"));
    } else {
      violations.Check(training.call() == TrainingStudy::STEP, "training.call",
                       absl::StrCat("must be STEP to record ", name));
    }
  }
}

void Validate(const StudyConfig& config, Violations violations) {
  violations.Check(!config.title().empty(), "title", "is required");
  violations.Check(config.measure_case() != StudyConfig::MEASURE_NOT_SET,
                   "training",
                   "say what to measure: training, attention, accumulation, "
                   "memory_formats or norm_statistics");
  violations.Check(config.axis_size() > 0, "axis", "is required");
  const bool has_configs = config.has_training() || config.has_memory_formats();
  violations.Check(has_configs || config.config().empty(), "config",
                   kNoConfigs);
  std::set<std::string> axes;
  for (int i = 0; i < config.axis_size(); ++i) {
    const StudyAxis& axis = config.axis(i);
    const Violations in = violations.In(absl::StrCat("axis[", i, "]"));
    ValidateAxis(axis, has_configs, in);
    in.Check(axes.insert(axis.name()).second, "name",
             absl::StrCat("another axis is called ", axis.name(), ", too"));
  }
  violations.CheckAtLeast(0, config.warmup(), "warmup");
  violations.CheckAtLeast(1, config.iterations(), "iterations");
  violations.Check(!config.has_time_limit_s() || config.time_limit_s() > 0,
                   "time_limit_s",
                   absl::StrCat("must be > 0; is ", config.time_limit_s()));
  violations.CheckAtLeast(1, config.min_iterations(), "min_iterations");
  ValidateRecords(config, violations);
  for (int i = 0; i < config.table_size(); ++i) {
    ValidateTable(config.table(i), LabelsOf(config),
                  violations.In(absl::StrCat("table[", i, "]")));
  }
  for (int i = 0; i < config.plot_size(); ++i) {
    ValidatePlot(config.plot(i), axes,
                 violations.In(absl::StrCat("plot[", i, "]")));
  }
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
  RETURN_IF_ERROR(FirstViolation(broken, absl::StrCat(source, ": ")));
  study.cells = CellsOf(study.config);
  return study;
}

absl::StatusOr<std::vector<int>> FilterCells(
    const Study& study, absl::Span<const std::string> filter) {
  const LabelsByAxis axes = LabelsOf(study.config);
  std::map<std::string, std::set<std::string>> wanted;
  for (const std::string& part : filter) {
    const std::vector<std::string> sides =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const auto axis = axes.find(sides[0]);
    if (sides.size() != 2 || axis == axes.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--filter=", Shorten(part), ": give AXIS=VALUE,... with AXIS one of ",
          NamesOf(axes)));
    }
    const std::vector<std::string>& labels = axis->second;
    const auto is_label = [&labels](const std::string& value) {
      return std::find(labels.begin(), labels.end(), value) != labels.end();
    };
    std::vector<std::string> values = absl::StrSplit(sides[1], ',');
    if (is_label(sides[1])) values = {sides[1]};  // which may have a comma
    for (const std::string& value : values) {
      if (!is_label(value)) {
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

}  // namespace tessera
