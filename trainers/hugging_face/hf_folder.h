#ifndef TRAINERS_HUGGING_FACE_HF_FOLDER_H_
#define TRAINERS_HUGGING_FACE_HF_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "framework/checkpoint/checkpoint.h"

namespace tessera {

// A folder of Hugging Face's transformers: config.json, and model.safetensors
// or its index and the files there.

// Whether `path` is one: it has a config.json and nothing of ours.
bool IsHfFolder(const std::string& path);

// Opens one as if it were a model folder of ours: its tensors have the names of
// our parameters, its config text has only `model`. Copies no weights. Besides
// the errors of ReadHfConfig(), InvalidArgument or DataLoss name the file and
// the tensor if one is missing, superfluous or of another shape than
// config.json gives. Reads tokenizer.json, if it is there.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenHfFolder(
    const std::string& path);

}  // namespace tessera

#endif  // TRAINERS_HUGGING_FACE_HF_FOLDER_H_
