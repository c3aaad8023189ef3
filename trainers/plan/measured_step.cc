#include "trainers/plan/measured_step.h"

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto.h"
#include "framework/observe/report/figures.h"
#include "framework/observe/report/run_records.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "trainers/plan/step_rows.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;
using google::protobuf::util::MessageDifferencer;

// The fields that decide what a step computes, defaults written out.
RunConfig StepFields(const RunConfig& given) {
  RunConfig config, fields;
  TESSERA_CHECK(google::protobuf::TextFormat::ParseFromString(
      PrintWithDefaults(given), &config));
  *fields.mutable_model() = config.model();
  *fields.mutable_precision() = config.precision();
  *fields.mutable_attention() = config.attention();
  *fields.mutable_recompute() = config.recompute();
  *fields.mutable_execution() = config.execution();
  *fields.mutable_optimizer() = config.optimizer();
  fields.mutable_optimizer()->clear_schedule();
  *fields.mutable_layout() = config.layout();
  fields.mutable_data()->set_documents(config.data().documents());
  fields.mutable_observe()->set_block_phases(config.observe().block_phases());
  const TrainingConfig& training = config.training();
  fields.mutable_training()->set_batch_size(training.batch_size());
  fields.mutable_training()->set_micro_batches(training.micro_batches());
  fields.mutable_training()->set_deterministic(training.deterministic());
  fields.mutable_training()->set_z_loss(training.z_loss());
  fields.mutable_training()->set_label_smoothing(training.label_smoothing());
  return fields;
}

absl::Status CheckSameConfig(const RunPlan& plan, const RunRecords& run,
                             const std::string& folder) {
  RunConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(
          TextAt(run.header, "config"), &config)) {
    return absl::FailedPreconditionError(
        absl::StrCat("this program cannot read the config in ", folder,
                     "/run.jsonl: another version wrote it"));
  }
  std::string differences;
  MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&differences);
  if (differencer.Compare(StepFields(config), StepFields(plan.config))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      folder, " measured another step than this config's:\n", differences,
      "print the step that was measured with --config=", folder,
      "/config.pbtxt"));
}

absl::Status CheckSameDevice(const RunPlan& plan, const RunRecords& run,
                             const std::string& folder) {
  const std::string was = TextAt(run.header, "device.name");
  const double ranks = NumberAt(run.header, "device.world_size").value_or(0);
  const std::string simulated = TextAt(run.header, "device.simulated");
  if (simulated != DescribeSimulation(plan.world)) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, simulated.empty() ? " is no simulated run" : " simulates ",
        simulated, "; print its step with the same --simulate_world and --rank",
        simulated.empty() ? " removed" : ""));
  }
  if (was == plan.device.name && ranks == plan.world.world_size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(folder, " was measured on ", ranks, " x ", was,
                   ", but this step is planned for ", plan.world.world_size,
                   " x ", plan.device.name,
                   "; --plan_for=GPU plans for a GPU that this machine does "
                   "not have"));
}

// Phase, group and name of an op.
using Key = std::tuple<std::string, std::string, std::string>;

Key KeyOf(const StepRow& row) { return {row.phase, row.group, row.name}; }
Key KeyOf(const Json& op) {
  return {TextAt(op, "phase"), TextAt(op, "part"), TextAt(op, "op")};
}

absl::Status OtherOps(const std::string& folder, const Key& key) {
  const auto& [phase, group, name] = key;
  return absl::FailedPreconditionError(absl::StrCat(
      "the steps traced in ", folder, " and this program's differ in the op ",
      phase, "/", group, group.empty() ? "" : "/", name,
      ": another build traced them; trace again with this one"));
}

}  // namespace

absl::StatusOr<std::vector<StepRow>> MeasuredRowsOfStep(
    const RunPlan& plan, const std::string& folder) {
  ASSIGN_OR_RETURN(const RunRecords run, ReadRunRecords(folder));
  RETURN_IF_ERROR(CheckSameConfig(plan, run, folder));
  RETURN_IF_ERROR(CheckSameDevice(plan, run, folder));
  const Json& ops = ListAt(run.profile, "step.ops");
  if (ops.empty()) {
    return absl::NotFoundError(
        absl::StrCat(folder,
                     " has no traced steps; train with --set "
                     "observe.trace.active=3 for some"));
  }
  if (const double dropped = NumberAt(run.profile, "step.dropped").value_or(0);
      dropped > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the trace in ", folder, " lacks ", dropped,
        " records, so its times are too small; trace fewer steps "
        "(observe.trace.active) or raise observe.trace.max_records"));
  }
  std::vector<StepRow> rows = RowsOfStep(plan);
  std::map<Key, int64_t> runs;
  for (const StepRow& row : rows) runs[KeyOf(row)] += row.count;
  std::map<Key, double> seconds;  // of one run
  for (const Json& op : ops) {
    const Key key = KeyOf(op);
    const double of_step = NumberAt(op, "ms").value_or(0) * 1e-3;
    const auto found = runs.find(key);
    if (found != runs.end()) {
      seconds[key] = of_step / static_cast<double>(found->second);
    } else if (std::get<2>(key).empty()) {
      rows.push_back({.phase = std::get<0>(key),
                      .name = "not in an op",
                      .kind = "none",
                      .seconds = 0,
                      .measured_seconds = of_step});
    } else {
      return OtherOps(folder, key);
    }
  }
  for (StepRow& row : rows) {
    if (row.measured_seconds.has_value()) continue;
    const auto found = seconds.find(KeyOf(row));
    if (found == seconds.end()) return OtherOps(folder, KeyOf(row));
    row.measured_seconds = found->second;
  }
  return rows;
}

}  // namespace tessera
