// Reads a folder of Hugging Face's transformers, and writes weights and config
// to train from:
//   bazel run //trainers:import -- Llama-3.2-1B llama

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "trainers/build_info.h"
#include "trainers/hugging_face/convert.h"
#include "trainers/hugging_face/hf_folder.h"
#include "trainers/program_flags.h"
#include "trainers/run/model_run_config.h"
#include "trainers/run/stop_signal.h"

namespace tessera {
namespace {

absl::Status Run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "import takes two folders, one of transformers and a new one: import "
        "DIR OUT; given are ",
        arguments.size()));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> folder,
                   OpenHfFolder(UserPath(arguments[0])));
  ASSIGN_OR_RETURN(const RunConfig config, ModelRunConfig(*folder));
  const std::string out = UserPath(arguments[1]);
  RETURN_IF_ERROR(
      ImportModel(*folder, config.model(), out, {.check_stop = StopCheck()}));
  LogInfo(absl::StrCat("wrote ", out, "; train from it with --config=", out,
                       "/", kConfigFile,
                       " and --set checkpoint.init_from=", out));
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgramWithArguments(
      argc, argv,
      {.usage = "makes a model of Hugging Face's transformers ready for "
                "training: import DIR OUT",
       .version = tessera::BuildSummary()},
      tessera::Run);
}
