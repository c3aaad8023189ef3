#include "trainers/run/run_identity.h"

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "models/model_config.h"
#include "models/transformer_block.h"

namespace tessera {
namespace {

constexpr char kFingerprint[] = "data_fingerprint";
constexpr char kOrder[] = "data_order";

// The config fields that determine the order of the training sequences.
nlohmann::json DataOrder(const RunConfig& config) {
  return {{"training.seed", config.training().seed()},
          {"model.context_length", config.model().context_length()},
          {"data.shuffle", config.data().shuffle()}};
}

// The model in the checkpoint's config; nullopt if this program cannot read the
// config. The tensors' shapes are checked in any case.
std::optional<ModelShape> ShapeOf(const Checkpoint& checkpoint) {
  RunConfig trained;
  if (!google::protobuf::TextFormat::ParseFromString(checkpoint.config_text(),
                                                     &trained)) {
    return std::nullopt;
  }
  return ModelShapeOf(trained.model());
}

absl::Status AnotherModel(const Checkpoint& checkpoint, absl::string_view is,
                          absl::string_view was, absl::string_view advice) {
  return absl::InvalidArgumentError(
      absl::StrCat(is, ", but ", checkpoint.folder(), " was trained ", was,
                   ", and its weights are valid only that way; ", advice));
}

template <typename Value>
absl::Status CheckSame(const Checkpoint& checkpoint, absl::string_view field,
                       Value is, Value was) {
  if (is == was) return absl::OkStatus();
  return AnotherModel(checkpoint, absl::StrCat("model.", field, " is ", is),
                      absl::StrCat("with ", was),
                      absl::StrCat("set model.", field, "=", was));
}

absl::Status CheckSameRopeScaling(const Checkpoint& checkpoint,
                                  const RopeScaling& is,
                                  const RopeScaling& was) {
  if (is == was) return absl::OkStatus();
  const auto text = [](const RopeScaling& s) {
    return absl::StrCat("{factor: ", s.factor,
                        " low_freq_factor: ", s.low_freq_factor,
                        " high_freq_factor: ", s.high_freq_factor,
                        " original_context_length: ", s.original_context, "}");
  };
  return CheckSame(checkpoint, "rope_scaling", text(is), text(was));
}

// 0 stands for an absent field.
absl::Status CheckSameSoftCap(const Checkpoint& checkpoint,
                              absl::string_view name, double is, double was) {
  const std::string field = absl::StrCat("model.", name);
  if (is == was) return absl::OkStatus();
  return AnotherModel(
      checkpoint,
      absl::StrCat(field, " is ", is == 0 ? "absent" : absl::StrCat(is)),
      was == 0 ? "without it" : absl::StrCat("with ", was),
      was == 0 ? absl::StrCat("remove ", field)
               : absl::StrCat("set ", field, "=", was));
}

absl::Status CheckSameWindows(const Checkpoint& checkpoint,
                              const ModelShape& is, const ModelShape& was) {
  const auto tokens = [](int64_t window) {
    return window == 0 ? "all" : absl::StrCat(window);
  };
  for (int64_t layer = 0; layer < is.layers; ++layer) {
    if (LayerMask(is, layer, is.context) == LayerMask(was, layer, was.context))
      continue;
    return AnotherModel(
        checkpoint,
        absl::StrCat("by model.attention_window layer ", layer, " sees ",
                     tokens(is.window(layer)), " tokens"),
        absl::StrCat("with ", tokens(was.window(layer))),
        "use the windows of its config");
  }
  return absl::OkStatus();
}

}  // namespace

void AddDataIdentity(const Session& session, nlohmann::json* state) {
  (*state)[kFingerprint] = session.data().fingerprint;
  (*state)[kOrder] = DataOrder(session.plan().config);
}

absl::Status CheckSameStep(const Checkpoint& checkpoint) {
  JsonFields fields = StateFields(checkpoint);
  const int64_t step = fields.Count("step");
  RETURN_IF_ERROR(fields.status());
  if (step == checkpoint.step()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(checkpoint.folder(), "/", kManifestFile, " is of step ",
                   checkpoint.step(), ", but ", kStateFile, " is of step ",
                   step, "; one of them is damaged"));
}

absl::StatusOr<int64_t> SamplesOf(const Checkpoint& checkpoint) {
  // A step takes at most the largest training.batch_size.
  constexpr int64_t kLargestBatch = std::numeric_limits<int32_t>::max();
  const int64_t most = checkpoint.step() > JsonFields::kMost / kLargestBatch
                           ? JsonFields::kMost
                           : checkpoint.step() * kLargestBatch;
  JsonFields fields = StateFields(checkpoint);
  const int64_t samples = fields.Count("samples", most);
  RETURN_IF_ERROR(fields.status());
  return samples;
}

absl::Status CheckSameData(const Checkpoint& checkpoint,
                           const RunConfig& config, const Dataset& data) {
  JsonFields fields = StateFields(checkpoint);
  const uint64_t fingerprint = fields.Unsigned(kFingerprint);
  JsonFields trained = fields.Object(kOrder);
  const nlohmann::json order = DataOrder(config);
  for (const auto& [field, value] : order.items()) {
    const nlohmann::json was = value.is_boolean()
                                   ? nlohmann::json(trained.Flag(field))
                                   : nlohmann::json(trained.Count(field));
    RETURN_IF_ERROR(fields.status());
    if (was != value) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, " is ", value.dump(), ", but ", checkpoint.folder(),
          " was trained with ", was.dump(),
          ", and the order of its data depends on it: resuming would skip or "
          "repeat tokens; set ",
          field, "=", was.dump()));
    }
  }
  if (fingerprint != data.fingerprint) {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.folder(), "/", kStateFile, ": ", kFingerprint,
        " is not that of the ", data.train->description(),
        ": the run was trained on different data; resume with the data, the "
        "data.validation_fraction and the data.documents that it was trained "
        "with"));
  }
  return absl::OkStatus();
}

absl::Status CheckSameModel(const Checkpoint& checkpoint,
                            const ModelConfig& model) {
  RETURN_IF_ERROR(CheckSameHeads(checkpoint, model));
  const std::optional<ModelShape> before = ShapeOf(checkpoint);
  if (!before.has_value()) return absl::OkStatus();
  const ModelShape now = ModelShapeOf(model);
  RETURN_IF_ERROR(
      CheckSame(checkpoint, "rope_theta", now.rope.theta, before->rope.theta));
  RETURN_IF_ERROR(
      CheckSameRopeScaling(checkpoint, now.rope.scaling, before->rope.scaling));
  RETURN_IF_ERROR(
      CheckSame(checkpoint, "norm_eps", now.norm_eps, before->norm_eps));
  RETURN_IF_ERROR(CheckSameSoftCap(checkpoint, "logit_soft_cap",
                                   now.logit_soft_cap, before->logit_soft_cap));
  RETURN_IF_ERROR(CheckSameSoftCap(checkpoint, "attention_soft_cap",
                                   now.attention_soft_cap,
                                   before->attention_soft_cap));
  return CheckSameWindows(checkpoint, now, *before);
}

absl::Status CheckSameHeads(const Checkpoint& checkpoint,
                            const ModelConfig& model) {
  const std::optional<ModelShape> before = ShapeOf(checkpoint);
  if (!before.has_value()) return absl::OkStatus();
  const ModelShape now = ModelShapeOf(model);
  const auto name = [](RopeLayout layout) -> absl::string_view {
    return layout == RopeLayout::kHalved ? "HALVED" : "INTERLEAVED";
  };
  const auto form = [](QkNormForm f) -> absl::string_view {
    return f == QkNormForm::kHead         ? "HEAD"
           : f == QkNormForm::kProjection ? "PROJECTION"
                                          : "NONE";
  };
  RETURN_IF_ERROR(CheckSame(checkpoint, "qk_norm", form(now.qk_norm),
                            form(before->qk_norm)));
  RETURN_IF_ERROR(CheckSame(checkpoint, "attention_sinks", now.attention_sinks,
                            before->attention_sinks));
  RETURN_IF_ERROR(CheckSame(checkpoint, "num_heads", now.heads, before->heads));
  RETURN_IF_ERROR(
      CheckSame(checkpoint, "num_kv_heads", now.kv_heads, before->kv_heads));
  const auto placement = [](NormPlacement p) -> absl::string_view {
    return p == NormPlacement::kAfter ? "AFTER" : "BEFORE";
  };
  RETURN_IF_ERROR(CheckSame(checkpoint, "norm_placement",
                            placement(now.norm_placement),
                            placement(before->norm_placement)));
  return CheckSame(checkpoint, "rope_layout", name(now.rope.layout),
                   name(before->rope.layout));
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
