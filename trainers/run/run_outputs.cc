#include "trainers/run/run_outputs.h"

#include <cstdio>
#include <string>

#include "absl/memory/memory.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto.h"
#include "framework/checkpoint/checkpoint_directory.h"
#include "framework/observe/observe_config.h"
#include "trainers/build_info.h"
#include "trainers/config/config_loader.h"
#include "trainers/run/evaluation.h"

namespace tessera {
namespace {

nlohmann::ordered_json DeviceJson(const RunPlan& plan) {
  nlohmann::ordered_json json = {{"name", plan.device.name},
                                 {"memory_bytes", plan.device.total_bytes},
                                 {"world_size", plan.world.world_size}};
  if (plan.world.simulated) json["simulated"] = DescribeSimulation(plan.world);
  return json;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunOutputs>> RunOutputs::Open(
    const Session& session, const RunOrigin& origin, RunFolder* folder) {
  const RunPlan& plan = session.plan();
  const std::string config = PrintWithDefaults(plan.config);
  RETURN_IF_ERROR(CreateRunFolder(folder));
  if (plan.world.simulated) {
    // Before the log: without this file the folder would be a real run's.
    RETURN_IF_ERROR(WriteFileAtomically(folder->simulated(),
                                        DescribeSimulation(plan.world) + "\n"));
  }
  ASSIGN_OR_RETURN(const PrunedCheckpoints stale,
                   RemoveStaleTemporaries(folder->checkpoints()));
  for (const std::string& warning : stale.warnings) LogWarning(warning);
  RETURN_IF_ERROR(RemoveTemporarySiblings(folder->config()));
  const RunHeader header{.config_text = config,
                         .config_hash = ConfigHash(plan.config),
                         .build = BuildInfo(),
                         .device = DeviceJson(plan)};
  auto outputs = absl::WrapUnique(new RunOutputs);
  const bool was_begun = FileExists(folder->log());
  if (was_begun) {
    ASSIGN_OR_RETURN(outputs->log_,
                     RunLog::Resume(folder->log(), header, origin.resume));
  } else {
    ASSIGN_OR_RETURN(outputs->log_, RunLog::Create(folder->log(), header));
  }
  if (!origin.init.is_null()) {
    RETURN_IF_ERROR(outputs->log_->Log("init", origin.init));
  }
  // After the log, whose presence marks the folder as a run's (run_folder.h).
  const int64_t step = origin.resume.step;
  if (step < plan.config.training().steps()) {  // else the run is complete
    RETURN_IF_ERROR(WriteFileAtomically(folder->config(), config));
  }
  const ObserveConfig& observe = plan.config.observe();
  // Curves do not say that a run is simulated.
  if (observe.tensorboard() && !plan.world.simulated) {
    ASSIGN_OR_RETURN(outputs->tensorboard_,
                     TensorboardWriter::Create(folder->path));
    if (was_begun) {
      RETURN_IF_ERROR(outputs->tensorboard_->SupersedeFrom(step + 1));
    }
  }
  WarnOfShortData(session);
  const bool bar = WantsProgressBar(observe.progress_bar());
  outputs->console_ = std::make_unique<Console>(stdout, bar ? stderr : nullptr);
  return outputs;
}

std::vector<RunObserver*> RunOutputs::observers() const {
  std::vector<RunObserver*> observers = {console_.get()};
  if (tensorboard_ != nullptr) observers.push_back(tensorboard_.get());
  observers.push_back(log_.get());
  return observers;
}

}  // namespace tessera
