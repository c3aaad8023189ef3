#ifndef BENCH_MEASURE_INSTRUMENT_COST_H_
#define BENCH_MEASURE_INSTRUMENT_COST_H_

#include "absl/status/statusor.h"
#include "bench/studies/study_config.pb.h"
#include "nlohmann/json.hpp"
#include "trainers/run/session.h"

namespace tessera {

// What the instruments of the session's config cost. Rounds without and with
// them alternate, in one process and over the same weights. A round is like a
// run: instruments and step are made, study.warmup() steps are not timed,
// study.iterations() are, and a record is logged. As in a run, the clock stands
// still while a record or a trace is written. Figures:
//   before_ms     a step, before the process had any instrument
//   without_ms    a step of the rounds without
//   with_ms       a step of the rounds with; each {mean, std, median, min, max}
//   cost_pct      by how much a round with is slower than the rounds without
//                 before and after it, median
//   record_ms     adding the instruments' figures to a record, median
//   logged_cost_pct   cost_pct, and record_ms in every observe.log_every_steps
//                     steps
absl::StatusOr<nlohmann::ordered_json> MeasureInstrumentCost(
    Session& session, const StudyConfig& study);

}  // namespace tessera

#endif  // BENCH_MEASURE_INSTRUMENT_COST_H_
