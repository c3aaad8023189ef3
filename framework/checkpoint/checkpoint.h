#ifndef FRAMEWORK_CHECKPOINT_CHECKPOINT_H_
#define FRAMEWORK_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/checkpoint/durable_file.h"
#include "framework/checkpoint/safetensors.h"
#include "nlohmann/json.hpp"

namespace tessera {

// A checkpoint is a folder, complete from the moment it has its name:
//
//   step_00000020/
//     model.safetensors      the master weights
//     optimizer.safetensors  the moments
//     state.json             step, data position, random state, versions ...
//     config.pbtxt           the resolved config
//     tokenizer.json         of a run on text; older ones: in state.json
//     manifest.json          size of every file; XXH3-64 of every tensor, of
//                            the safetensors headers, of the other files and
//                            of the manifest itself (not in older ones)
//
// It is written as .tmp-step_00000020: every file is synced, the manifest last,
// then the folder, then one rename gives it its name, then the parent is
// synced. So a process that is killed anywhere in between leaves the earlier
// checkpoints as they were. Checksums find what the disk changes later.
//
// A model's folder is what may be copied out of it to generate text or to start
// another run from: model.safetensors, config.pbtxt and, for text,
// tokenizer.json, without the manifest.
inline constexpr absl::string_view kModelFile = "model.safetensors";
inline constexpr absl::string_view kOptimizerFile = "optimizer.safetensors";
inline constexpr absl::string_view kStateFile = "state.json";
inline constexpr absl::string_view kConfigFile = "config.pbtxt";
inline constexpr absl::string_view kTokenizerFile = "tokenizer.json";
inline constexpr absl::string_view kManifestFile = "manifest.json";
inline constexpr absl::string_view kTemporaryPrefix = ".tmp-";

// "step_00000020"; longer from step 100,000,000 on.
std::string CheckpointName(int64_t step);
// The step of such a name; nothing for another.
std::optional<int64_t> StepOfCheckpointName(absl::string_view name);

// A tensor in host memory, contiguous, with SizeBytes(spec) bytes.
struct TensorView {
  TensorSpec spec;
  const void* data = nullptr;
};

class CheckpointWriter {
 public:
  // Starts `directory`/.tmp-step_..., making `directory` if need be.
  // AlreadyExists where a checkpoint of that step is complete and verifies; a
  // damaged one is replaced by Commit(). The reason if the system cannot read
  // the one that is there.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Begin(
      const std::string& directory, int64_t step,
      WritePointHook hook = nullptr);
  // Removes the temporary folder unless Commit() succeeded.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Adds a file of tensors whose bytes the caller writes and finishes:
  //   ASSIGN_OR_RETURN(SafetensorsWriter * file,
  //                    writer->AddTensorFile(kModelFile, specs));
  //   for (...) RETURN_IF_ERROR(file->Write(piece));
  //   RETURN_IF_ERROR(file->Finish());
  // Valid while the writer lives.
  absl::StatusOr<SafetensorsWriter*> AddTensorFile(
      absl::string_view name, std::vector<TensorSpec> tensors);
  // The same for tensors that are all in host memory.
  absl::Status AddTensors(absl::string_view name,
                          absl::Span<const TensorView> tensors);

  // Adds a small file, such as tokenizer.json.
  absl::Status AddText(absl::string_view name, absl::string_view content);

  // Adds state.json and config.pbtxt and completes the checkpoint; once.
  // Returns its folder. Numbers of `state` come back exactly, but those that
  // are not finite come back null.
  absl::StatusOr<std::string> Commit(const nlohmann::json& state,
                                     absl::string_view config_text);

 private:
  CheckpointWriter(std::string directory, int64_t step, WritePointHook hook);

  absl::Status AddTensorFilesToManifest();
  // Gives the finished temporary folder its name.
  absl::Status Publish();

  const std::string directory_;
  const int64_t step_;
  const WritePointHook hook_;
  const std::string temporary_;  // the folder's path until Commit()
  std::map<std::string, std::unique_ptr<SafetensorsWriter>> tensor_files_;
  nlohmann::json files_;  // of the manifest
  bool committed_ = false;
};

// Whether `status`, from opening a checkpoint, says that there is no good one:
// it is damaged, or not there. Any other error, such as a permission that is
// missing or too many open files, says nothing about the checkpoint, so nobody
// may pass it over or replace it.
bool IsDamagedOrAbsent(const absl::Status& status);

// A complete checkpoint whose every byte agrees with its manifest, and whose
// manifest agrees with the folder's name, where that names a step.
class Checkpoint {
 public:
  enum class Part {
    kEverything,
    // The weights, the config and the tokenizer: tokenizer.json or, if there is
    // none, as in older checkpoints, state.json. No other file is read.
    kModel,
  };

  // Reads and checks all files of that part. NotFound without a manifest;
  // DataLoss, naming the file and the tensor, for what is missing, cut short or
  // changed; the system's reason for what cannot be read.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(
      const std::string& folder, Part part = Part::kEverything);

  // Reads a model's folder, which has no manifest to check it against. NotFound
  // if a file is missing that it needs.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> OpenModelFolder(
      const std::string& folder);

  const std::string& folder() const { return folder_; }
  int64_t step() const { return step_; }  // 0 for a model's folder
  const nlohmann::json& state() const { return state_; }
  const std::string& config_text() const { return config_text_; }
  // Null if there is none.
  const nlohmann::json& tokenizer() const;
  // Where the tokenizer comes from, for messages.
  std::string tokenizer_source() const;

  // The file of tensors called `name`; NotFound when there is none. Lives as
  // long as the checkpoint.
  absl::StatusOr<const SafetensorsFile*> Tensors(absl::string_view name) const;

 private:
  Checkpoint() = default;

  absl::Status ReadManifest();
  // `path`: the manifest, which may have no checksum of its own.
  absl::Status SetStep(const std::string& path, uint64_t step);
  // Reads a file and checks it against `expected`, of the manifest; null for a
  // folder without one.
  absl::Status Read(const std::string& name, const nlohmann::json* expected);
  absl::Status ReadTensors(const std::string& name,
                           const nlohmann::json* expected);
  absl::Status ReadText(const std::string& name,
                        const nlohmann::json* expected);
  absl::Status ReadModel();

  std::string folder_;
  int64_t step_ = 0;
  nlohmann::json files_;  // of the manifest; null without one
  nlohmann::json state_;
  nlohmann::json tokenizer_;  // of tokenizer.json
  std::string config_text_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>, std::less<>>
      tensor_files_;
};

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_CHECKPOINT_H_
