#ifndef FRAMEWORK_CHECKPOINT_CHECKPOINT_H_
#define FRAMEWORK_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/checkpoint/checkpoint_parts.h"
#include "framework/checkpoint/durable_file.h"
#include "framework/checkpoint/safetensors.h"
#include "framework/checkpoint/tensor_files.h"
#include "nlohmann/json.hpp"

namespace tessera {

// A checkpoint is a folder that is complete once it has its final name:
//
//   step_00000020/
//     model.safetensors      the master weights; if they are large, several
//                            files and an index (tensor_files.h)
//     optimizer.safetensors  the moments, likewise
//     ema.safetensors        if the run averages its weights: the averages, and
//                            frozen weights, under the names in the model
//     state.json             step, data position, random state, versions ...
//     config.pbtxt           the resolved config
//     tokenizer.json         if the run trains on text; formerly in state.json
//     manifest.json          size of every file; XXH3-64 of every tensor, of
//                            the safetensors headers, of the other files and
//                            (not in older versions) of the manifest itself
//
// It is written as .tmp-step_00000020: every file is synced, the manifest last,
// then everything is read back and verified, the folder is synced, renamed, and
// the parent is synced. So a process that is killed at any point leaves the
// earlier checkpoints unchanged, and the newest stays the newest until the new
// one is good. The checksums detect later changes on the disk.
//
// Several ranks may write one checkpoint together. Each file has one writer,
// which also verifies it; the leader writes all files that hold no tensors and
// renames the folder. Until then the folder is .tmp-shared-step_00000020. A
// checkpoint that the leader writes alone has another name, so that no other
// rank writes into it. If one of the ranks fails, there is no checkpoint.
//
// A model folder is a copy of the files that are needed to generate text or to
// start another run: model.safetensors, or the files of its index,
// config.pbtxt and, for text, tokenizer.json, without the manifest.
inline constexpr absl::string_view kModelFile = "model.safetensors";
inline constexpr absl::string_view kOptimizerFile = "optimizer.safetensors";
inline constexpr absl::string_view kEmaFile = "ema.safetensors";
inline constexpr absl::string_view kStateFile = "state.json";
inline constexpr absl::string_view kConfigFile = "config.pbtxt";
inline constexpr absl::string_view kTokenizerFile = "tokenizer.json";
inline constexpr absl::string_view kManifestFile = "manifest.json";
inline constexpr absl::string_view kTemporaryPrefix = ".tmp-";

// "step_00000020"; longer from step 100,000,000 on.
std::string CheckpointName(int64_t step);
// The step in such a name; nullopt for any other name.
std::optional<int64_t> StepOfCheckpointName(absl::string_view name);

class CheckpointWriter {
 public:
  // Creates the temporary folder, and `directory` if needed, but never its
  // parent: a run's folder that was moved away stays away. AlreadyExists if the
  // directory has a complete, verified checkpoint of that step; Commit()
  // replaces a damaged one. If the existing one cannot be read, returns that
  // error. On a rank that does not lead, waits until the leader has created
  // the folder; if it fails, until CheckpointWriters::gone.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Begin(
      const std::string& directory, int64_t step, WritePointHook hook = nullptr,
      CheckpointWriters writers = {});
  // Removes the temporary folder, if this rank leads, unless Commit()
  // succeeded.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Adds a file of tensors, which the caller writes and finishes:
  //   ASSIGN_OR_RETURN(SafetensorsWriter * file,
  //                    writer->AddTensorFile(kModelFile, specs));
  //   for (...) RETURN_IF_ERROR(file->Write(piece));
  //   RETURN_IF_ERROR(file->Finish());
  // The result is valid during the writer's lifetime.
  absl::StatusOr<SafetensorsWriter*> AddTensorFile(
      absl::string_view name, std::vector<TensorSpec> tensors);

  // Adds a small file, such as tokenizer.json.
  absl::Status AddText(absl::string_view name, absl::string_view content);

  // For the leader: waits for the other ranks' files, adds state.json and
  // config.pbtxt, completes the checkpoint, verifies it and returns its folder.
  // DataLoss, as from Checkpoint::Open(), if what was written cannot be read
  // back; the error of another rank, which names it; Unavailable if one is
  // gone. Call it once. Numbers in `state` are restored exactly, except that
  // those that are not finite become null.
  absl::StatusOr<std::string> Commit(const nlohmann::json& state,
                                     absl::string_view config_text);

  // For the other ranks: verifies this rank's files and tells the leader that
  // they are complete, or that they could not be written if `written` is an
  // error. Then waits until the leader has committed or discarded the
  // checkpoint, because a rank that ends earlier ends the leader, too; or until
  // CheckpointWriters::gone. Returns the folder's name, which a leader that
  // discards the checkpoint does not create, or the error. Call it once.
  absl::StatusOr<std::string> Finish(absl::Status written);

 private:
  CheckpointWriter(std::string directory, int64_t step, WritePointHook hook,
                   CheckpointWriters writers);

  // Begin() for the leader.
  absl::Status MakeFolder();
  // Begin() for another rank.
  absl::Status AwaitFolder();
  std::string folder() const;
  absl::Status AddTensorFilesToManifest();
  absl::Status AwaitParts();
  // Reads this rank's tensor files back.
  absl::Status VerifyOwn() const;
  // Renames the finished temporary folder.
  absl::Status Publish();
  absl::Status ReportFailure(const absl::Status& why);
  // Waits until the leader has renamed the temporary folder.
  void AwaitLeader() const;

  const std::string directory_;
  const int64_t step_;
  const WritePointHook hook_;
  const CheckpointWriters writers_;
  const std::string temporary_;  // the folder's path until Commit()
  std::map<std::string, std::unique_ptr<SafetensorsWriter>> tensor_files_;
  nlohmann::json files_;  // the manifest's entries
  bool committed_ = false;
};

// Whether `status`, from opening a checkpoint, means that there is no good
// checkpoint: it is damaged or absent. Other errors (permissions, too many open
// files) say nothing about the checkpoint, so it must not be skipped or
// replaced.
bool IsDamagedOrAbsent(const absl::Status& status);

// Which part of a checkpoint's tensor files a rank verifies, if `count` ranks
// read the same one: about 1/count of the bytes. Of the other files it verifies
// only size and header.
struct VerifiedShare {
  int index = 0, count = 1;
};

// A complete, verified checkpoint: every byte matches the manifest, and the
// manifest matches the step in the folder's name, if that has one.
class Checkpoint {
 public:
  enum class Part {
    kEverything,
    // The weights, the config and the tokenizer: tokenizer.json or, in older
    // checkpoints, state.json. No other file is read.
    kModel,
    // kModel with the averages of kEmaFile as the weights: Tensors(kModelFile).
    kEmaModel,
  };

  // Reads and verifies all files of `part`, or of tensor files the `share`.
  // NotFound without a manifest; DataLoss, naming the file and the tensor, if
  // something is missing, truncated or changed; InvalidArgument if kEmaModel
  // asks for averages that the checkpoint does not have; the system's error if
  // something cannot be read.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(
      const std::string& folder, Part part = Part::kEverything,
      const VerifiedShare& share = {});

  // Reads a model folder, which has no manifest to verify it. NotFound if a
  // required file is missing. `part` is kModel or kEmaModel.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> OpenModelFolder(
      const std::string& folder, Part part = Part::kModel);

  // Reads the tensors of another program's model folder: kModelFile, or its
  // index and the files there. `rename` gives them our names. `config` is the
  // model's config and the name of the file that it is made from. NotFound if
  // the folder has no tensors.
  struct ForeignConfig {
    std::string file, text;
  };
  static absl::StatusOr<std::unique_ptr<Checkpoint>> OpenForeign(
      const std::string& folder, ForeignConfig config,
      absl::FunctionRef<absl::StatusOr<StoredTensors>(const StoredTensors&)>
          rename);

  const std::string& folder() const { return folder_; }
  int64_t step() const { return step_; }  // 0 for a model folder
  const nlohmann::json& state() const { return state_; }
  const std::string& config_text() const { return config_text_; }
  // The file of the config, for messages.
  std::string config_source() const;
  // Null if there is none.
  const nlohmann::json& tokenizer() const;
  // The source of the tokenizer, for messages.
  std::string tokenizer_source() const;

  // The tensors of kModelFile, kOptimizerFile or kEmaFile, in one file or
  // several. Their bytes are read when they are used. Owned by the checkpoint;
  // NotFound if there are none.
  absl::StatusOr<const StoredTensors*> Tensors(absl::string_view name) const;

 private:
  friend class CheckpointWriter;
  Checkpoint() = default;

  // Open() that verifies the tensor files in `verified`, given the manifest's
  // entries.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> OpenVerifying(
      const std::string& folder, Part part,
      absl::FunctionRef<std::set<std::string>(const nlohmann::json&)> verified);

  absl::Status ReadManifest();
  // `path` is the manifest, which may have no checksum of its own.
  absl::Status SetStep(const std::string& path, uint64_t step);
  // Reads a file and verifies it against `expected` from the manifest; null for
  // a folder without a manifest.
  absl::Status Read(const std::string& name, const nlohmann::json* expected);
  absl::Status ReadTensors(const std::string& name,
                           const nlohmann::json* expected);
  absl::Status ReadText(const std::string& name,
                        const nlohmann::json* expected);
  absl::Status ReadModel(Part part);
  // Read() of a file that must be in the manifest, if there is one.
  absl::Status ReadListed(const std::string& name);
  bool Lists(absl::string_view name) const;
  // Reads kModelFile, kOptimizerFile or kEmaFile, or its index and the files
  // there, as the tensors `as`.
  absl::Status ReadStored(absl::string_view name, absl::string_view as);
  bool ListsTensors(absl::string_view name) const;

  std::string folder_;
  int64_t step_ = 0;
  nlohmann::json files_;  // the manifest's entries; null without one
  nlohmann::json state_;
  nlohmann::json tokenizer_;  // contents of tokenizer.json
  std::string config_text_, config_file_ = std::string(kConfigFile);
  std::set<std::string> verified_;            // tensor files
  std::map<std::string, std::string> texts_;  // the indices
  std::map<std::string, std::unique_ptr<SafetensorsFile>, std::less<>>
      tensor_files_;
  std::map<std::string, StoredTensors, std::less<>> stored_;
};

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_CHECKPOINT_H_
