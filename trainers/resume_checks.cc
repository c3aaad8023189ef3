#include "trainers/resume_checks.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"

namespace tessera {
namespace {

constexpr char kFingerprint[] = "data_fingerprint";
constexpr char kOrder[] = "data_order";

// What the order of the training sequences depends on, by config field.
nlohmann::json DataOrder(const RunConfig& config) {
  return {{"training.seed", config.training().seed()},
          {"model.context_length", config.model().context_length()},
          {"data.shuffle", config.data().shuffle()}};
}

}  // namespace

void AddDataIdentity(const Session& session, nlohmann::json* state) {
  (*state)[kFingerprint] = session.data().fingerprint;
  (*state)[kOrder] = DataOrder(session.plan().config);
}

absl::Status CheckSameStep(const Checkpoint& checkpoint) {
  const nlohmann::json step =
      checkpoint.state().value("step", nlohmann::json());
  if (step == checkpoint.step()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(checkpoint.folder(), "/", kManifestFile, " is of step ",
                   checkpoint.step(), ", ", kStateFile, " beside it of step ",
                   step.dump(), ": one of them is damaged"));
}

absl::Status CheckSameData(const Checkpoint& checkpoint,
                           const Session& session) {
  const nlohmann::json& state = checkpoint.state();
  const nlohmann::json trained = state.value(kOrder, nlohmann::json::object());
  const nlohmann::json order = DataOrder(session.plan().config);
  for (const auto& [field, value] : order.items()) {
    if (trained.contains(field) && trained[field] != value) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, " is ", value.dump(), ", but ", checkpoint.folder(),
          " was trained with ", trained[field].dump(),
          ", and the order of its data depends on it: tokens would be lost or "
          "doubled. Set ",
          field, "=", trained[field].dump()));
    }
  }
  if (state.value(kFingerprint, uint64_t{0}) != session.data().fingerprint) {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.folder(), " was trained on other data than the ",
        session.data().train->description(),
        "; resume with the data it was made with, split by the "
        "same data.validation_fraction"));
  }
  return absl::OkStatus();
}

absl::Status CheckSameModel(const Checkpoint& checkpoint,
                            const ModelConfig& model) {
  RunConfig trained;
  if (!google::protobuf::TextFormat::ParseFromString(checkpoint.config_text(),
                                                     &trained)) {
    return absl::OkStatus();  // the tensors' shapes are checked in any case
  }
  const ModelShape before = ModelShape::FromConfig(trained.model());
  const ModelShape now = ModelShape::FromConfig(model);
  const auto check = [&](absl::string_view field, auto is, auto was) {
    if (is == was) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("model.", field, " is ", is, ", but ", checkpoint.folder(),
                     " was trained with ", was,
                     ", for which alone its weights are right; set model.",
                     field, "=", was));
  };
  const auto name = [](RopeLayout layout) -> absl::string_view {
    return layout == RopeLayout::kHalved ? "HALVED" : "INTERLEAVED";
  };
  RETURN_IF_ERROR(check("num_heads", now.heads, before.heads));
  RETURN_IF_ERROR(check("num_kv_heads", now.kv_heads, before.kv_heads));
  RETURN_IF_ERROR(
      check("rope_layout", name(now.rope_layout), name(before.rope_layout)));
  RETURN_IF_ERROR(check("rope_theta", now.rope_theta, before.rope_theta));
  return check("norm_eps", now.norm_eps, before.norm_eps);
}

std::string ConfigChanges(const Checkpoint& checkpoint,
                          const RunConfig& config) {
  using google::protobuf::TextFormat;
  RunConfig before, after;  // both with their defaults written out
  std::string changes;
  if (!TextFormat::ParseFromString(checkpoint.config_text(), &before) ||
      !TextFormat::ParseFromString(PrintWithDefaults(config), &after)) {
    return changes;
  }
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&changes);
  differencer.Compare(before, after);
  return changes;
}

}  // namespace tessera
