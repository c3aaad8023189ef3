// Trains a transformer language model from a config:
//   bazel run //trainers:train -- --config=configs/2.7B_bf16.pbtxt

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/device_spec.h"
#include "framework/dist/process_group.h"
#include "trainers/build_info.h"
#include "trainers/config/config_flags.h"
#include "trainers/plan/dry_run.h"
#include "trainers/plan/layout_planner.h"
#include "trainers/plan/measured_step.h"
#include "trainers/plan/step_rows.h"
#include "trainers/plan/what_fits.h"
#include "trainers/program_flags.h"
#include "trainers/rank_errors.h"
#include "trainers/resume_command.h"
#include "trainers/run/checkpoint_agreement.h"
#include "trainers/run/instruments.h"
#include "trainers/run/numbers_of_ranks.h"
#include "trainers/run/start_check.h"
#include "trainers/run/trainer.h"
#include "xxhash.h"

ABSL_FLAG(std::string, out, "",
          "folder of the run; default: runs/CONFIG-DATE-TIME");
ABSL_FLAG(std::string, resume, "auto",
          "auto: resume from the newest checkpoint in --out, if there is one; "
          "never: refuse a folder that holds a run; else a checkpoint or run "
          "folder to resume from");
ABSL_FLAG(bool, print_config, false,
          "print the resolved config, defaults included, and exit");
ABSL_FLAG(bool, dry_run, false,
          "print device, parameters, memory, backend and cost of a step, and "
          "what else fits on the device, check that the run can start, and "
          "exit without doing a step");
ABSL_FLAG(bool, print_step, false,
          "print every op of a step with its shape, kernel and cost, and exit "
          "without doing one");
ABSL_FLAG(std::string, measured, "",
          "with --print_step: the folder of a run of the same step that traced "
          "some (observe.trace); adds the time that each op took");
ABSL_FLAG(bool, json, false,
          "print the output of --dry_run or --print_step as JSON; with both, "
          "the step is the field step");
ABSL_FLAG(std::string, plan_for, "",
          "with --dry_run or --print_step: plan for this GPU, such as H200 or "
          "4090, which need not be present; checks neither data nor "
          "checkpoints");
ABSL_FLAG(std::string, plan_layouts, "",
          "a file with GPUs and links, such as configs/cluster/two_h100.pbtxt: "
          "print which layouts fit there, and how long a step would take, and "
          "exit without doing one");
ABSL_FLAG(int, simulate_world, 0,
          "run one rank of a run with this many ranks, without the others: its "
          "memory, and its step's time without communication. Writes no "
          "checkpoint. 0: a real run");
ABSL_FLAG(std::optional<int>, rank, std::nullopt,
          "with --simulate_world: the rank to run; default: 0");
ABSL_FLAG(bool, build_info, false, "print what this program was built from");

namespace tessera {
namespace {

// The run's folder. Without --out its name has the time at which it began.
std::string OutFolder(const WorldInfo& world, absl::Time begin = absl::Now()) {
  if (const std::string out = absl::GetFlag(FLAGS_out); !out.empty()) {
    return UserPath(out);
  }
  return UserPath(absl::StrCat(
      "runs/", ConfigNameFromFlags(), world.simulated ? "-simulated-" : "-",
      absl::FormatTime("%Y%m%d-%H%M%S", begin, absl::LocalTimeZone())));
}

// OutFolder() by the first rank's clock: all ranks write into one folder.
absl::StatusOr<std::string> AgreedOutFolder(const RunPlan& plan,
                                            ProcessGroup* group) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> seconds,
                   NumbersOfRanks(absl::ToUnixSeconds(absl::Now()),
                                  plan.device.device, group));
  return OutFolder(plan.world, absl::FromUnixSeconds(seconds[0]));
}

absl::StatusOr<WorldInfo> WorldFromFlags() {
  const int ranks = absl::GetFlag(FLAGS_simulate_world);
  const std::optional<int> rank = absl::GetFlag(FLAGS_rank);
  if (ranks == 0) {
    if (!rank.has_value()) return WorldFromEnvironment();
    return absl::InvalidArgumentError(
        absl::StrCat("--rank=", *rank,
                     " is for --simulate_world: add it, or remove --rank"));
  }
  ASSIGN_OR_RETURN(const WorldInfo world,
                   SimulatedWorld(ranks, rank.value_or(0)));
  if (const std::string resume = absl::GetFlag(FLAGS_resume);
      resume != "auto" && resume != "never") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--resume=", resume,
        ": a simulated run starts at step 0; remove --resume, or set "
        "checkpoint.init_from to start from weights"));
  }
  if (const std::string out = OutFolder(world); FileExists(out)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "--out: ", out,
        " exists, but a simulated run needs a new folder; choose another"));
  }
  return world;
}

// A launcher that restarts a run repeats its command. Without --out, that would
// begin again in a new folder.
absl::Status CheckCanRestart(const WorldInfo& world) {
  if (world.restart_count == 0 || !absl::GetFlag(FLAGS_out).empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      world.source, " has restarted this run (restart ", world.restart_count,
      "), but --out is not set, so it would begin again in a new folder; set "
      "--out to the run's folder, and it resumes from the newest checkpoint"));
}

// Logs how to resume a run that a signal has stopped.
void LogHowToResume(const Trainer& trainer, const std::string& out,
                    const WorldInfo& world) {
  std::vector<std::string> arguments = ProcessArguments();
  if (arguments.empty()) return;
  const std::string prefix = CommandPrefix(arguments[0], "//trainers:train");
  // torchrun and Slurm do not pass on their command lines.
  const bool launched_elsewhere =
      world.world_size > 1 && world.source != "launch";
  arguments.erase(arguments.begin());
  LogInfo(absl::StrCat("saved ", trainer.newest_checkpoint(), "\nresume with",
                       launched_elsewhere ? " the same launcher: " : ": ",
                       ResumeCommand(prefix, arguments, out)));
}

absl::Status Train(RunPlan plan) {
  const WorldInfo world = plan.world;
  // Before a rank verifies its share of a checkpoint, which may take long.
  ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group, ConnectRanks(plan));
  ASSIGN_OR_RETURN(const std::string out, AgreedOutFolder(plan, group.get()));
  // Ranks that write a checkpoint together would wait for each other forever.
  RETURN_IF_ERROR(
      group->AgreeOn(absl::StrCat("the run's folder (--out, here ", out, ")"),
                     XXH3_64bits(out.data(), out.size())));
  ASSIGN_OR_RETURN(
      RunFolder folder,
      OpenRunFolder(out, absl::GetFlag(FLAGS_resume),
                    /*writes=*/plan.is_writer(), VerifiedShareOf(plan.world)));
  RETURN_IF_ERROR(OpenInitialWeights(plan.config.checkpoint(), &folder));
  RETURN_IF_ERROR(AgreeOnCheckpoints(group.get(), plan.device.device, &folder));
  Instruments instruments(plan, out);
  SessionOptions options{.phases = instruments.phases(),
                         .progress = ConsoleProgress()};
  if (folder.resume_from != nullptr) {
    options.products =
        folder.resume_from->state().value(kProductsState, nlohmann::json());
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                   Session::Create(std::move(plan), std::move(group), options));
  ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                   Trainer::Create(std::move(session), std::move(folder),
                                   {.instruments = &instruments}));
  const absl::Status status = trainer->Run();
  if (absl::IsCancelled(status) && world.rank == 0 && !world.simulated) {
    LogHowToResume(*trainer, out, world);
  }
  return status;
}

absl::StatusOr<RunPlan> PlanFromFlags(RunConfig config,
                                      const WorldInfo& world) {
  const bool trains =
      !absl::GetFlag(FLAGS_dry_run) && !absl::GetFlag(FLAGS_print_step);
  const std::string gpu = absl::GetFlag(FLAGS_plan_for);
  if (gpu.empty()) {
    return trains ? PlanRun(config, world) : PlanWithoutFit(config, world);
  }
  const absl::StatusOr<DeviceInfo> device = DeviceToPlanFor(gpu);
  if (!device.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--plan_for: ", device.status().message()));
  }
  if (trains) {
    return absl::InvalidArgumentError(
        absl::StrCat("--plan_for=", gpu,
                     " does not train: add --dry_run or --print_step, "
                     "or remove it"));
  }
  config.mutable_training()->set_device(TrainingConfig::CUDA);
  return PlanWithoutFit(config, world, *device);
}

// What --print_step prints.
absl::StatusOr<std::vector<StepRow>> StepRowsFromFlags(const RunPlan& plan) {
  const std::string run = absl::GetFlag(FLAGS_measured);
  if (run.empty()) return FoldBlocks(RowsOfStep(plan));
  ASSIGN_OR_RETURN(const std::vector<StepRow> rows,
                   MeasuredRowsOfStep(plan, UserPath(run)));
  return FoldBlocks(rows);
}

absl::Status PrintPlanAsJson(const RunPlan& plan) {
  nlohmann::ordered_json printed;
  if (absl::GetFlag(FLAGS_dry_run)) {
    printed = DryRunToJson(plan, FindWhatFits(plan));
  }
  if (absl::GetFlag(FLAGS_print_step)) {
    ASSIGN_OR_RETURN(const std::vector<StepRow> rows, StepRowsFromFlags(plan));
    nlohmann::ordered_json step = StepToJson(rows);
    const std::string simulation = DescribeSimulation(plan.world);
    if (!simulation.empty()) {
      for (auto& row : step) row["simulated"] = simulation;
    }
    // A program reads one value.
    (printed.is_null() ? printed : printed["step"]) = std::move(step);
  }
  absl::PrintF("%s\n", printed.dump(2));
  return absl::OkStatus();
}

absl::Status PrintPlan(const RunPlan& plan) {
  if (absl::GetFlag(FLAGS_json)) return PrintPlanAsJson(plan);
  if (absl::GetFlag(FLAGS_dry_run)) {
    absl::PrintF("%s", FormatDryRun(plan, FindWhatFits(plan)));
  }
  if (!absl::GetFlag(FLAGS_print_step)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<StepRow> rows, StepRowsFromFlags(plan));
  const std::string simulation = DescribeSimulation(plan.world);
  if (!simulation.empty()) absl::PrintF("simulated   %s\n", simulation);
  absl::PrintF("%s", FormatStep(rows));
  return absl::OkStatus();
}

// What --dry_run has found out about a plan.
absl::Status CheckPlan(const RunPlan& plan) {
  RETURN_IF_ERROR(CheckFits(plan));
  // Another machine may have other files.
  const bool elsewhere = !absl::GetFlag(FLAGS_plan_for).empty();
  if (!absl::GetFlag(FLAGS_dry_run) || elsewhere) return absl::OkStatus();
  return CheckCanStart(plan, OutFolder(plan.world),
                       absl::GetFlag(FLAGS_resume));
}

// --plan_layouts.
absl::Status PlanForCluster(const RunConfig& config) {
  if (absl::GetFlag(FLAGS_dry_run) || absl::GetFlag(FLAGS_print_step) ||
      absl::GetFlag(FLAGS_json) || !absl::GetFlag(FLAGS_plan_for).empty() ||
      absl::GetFlag(FLAGS_simulate_world) != 0) {
    return absl::InvalidArgumentError(
        "--plan_layouts goes with none of --dry_run, --print_step, --json, "
        "--plan_for and --simulate_world: remove one");
  }
  ASSIGN_OR_RETURN(const ClusterConfig cluster,
                   ReadCluster(absl::GetFlag(FLAGS_plan_layouts)));
  ASSIGN_OR_RETURN(const LayoutPlans plans, PlanLayouts(config, cluster));
  absl::PrintF("%s", FormatLayouts(plans));
  std::fflush(stdout);  // the table comes before the error, also in a file
  return CheckAnyFits(plans);
}

absl::Status CheckFlagsGoTogether() {
  const bool prints_step = absl::GetFlag(FLAGS_print_step);
  const bool prints_plan = absl::GetFlag(FLAGS_dry_run) || prints_step;
  if (absl::GetFlag(FLAGS_print_config) &&
      (prints_plan || absl::GetFlag(FLAGS_json) ||
       !absl::GetFlag(FLAGS_plan_for).empty() ||
       !absl::GetFlag(FLAGS_plan_layouts).empty())) {
    return absl::InvalidArgumentError(
        "--print_config goes with none of --dry_run, --print_step, --json, "
        "--plan_for and --plan_layouts: remove one");
  }
  if (!absl::GetFlag(FLAGS_measured).empty() && !prints_step) {
    return absl::InvalidArgumentError(
        "--measured is for --print_step: add it, or remove --measured");
  }
  if (absl::GetFlag(FLAGS_json) && !prints_plan &&
      absl::GetFlag(FLAGS_plan_layouts).empty()) {
    return absl::InvalidArgumentError(
        "--json is for --dry_run and --print_step: add one, or remove --json");
  }
  return absl::OkStatus();
}

absl::Status Run() {
  if (absl::GetFlag(FLAGS_build_info)) {
    absl::PrintF("%s\n", BuildInfo().dump(2));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const WorldInfo world, WorldFromFlags());
  if (world.world_size > 1) {
    SetLogPrefix(absl::StrCat("[", world.simulated ? "simulated " : "", "rank ",
                              world.rank, "] "));
  }
  const absl::StatusOr<RunConfig> config = RunConfigFromFlags();
  if (!config.ok()) return ReportOncePerMachine(config.status(), world);
  if (const absl::Status goes = CheckFlagsGoTogether(); !goes.ok()) {
    return ReportOncePerMachine(goes, world);
  }
  if (absl::GetFlag(FLAGS_print_config)) {
    if (world.prints()) absl::PrintF("%s", PrintWithDefaults(*config));
    return absl::OkStatus();
  }
  if (!absl::GetFlag(FLAGS_plan_layouts).empty()) {
    return world.prints() ? PlanForCluster(*config) : absl::OkStatus();
  }
  absl::StatusOr<RunPlan> plan = PlanFromFlags(*config, world);
  if (!plan.ok()) return ReportOncePerMachine(plan.status(), world);
  if (absl::GetFlag(FLAGS_dry_run) || absl::GetFlag(FLAGS_print_step)) {
    const absl::Status printed =
        world.prints() ? PrintPlan(*plan) : absl::OkStatus();
    const absl::Status starts = printed.ok() ? CheckPlan(*plan) : printed;
    if (starts.ok()) return starts;
    std::fflush(stdout);  // the plan comes before the error, also in a file
    return ReportOncePerMachine(starts, world);
  }
  if (const absl::Status restarts = CheckCanRestart(world); !restarts.ok()) {
    return ReportOncePerMachine(restarts, world);
  }
  return Train(*std::move(plan));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgram(
      argc, argv,
      {.usage = "trains a transformer language model: train [--config=FILE]... "
                "[--set FIELD=VALUE]... [--out=DIR]",
       .version = tessera::BuildSummary()},
      [] {
        return tessera::WithConfigSourceFromFlags(
            tessera::StatusFromTorchOr(tessera::Run));
      });
}
