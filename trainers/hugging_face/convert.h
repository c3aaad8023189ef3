#ifndef TRAINERS_HUGGING_FACE_CONVERT_H_
#define TRAINERS_HUGGING_FACE_CONVERT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/tensor_files.h"
#include "models/model_config.pb.h"

namespace tessera {

// Conversions between a model of ours and a folder of Hugging Face's
// transformers. Weights pass through host memory in pieces of a tensor; the
// model is not built. The output folder must not exist; after an error there is
// none. A tokenizer.json of transformers goes along with the files that
// describe it, other tokenizers do not; so does generation_config.json.

struct ConvertOptions {
  // The dtype in which weights are written, rounded to nearest. Absent: as they
  // are stored.
  std::optional<StoredDtype> dtype;
  uint64_t max_file_bytes = kMaxTensorFileBytes;
  // Called between pieces; an error ends the conversion. May be null.
  std::function<absl::Status()> check_stop;
};

// Writes `out` for transformers: config.json, generation_config.json and the
// weights. RoPE's INTERLEAVED layout becomes HALVED: rows of W_q, W_k and of
// QK-norm's gains change places, so that all scores stay the same up to the
// order of additions. Unimplemented as HfArchitectureFor();
// InvalidArgument if a weight is too large for the dtype.
absl::Status ExportModel(const Checkpoint& checkpoint,
                         const ModelConfig& config, const std::string& out,
                         const ConvertOptions& options);

// Writes a folder from OpenHfFolder() as a model folder of ours: weights and a
// config.pbtxt that has only `model`.
absl::Status ImportModel(const Checkpoint& folder, const ModelConfig& config,
                         const std::string& out, const ConvertOptions& options);

}  // namespace tessera

#endif  // TRAINERS_HUGGING_FACE_CONVERT_H_
