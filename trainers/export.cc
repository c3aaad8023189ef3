// Writes a model as a folder for Hugging Face's transformers:
//   bazel run //trainers:export -- runs/mine mine_hf --dtype=BF16

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "trainers/build_info.h"
#include "trainers/hugging_face/convert.h"
#include "trainers/program_flags.h"
#include "trainers/run/model_run_config.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/stop_signal.h"

ABSL_FLAG(std::string, dtype, "",
          "of the weights: FP32, BF16 or FP16; default: as they are stored, "
          "which for a run is FP32, or BF16 after BF16_PURE");
ABSL_FLAG(std::string, weights, "TRAINED",
          "TRAINED, or EMA for their average, which a run with optimizer.ema "
          "keeps");
ABSL_FLAG(int64_t, max_file_mib, 2048,
          "most MiB of weights in a file; a larger tensor gets its own");

namespace tessera {
namespace {

absl::StatusOr<std::optional<StoredDtype>> DtypeFromFlag() {
  const std::string name = absl::GetFlag(FLAGS_dtype);
  if (name.empty()) return std::nullopt;
  if (name == "FP32") return StoredDtype::kF32;
  if (name == "BF16") return StoredDtype::kBF16;
  if (name == "FP16") return StoredDtype::kF16;
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype=", name, ": must be FP32, BF16 or FP16"));
}

absl::Status Run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "export takes two folders, that of a run or a checkpoint and a new "
        "one: export RUN OUT; given are ",
        arguments.size()));
  }
  ConvertOptions options = {.check_stop = StopCheck()};
  ASSIGN_OR_RETURN(options.dtype, DtypeFromFlag());
  const int64_t mib = absl::GetFlag(FLAGS_max_file_mib);
  if (mib < 1 || mib > 1 << 20) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max_file_mib=", mib, ": must be in [1, ", 1 << 20, "]"));
  }
  options.max_file_bytes = static_cast<uint64_t>(mib) << 20;
  ASSIGN_OR_RETURN(const Checkpoint::Part part,
                   ModelPart(absl::GetFlag(FLAGS_weights)));
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                   OpenModel(UserPath(arguments[0]), {}, part));
  ASSIGN_OR_RETURN(const RunConfig config, ModelRunConfig(*checkpoint));
  const std::string out = UserPath(arguments[1]);
  RETURN_IF_ERROR(ExportModel(*checkpoint, config.model(), out, options));
  LogInfo(absl::StrCat("wrote ", out));
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgramWithArguments(
      argc, argv,
      {.usage = "writes a model for Hugging Face's transformers: export "
                "RUN OUT [--dtype=BF16]",
       .version = tessera::BuildSummary()},
      tessera::Run);
}
