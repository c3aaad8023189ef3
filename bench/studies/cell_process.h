#ifndef BENCH_STUDIES_CELL_PROCESS_H_
#define BENCH_STUDIES_CELL_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/studies/study_config.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Cells run in processes of their own, so that a crash in one loses no other.
// The worker is this program again; it reports each record as a line of JSON on
// a pipe: {"cell": 3} when it begins one, {"cell": 3, "status": "OK", ...} when
// it is done.

// Measures `cells` (numbers of study.cells), in order, in workers: in one until
// it dies, or in one for each cell. A worker that dies in a cell makes it
// CRASHED, with the signal or exit code. `done` receives each record, and its
// error ends the study, as does a stop signal (`stopped` becomes not 0).
// `arguments` start a worker: this program's path and its flags; the worker
// gets --worker_cells and --worker_pipe besides.
absl::Status RunCells(
    const Study& study, const std::vector<int>& cells,
    const std::vector<std::string>& arguments, absl::FunctionRef<int()> stopped,
    absl::FunctionRef<absl::Status(int cell, const nlohmann::ordered_json&)>
        done);

// A worker's main(): measures and reports. Files of cells go into the study's
// `folder`.
absl::Status WorkOnCells(const Study& study, const std::vector<int>& cells,
                         const std::string& folder, int pipe);

}  // namespace tessera

#endif  // BENCH_STUDIES_CELL_PROCESS_H_
