#include "trainers/config/run_config.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "attention_backends/attention_config.h"
#include "framework/checkpoint/checkpoint_config.h"
#include "framework/data/data_config.h"
#include "framework/data/tokenize/tokenizer.h"
#include "framework/data/tokenize/utf8.h"
#include "framework/mesh/layout_config.h"
#include "framework/observe/observe_config.h"
#include "framework/optim/learning_rate_schedule.h"
#include "framework/optim/optimizer_config.h"
#include "framework/optim/parameter_groups.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/precision_config.h"
#include "framework/program/execution_config.h"
#include "models/model_config.h"
#include "models/model_shape.h"
#include "models/transformer_lm.h"

namespace tessera {
namespace {

void ValidatePrecisionOnDevice(const RunConfig& config,
                               const Violations& violations) {
  if (config.training().device() != TrainingConfig::CPU) return;
  const PrecisionConfig::Mode mode = config.precision().mode();
  violations.Check(
      mode != PrecisionConfig::TF32 && mode != PrecisionConfig::FP16,
      "precision.mode",
      absl::StrCat(PrecisionConfig::Mode_Name(mode),
                   " needs training.device: CUDA; a CPU runs FP32, BF16 and "
                   "BF16_PURE"));
}

void ValidateScheduleLength(const RunConfig& config,
                            const Violations& violations) {
  const int64_t steps = config.training().steps();
  const ScheduleConfig& schedule = config.optimizer().schedule();
  if (steps < 1) return;
  violations.Check(
      schedule.warmup_steps() < steps, "optimizer.schedule.warmup_steps",
      absl::StrCat("must be less than training.steps, ", steps, "; is ",
                   schedule.warmup_steps(),
                   "; lower it, raise training.steps, or set "
                   "optimizer.schedule.warmup_ratio, a fraction of the steps, "
                   "instead"));
  const double ratio = schedule.warmup_ratio();
  if (!schedule.has_wsd() || !(ratio >= 0 && ratio < 1)) return;
  const int64_t warmup_steps = WarmupSteps(schedule, steps);
  const int64_t after_warmup = steps - warmup_steps;
  violations.Check(
      schedule.wsd().decay_steps() <= after_warmup,
      "optimizer.schedule.wsd.decay_steps",
      absl::StrCat("must be at most training.steps minus the warm-up, ", steps,
                   " - ", warmup_steps, " = ", after_warmup, "; is ",
                   schedule.wsd().decay_steps(),
                   "; lower it, or raise training.steps"));
}

void ValidateTokenizerForModel(const RunConfig& config,
                               const Violations& violations) {
  if (!config.data().has_default_text()) return;
  const int vocab = config.model().vocab_size();
  const DefaultText::Tokenizer tokenizer =
      config.data().default_text().tokenizer();
  violations.Check(
      tokenizer != DefaultText::BYTES || vocab >= kByteVocabularySize,
      "data.default_text.tokenizer",
      absl::StrCat("BYTES needs model.vocab_size >= ", kByteVocabularySize,
                   "; it is ", vocab));
  violations.Check(
      tokenizer != DefaultText::BPE || vocab >= kMinBpeVocabularySize,
      "data.default_text.tokenizer",
      absl::StrCat("BPE needs model.vocab_size >= ", kMinBpeVocabularySize,
                   ", BYTES needs ", kByteVocabularySize, "; it is ", vocab));
}

void ValidateDataForModel(const RunConfig& config,
                          const Violations& violations) {
  ValidateTokenizerForModel(config, violations);
  const int vocab = config.model().vocab_size();
  const DataConfig& data = config.data();
  violations.Check(
      !data.has_synthetic() || data.synthetic().successors() <= vocab,
      "data.synthetic.successors",
      absl::StrCat("must be at most model.vocab_size, ", vocab, "; is ",
                   data.synthetic().successors()));
}

// The memory plan counts bytes in 64 bits.
void ValidateSize(const RunConfig& config, const Violations& violations) {
  constexpr double kMaxActivations = 0x1p52, kMaxScores = 0x1p57;
  const ModelConfig& model = config.model();
  const double tokens = static_cast<double>(config.training().batch_size()) *
                        model.context_length();
  const double heads_width =
      static_cast<double>(model.num_heads()) * model.head_dim();
  const double widest = std::max<double>(
      std::max({model.d_model(), model.d_ff(), model.vocab_size()}),
      heads_width);
  const double scores = tokens * model.num_heads() * model.context_length();
  violations.Check(
      tokens * widest * model.num_layers() <= kMaxActivations &&
          scores * model.num_layers() <= kMaxScores,
      "training.batch_size",
      absl::StrCat("x model.context_length is too large: no machine can hold "
                   "this model with ",
                   config.training().batch_size(), " x ",
                   model.context_length()));
}

// A snapshot is of LibTorch's GPU allocator, after a step of this run.
void ValidateSnapshotStep(const RunConfig& config,
                          const Violations& violations) {
  if (!config.observe().has_memory_snapshot_step()) return;
  const int64_t step = config.observe().memory_snapshot_step();
  const char* const field = "observe.memory_snapshot_step";
  violations.Check(
      config.training().device() != TrainingConfig::CPU, field,
      absl::StrCat("is ", step,
                   ", but needs training.device: CUDA, because it shows "
                   "LibTorch's GPU allocator; remove the field, and see "
                   "observe.memory for what a CPU holds"));
  violations.Check(
      step <= config.training().steps() || config.training().steps() < 1, field,
      absl::StrCat("must be at most training.steps, ",
                   config.training().steps(), "; is ", step));
}

// Without a whole window of steps nothing would be traced.
void ValidateTraceWindow(const RunConfig& config,
                         const Violations& violations) {
  const TraceConfig& trace = config.observe().trace();
  const int64_t last =
      int64_t{trace.wait()} + trace.warmup() + int64_t{trace.active()};
  const int64_t steps = config.training().steps();
  violations.Check(
      trace.active() < 1 || steps < 1 || last <= steps, "observe.trace.active",
      absl::StrCat("is ", trace.active(), "; with wait and warmup the trace ",
                   "ends with step ", last, ", but training.steps is ", steps,
                   "; lower one of them or raise training.steps"));
}

// Checks the patterns of `field` with LmParameters(): each alone at `path_of`
// its index, because it must match something, and then all together, because a
// fused matrix may need several. Returns those that match; nothing if they
// match only part of a fused matrix.
std::optional<std::vector<std::string>> ValidatePatternList(
    absl::Span<const std::string> patterns, absl::string_view field,
    absl::FunctionRef<std::string(size_t)> path_of,
    absl::FunctionRef<absl::Status(const std::vector<std::string>&)> check,
    const Violations& violations) {
  const auto add = [&](absl::string_view path, const absl::Status& status) {
    violations.Add(
        path, absl::StripPrefix(status.message(), absl::StrCat(field, " ")));
  };
  std::vector<std::string> matching;
  for (size_t i = 0; i < patterns.size(); ++i) {
    const absl::Status status = check({patterns[i]});
    if (absl::IsNotFound(status)) {
      add(path_of(i), status);
    } else {
      matching.push_back(patterns[i]);
    }
  }
  const absl::Status status = check(matching);
  if (status.ok()) return matching;
  add(field, status);
  return std::nullopt;
}

// Checks the patterns over the names of the model's parameters.
void ValidatePatterns(const RunConfig& config, const Violations& violations) {
  std::vector<Violation> broken;
  Validate(config.model(), Violations(&broken));
  if (!broken.empty()) return;  // without a model there are no names
  const ModelShape shape = ModelShapeOf(config.model());
  const std::vector<std::string> all_frozen(config.model().frozen().begin(),
                                            config.model().frozen().end());
  const std::optional<std::vector<std::string>> frozen = ValidatePatternList(
      all_frozen, "model.frozen",
      [](size_t i) { return absl::StrCat("model.frozen[", i, "]"); },
      [&](const std::vector<std::string>& patterns) {
        return LmParameters(shape, patterns).status();
      },
      violations);
  if (!frozen.has_value()) return;  // what is trained is not known
  const bool named = config.optimizer().muon().patterns_size() > 0;
  ValidatePatternList(
      MuonPatternsOf(config.optimizer()), "optimizer.muon.patterns",
      [&](size_t i) {
        return named ? absl::StrCat("optimizer.muon.patterns[", i, "]")
                     : std::string("optimizer.muon");
      },
      [&](const std::vector<std::string>& patterns) {
        return LmParameters(shape, *frozen, patterns).status();
      },
      violations);
  ValidateGroups(ParameterGroupsOf(config.optimizer().adamw()),
                 PlaceParameters(*LmParameters(shape, *frozen))->slices,
                 violations.In("optimizer.adamw"));
}

// Each rank's micro-batches all have the same number of sequences.
void ValidateBatch(const TrainingConfig& config, const Violations& violations) {
  if (config.batch_size() < 1 || config.micro_batches() < 1) return;
  violations.Check(
      config.batch_size() % config.micro_batches() == 0, "batch_size",
      absl::StrCat("must be a multiple of micro_batches, ",
                   config.micro_batches(), "; is ", config.batch_size()));
}

}  // namespace

void Validate(const RunConfig& config, Violations violations) {
  violations.Check(!config.has_base(), "base",
                   "only a file can name its base; give --config twice");
  Validate(config.model(), violations.In("model"));
  Validate(config.data(), violations.In("data"));
  Validate(config.training(), violations.In("training"));
  Validate(config.optimizer(), violations.In("optimizer"));
  Validate(config.precision(), violations.In("precision"));
  Validate(config.attention(), violations.In("attention"));
  Validate(config.recompute(), violations.In("recompute"));
  Validate(config.execution(), violations.In("execution"));
  Validate(config.layout(), violations.In("layout"));
  Validate(config.checkpoint(), violations.In("checkpoint"));
  Validate(config.observe(), violations.In("observe"));
  ValidatePrecisionOnDevice(config, violations);
  ValidateScheduleLength(config, violations);
  ValidateDataForModel(config, violations);
  ValidateSize(config, violations);
  ValidateSnapshotStep(config, violations);
  ValidateTraceWindow(config, violations);
  ValidatePatterns(config, violations);
}

void Validate(const TrainingConfig& config, Violations violations) {
  violations.Check(config.device() != TrainingConfig::UNSPECIFIED, "device",
                   "must be CPU or CUDA");
  violations.Check(config.steps() >= 1, "steps",
                   config.has_steps()
                       ? absl::StrCat("must be >= 1; is ", config.steps())
                       : "must be given, >= 1");
  violations.Check(config.batch_size() >= 1, "batch_size",
                   config.has_batch_size()
                       ? absl::StrCat("must be >= 1; is ", config.batch_size())
                       : "must be given, >= 1");
  violations.CheckAtLeast(1, config.micro_batches(), "micro_batches");
  ValidateBatch(config, violations);
  violations.CheckAtLeast(0, config.seed(), "seed");
  violations.Check(
      !config.has_eval_every_steps() || config.eval_every_steps() >= 1,
      "eval_every_steps",
      absl::StrCat("must be >= 1; is ", config.eval_every_steps(),
                   "; remove the field for one evaluation at the end"));
  violations.CheckAtLeast(0, config.eval_batches(), "eval_batches");
  violations.Check(
      config.sample_tokens_at_end() >= 0 &&
          config.sample_tokens_at_end() <= kMaxSampleTokens,
      "sample_tokens_at_end",
      absl::StrCat("must be in [0, 2^20]; is ", config.sample_tokens_at_end()));
  const std::string fault = Utf8Fault(config.sample_prompt());
  violations.Check(fault.empty(), "sample_prompt",
                   absl::StrCat("must be text; ", fault));
  violations.Check(
      config.label_smoothing() >= 0 && config.label_smoothing() < 1,
      "label_smoothing",
      absl::StrCat("must be in [0, 1); is ", config.label_smoothing()));
  violations.CheckNotNegativeInFp32(config.z_loss(), "z_loss");
}

TrainingObjective ObjectiveOf(const TrainingConfig& config) {
  return {.label_smoothing = static_cast<float>(config.label_smoothing()),
          .z_loss = static_cast<float>(config.z_loss())};
}

}  // namespace tessera
