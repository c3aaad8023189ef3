// Prints the logits of a model after each token of a sequence, for a test that
// compares them with transformers':
//   print_logits DIR 1,2,3 > logits     FP32, [tokens, vocabulary]

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "framework/base/exit_code.h"
#include "framework/base/process.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "trainers/generation/text_generation.h"
#include "trainers/plan/run_plan.h"
#include "trainers/run/model_run_config.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/training_state.h"

namespace tessera {
namespace {

absl::Status Run(const std::string& folder, const std::string& text) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> tokens,
                   ParseTokenIds(text, "the second argument"));
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                   OpenModel(folder));
  ASSIGN_OR_RETURN(RunConfig config, ModelRunConfig(*checkpoint));
  config.mutable_training()->set_device(TrainingConfig::CPU);
  ASSIGN_OR_RETURN(
      const RunPlan plan,
      PlanGeneration(config, {.tokens = static_cast<int64_t>(tokens.size())}));
  ASSIGN_OR_RETURN(const std::unique_ptr<ParameterStore> parameters,
                   MakeParameters(plan));
  RETURN_IF_ERROR(RestoreParameters(*checkpoint, parameters.get()));
  NextTokenModel model(plan, *parameters);
  for (size_t i = 1; i <= tokens.size(); ++i) {
    ASSIGN_OR_RETURN(const std::vector<float> logits,
                     model.LogitsAfter({{tokens.begin(), tokens.begin() + i}}));
    std::fwrite(logits.data(), sizeof(float), logits.size(), stdout);
  }
  return FlushResult(stdout);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::PrepareProcess();
  if (argc != 3) return 2;
  return tessera::ReportAndExitCode(tessera::StatusFromTorchOr(
      [&] { return tessera::Run(argv[1], argv[2]); }));
}
