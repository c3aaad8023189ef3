#include "bench/measure/cell_measurement.h"

#include <iterator>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "bench/measure/measurement.h"
#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/device.h"

namespace tessera {
namespace {

bool IsMade(const Measurement& measurement, const StudyConfig& study) {
  return measurement.record == TrainingStudy::UNSPECIFIED ||
         Records(study, measurement.record);
}

CellFigures Measured(const StudyConfig& study, TrainingCell& cell) {
  nlohmann::ordered_json figures;
  for (const Measurement& measurement : Measurements()) {
    if (!IsMade(measurement, study) || measurement.measure == nullptr) continue;
    RETURN_IF_ERROR(measurement.measure(cell, figures));
  }
  return figures;
}

CellFigures MeasureTrainingCell(const OpenedCell& opened) {
  const StudyConfig& study = opened.study;
  const RunConfig& config = std::get<RunConfig>(opened.config);
  CellNeeds needs;
  for (const Measurement& measurement : Measurements()) {
    if (IsMade(measurement, study)) needs |= measurement.needs;
  }
  CellFigures figures;
  {
    TrainingCell cell(study, config, needs, opened.snapshot_folder);
    figures = Measured(study, cell);
  }
  // The next cell starts with an empty device, also after an error.
  const absl::Status emptied = StatusFromTorch([&] {
    EmptyCache(config.training().device() == TrainingConfig::CUDA ? c10::kCUDA
                                                                  : c10::kCPU);
  });
  RETURN_IF_ERROR(figures.status());
  RETURN_IF_ERROR(emptied);
  return figures;
}

FigureNames TrainingFigures(const Study& study) {
  std::vector<absl::string_view> figures;
  // An axis may change what is recorded.
  std::vector<StudyConfig> cells;
  for (const StudyCell& cell : study.cells) {
    ASSIGN_OR_RETURN(cells.emplace_back(), StudyConfigOf(study, cell));
  }
  for (const Measurement& measurement : Measurements()) {
    if (absl::c_any_of(cells, [&](const StudyConfig& cell) {
          return IsMade(measurement, cell);
        })) {
      figures.insert(figures.end(), measurement.figures.begin(),
                     measurement.figures.end());
    }
  }
  return figures;
}

// A kind of study.
struct CellKind {
  StudyConfig::MeasureCase kind;
  // The names of the figures that some cell of the study has.
  FigureNames (*figures)(const Study& study);
  CellFigures (*measure)(const OpenedCell& cell);
};
constexpr CellKind kKinds[] = {
    {StudyConfig::kTraining, TrainingFigures, MeasureTrainingCell},
    {StudyConfig::kAttention, AttentionFigures, MeasureAttentionCell},
    {StudyConfig::kAccumulation, AccumulationFigures, MeasureAccumulation},
    {StudyConfig::kNormStatistics, NormStatisticsFigures,
     MeasureNormStatistics},
    {StudyConfig::kMemoryFormats, MemoryFormatsFigures, MeasureMemoryFormats},
};

const CellKind& KindOf(const StudyConfig& study) {
  const auto* const kind = absl::c_find_if(kKinds, [&](const CellKind& row) {
    return row.kind == study.measure_case();
  });
  TESSERA_CHECK(kind != std::end(kKinds), "Validate() asks for one");
  return *kind;
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> MeasureCell(const Study& study,
                                                   const StudyCell& cell,
                                                   const std::string& folder) {
  OpenedCell opened;
  ASSIGN_OR_RETURN(opened.study, StudyConfigOf(study, cell));
  ASSIGN_OR_RETURN(opened.config, CellConfigOf(study, cell));
  opened.snapshot_folder = absl::StrCat(
      folder, "/snapshots/", absl::StrReplaceAll(cell.Name(), {{" ", "_"}}));
  return KindOf(study.config).measure(opened);
}

absl::Status CheckFigures(const Study& study) {
  ASSIGN_OR_RETURN(const std::vector<absl::string_view> known,
                   KindOf(study.config).figures(study));
  const auto check = [&](absl::string_view where,
                         absl::string_view path) -> absl::Status {
    const absl::string_view name = path.substr(0, path.find('.'));
    if (absl::c_linear_search(known, name)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        where, " shows the figure '", path, "', but the study records only ",
        absl::StrJoin(known, ", ")));
  };
  for (const StudyTable& table : study.config.table()) {
    const std::string where = absl::StrCat("the table '", table.title(), "'");
    // Columns of a list's table name figures of its elements.
    if (table.has_list()) {
      RETURN_IF_ERROR(check(where, table.list()));
      continue;
    }
    for (const StudyColumn& column : table.column()) {
      RETURN_IF_ERROR(check(where, column.figure()));
      if (column.has_cost()) RETURN_IF_ERROR(check(where, column.cost()));
    }
  }
  for (const StudyPlot& plot : study.config.plot()) {
    const std::string where = absl::StrCat("the chart '", plot.title(), "'");
    RETURN_IF_ERROR(check(where, plot.has_list() ? plot.list() : plot.y()));
    if (plot.has_list()) {
      if (plot.has_limit()) RETURN_IF_ERROR(check(where, plot.limit()));
    } else if (!plot.x_title().empty() && !plot.has_histogram_bin()) {
      RETURN_IF_ERROR(check(where, plot.x()));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
