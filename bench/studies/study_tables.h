#ifndef BENCH_STUDIES_STUDY_TABLES_H_
#define BENCH_STUDIES_STUDY_TABLES_H_

#include <map>
#include <string>
#include <vector>

#include "bench/studies/study_config.h"
#include "framework/observe/report/html_page.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The record of each cell that has run, by StudyCell::Name().
using CellRecords = std::map<std::string, const nlohmann::ordered_json*>;
CellRecords RecordsOf(const Study& study,
                      const std::vector<nlohmann::ordered_json>& records);

// The study's tables: a line for each cell that has run, or for each element of
// a list.
std::vector<HtmlTable> StudyTables(const Study& study,
                                   const CellRecords& records);

// The study's charts. At most eight lines are in a chart: the first axes of
// StudyPlot.series are its lines, and there is a chart for each combination of
// the other axes. Of cells that differ only in axes that the plot does not
// name, the first is shown, except where x is a figure. A chart without points
// is left out. Then the timelines of memory that the cells recorded.
std::vector<Chart> StudyCharts(const Study& study, const CellRecords& records);

}  // namespace tessera

#endif  // BENCH_STUDIES_STUDY_TABLES_H_
