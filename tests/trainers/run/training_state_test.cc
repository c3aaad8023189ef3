#include "trainers/run/training_state.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/dist/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/weights.h"
#include "tests/trainers/toy_session.h"
#include "trainers/run/run_identity.h"

namespace tessera {
namespace {

// Embedding and head have 17 MiB each, so copies from a GPU take several
// pieces.
std::unique_ptr<Session> LargeVocabulary(const std::string& device,
                                         const std::string& precision) {
  return Toy("configs/tiny_cpu.pbtxt",
             {"model.vocab_size=140001", "training.device=" + device,
              "precision.mode=" + precision});
}

// Number of elements of `slice` that differ in `file`, where its name has
// `prefix`; all of them if the tensor is missing or has another shape.
int64_t Differing(const StoredTensors& file, const std::string& prefix,
                  const ParameterSlice& slice, const at::Tensor& buffer) {
  const StoredTensor* found = file.Find(absl::StrCat(prefix, slice.name));
  if (found == nullptr || found->spec.shape != slice.shape) return slice.numel;
  const at::Tensor stored = at::from_blob(
      const_cast<char*>(found->bytes.data()), {slice.numel}, at::kFloat);
  return stored.ne(buffer.narrow(0, slice.offset, slice.numel).cpu())
      .sum()
      .item<int64_t>();
}

// Device and precision.
class TrainingStateTest
    : public testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(TrainingStateTest, EveryTensorIsStoredAndRestored) {
  const auto& [device, precision] = GetParam();
  if (device == "CUDA" && !at::hasCUDA()) {
    GTEST_SKIP() << "needs a CUDA GPU";
  }
  const auto session = LargeVocabulary(device, precision);
  Train(*session, 2);
  const TrainingState& state = session->state();
  const auto draw = [&] {
    return at::rand({8}, state.parameters->grad().options());
  };
  draw();  // advances the generator
  // Shards of one program may run at the same time.
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/training_state_", getpid());
  ASSERT_TRUE(RemoveTree(folder).ok());
  auto writer = CheckpointWriter::Begin(folder, 2).value();
  const absl::Status added = AddState(state, writer.get());
  ASSERT_TRUE(added.ok()) << added;
  const std::string saved = writer->Commit(ExportState(state), "").value();
  const at::Tensor drawn = draw();

  const auto checkpoint = Checkpoint::Open(saved).value();
  const StoredTensors& model = *checkpoint->Tensors(kModelFile).value();
  const StoredTensors& moments = *checkpoint->Tensors(kOptimizerFile).value();
  for (const ParameterSlice& slice : state.parameters->slices()) {
    EXPECT_EQ(Differing(model, "", slice, WeightsOf(*state.parameters)), 0)
        << slice.name;
    EXPECT_EQ(Differing(moments, "exp_avg.", slice, state.optimizer->exp_avg()),
              0)
        << slice.name;
    EXPECT_EQ(
        Differing(moments, "exp_avg_sq.", slice, state.optimizer->exp_avg_sq()),
        0)
        << slice.name;
  }

  const auto fresh = LargeVocabulary(device, precision);
  const absl::Status restored = Restore(*checkpoint, fresh->state());
  ASSERT_TRUE(restored.ok()) << restored;
  const auto restored_weights = fresh->state().parameters->weights().Defined();
  const auto weights = state.parameters->weights().Defined();
  ASSERT_EQ(restored_weights.size(), weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(at::equal(restored_weights[i], weights[i])) << "buffer " << i;
  }
  EXPECT_TRUE(at::equal(fresh->state().optimizer->exp_avg(),
                        state.optimizer->exp_avg()));
  EXPECT_TRUE(at::equal(fresh->state().optimizer->exp_avg_sq(),
                        state.optimizer->exp_avg_sq()));
  EXPECT_EQ(fresh->state().optimizer->step().item<int64_t>(), 2);
  EXPECT_TRUE(at::equal(draw(), drawn));
  ASSERT_TRUE(RemoveTree(folder).ok());
}

// A checkpoint with its state.json changed by `edit`, and valid checksums.
std::unique_ptr<Checkpoint> WithState(
    Session& session, const std::function<void(nlohmann::json*)>& edit) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/training_state_", getpid());
  EXPECT_TRUE(RemoveTree(folder).ok());
  auto writer = CheckpointWriter::Begin(folder, 2).value();
  EXPECT_TRUE(AddState(session.state(), writer.get()).ok());
  nlohmann::json state = ExportState(session.state());
  state["step"] = 2;
  state["samples"] = 8;
  AddDataIdentity(session, &state);
  state["loss_scaler"] = {
      {"scale", 8.0}, {"steps_since_change", 1}, {"skipped_steps", 0}};
  state["products"] = {{"machine", "a GPU"},
                       {"algorithms", {{"BFloat16 1 x 2", "0aF9"}}}};
  edit(&state);
  return Checkpoint::Open(writer->Commit(state, "").value()).value();
}

absl::Status Resume(const Checkpoint& checkpoint, Session& session) {
  absl::Status status = CheckSameStep(checkpoint);
  status.Update(
      CheckSameData(checkpoint, session.plan().config, session.data()));
  status.Update(SamplesOf(checkpoint).status());
  status.Update(Restore(checkpoint, session.state()));
  return status;
}

TEST(StateFieldsTest, EveryFieldIsCheckedAndNamed) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  ASSERT_TRUE(
      Resume(*WithState(*session, [](nlohmann::json*) {}), *session).ok());
  const std::vector<const char*> never = {"{}",  "\"many\"", "null",
                                          "[2]", "-1",       "1.5"};
  const std::vector<const char*> too_large = {"1e300", "4611686018427387904"};
  struct Field {
    std::string pointer, name;
    std::vector<const char*> more;  // other invalid values
  };
  for (const Field& field : std::vector<Field>{
           {"/step", "step", {"2.0"}},
           {"/samples", "samples", too_large},
           {"/optimizer_step", "optimizer_step", too_large},
           {"/data_fingerprint", "data_fingerprint", {}},
           {"/data_order", "data_order", {"\"\""}},
           {"/data_order/training.seed", "data_order.training.seed", {"0.0"}},
           {"/data_order/model.context_length",
            "data_order.model.context_length",
            {}},
           {"/data_order/data.shuffle", "data_order.data.shuffle", {"0"}},
           {"/random", "random", {"\"\"", "[\"\"]", "[]"}},
           {"/random/0", "random", {"\"AAAA\""}},
           {"/loss_scaler/scale", "loss_scaler.scale", {"0", "1e300"}},
           {"/loss_scaler/steps_since_change", "loss_scaler.steps_since_change",
            too_large},
           {"/loss_scaler/skipped_steps", "loss_scaler.skipped_steps",
            too_large},
           {"/loss_scaler", "loss_scaler", {}},
           {"/products", "products", {"7"}},
           {"/products/machine", "products.machine", {}},
           {"/products/algorithms", "products.algorithms", {"\"ab\""}},
           {"/products/algorithms/BFloat16 1 x 2",
            "products.algorithms.BFloat16 1 x 2",
            {"\"0g\""}}}) {
    const nlohmann::json::json_pointer at(field.pointer);
    std::vector<const char*> wrong = never;
    wrong.insert(wrong.end(), field.more.begin(), field.more.end());
    for (const char* value : wrong) {
      const nlohmann::json json = nlohmann::json::parse(value);
      if (field.name == "loss_scaler.scale" && json == 1.5) continue;
      if (field.name == "products" && json.is_null()) continue;
      if (field.name == "products.machine" && json.is_string()) continue;
      if (field.name == "products.algorithms" && json.is_object()) continue;
      const auto checkpoint = WithState(
          *session, [&](nlohmann::json* state) { (*state)[at] = json; });
      const absl::Status status = Resume(*checkpoint, *session);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
          << field.name << " = " << value << ": " << status;
      EXPECT_THAT(std::string(status.message()),
                  testing::HasSubstr(absl::StrCat(
                      checkpoint->folder(), "/state.json: ", field.name)));
    }
    if (field.name == "loss_scaler" || field.pointer == "/random/0" ||
        field.name == "products" ||
        field.pointer.find("/products/algorithms/") == 0) {
      continue;  // may be absent
    }
    const auto checkpoint = WithState(*session, [&](nlohmann::json* state) {
      (*state)[at.parent_pointer()].erase(at.back());
    });
    EXPECT_THAT(std::string(Resume(*checkpoint, *session).message()),
                testing::HasSubstr("; is missing"))
        << field.name;
  }
}

TEST(InitialWeightsTest, AreRoundedToTheDtypeOfTheModel) {
  const auto from = Toy("configs/tiny_cpu.pbtxt");
  const auto to = Toy("configs/tiny_cpu.pbtxt", {"precision.mode=BF16_PURE"});
  const auto checkpoint = WithState(*from, [](nlohmann::json*) {});
  const at::Tensor moments = to->state().optimizer->exp_avg().clone();
  const absl::Status status =
      RestoreParameters(*checkpoint, to->state().parameters);
  ASSERT_TRUE(status.ok()) << status;
  const at::Tensor weights = WeightsOf(*to->state().parameters);
  EXPECT_TRUE(at::equal(
      weights, WeightsOf(*from->state().parameters).to(weights.scalar_type())));
  // A resumed run needs exactly its own bits.
  EXPECT_EQ(Restore(*checkpoint, to->state()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(InitialWeightsTest, OfAnotherShapeAreRejectedByName) {
  const auto from = Toy("configs/tiny_cpu.pbtxt");
  const auto checkpoint = WithState(*from, [](nlohmann::json*) {});
  const auto wider = Toy("configs/tiny_cpu.pbtxt", {"model.d_ff=48"});
  const absl::Status status =
      RestoreParameters(*checkpoint, wider->state().parameters);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      testing::AllOf(testing::HasSubstr("tensor layers.0.ffn."),
                     testing::HasSubstr("in this run's model it is F32 ["),
                     testing::HasSubstr("/config.pbtxt")));
}

// Checkpoints hold FP32 values, however a run keeps them: whole under FP32, in
// two halves under BF16, or with a shadow as well for a tied head.
TEST(RestoreTest, FormsOfWeightsExchangeCheckpoints) {
  for (const char* const tied : {"false", "true"}) {
    const auto make = [&](const std::string& precision) {
      return Toy("configs/tiny_cpu.pbtxt",
                 {"precision.mode=" + precision,
                  std::string("model.tied_head=") + tied});
    };
    for (const auto& [saved_in, loaded_in] :
         {std::pair("FP32", "BF16"), std::pair("BF16", "FP32"),
          std::pair("BF16", "BF16")}) {
      SCOPED_TRACE(absl::StrCat(saved_in, " to ", loaded_in, ", tied ", tied));
      const auto trained = make(saved_in);
      Train(*trained, 2);
      const auto fresh = make(loaded_in);
      ResumeFrom(*trained, 2, *fresh);
      EXPECT_TRUE(at::equal(WeightsOf(*fresh->state().parameters),
                            WeightsOf(*trained->state().parameters)));
      EXPECT_TRUE(at::equal(fresh->state().optimizer->exp_avg_sq(),
                            trained->state().optimizer->exp_avg_sq()));
    }
  }
}

TEST(RestoreTest, ProductsReadTheRestoredWeights) {
  const std::vector<std::string> bf16 = {"precision.mode=BF16"};
  const auto trained = Toy("configs/tiny_cpu.pbtxt", bf16);
  Train(*trained, 2);
  const auto fresh = Toy("configs/tiny_cpu.pbtxt", bf16);
  ResumeFrom(*trained, 2, *fresh);
  const auto head = [](Session& session) {
    return session.state().parameters->Get("lm_head.weight").As(at::kBFloat16);
  };
  EXPECT_TRUE(at::equal(head(*fresh), head(*trained)));
  EXPECT_EQ(Train(*fresh, fresh->step(), 2, 3),
            Train(*trained, trained->step(), 2, 3));
}

// The bytes that this process has read, through mappings, of files whose path
// contains `folder`.
int64_t BytesRead(const std::string& folder) {
  std::ifstream maps("/proc/self/smaps");
  int64_t kib = 0;
  bool counts = false;
  for (std::string line; std::getline(maps, line);) {
    const bool is_field = line.substr(0, line.find(' ')).back() == ':';
    if (!is_field) counts = absl::StrContains(line, folder);
    if (!counts || !absl::StartsWith(line, "Rss:")) continue;
    kib += std::stoll(line.substr(sizeof("Rss:")));
  }
  return kib << 10;
}

// Rank 2 of 4. Its weights are whole up to stage 2.
TEST(RestoreTest, ARankReadsOnlyWhatItHas) {
  const auto saved = LargeVocabulary("CPU", "FP32");
  const std::string name = absl::StrCat("reads_a_part_", getpid());
  const std::string folder = absl::StrCat(testing::TempDir(), "/", name);
  ASSERT_TRUE(RemoveTree(folder).ok());
  auto writer = CheckpointWriter::Begin(folder, 2).value();
  ASSERT_TRUE(AddState(saved->state(), writer.get()).ok());
  const std::string checkpoint =
      writer->Commit(ExportState(saved->state()), "").value();
  const WorldInfo world = SimulatedWorld(4, 2, [](const char*) -> const char* {
                            return nullptr;
                          }).value();
  const int64_t bytes =
      4 * saved->state().parameters->num_parameters();  // in FP32
  // The system maps up to 2 MiB around what is read. Two matrices and four
  // moments are large; all of them have three times `bytes`.
  constexpr int64_t kSlack = 6 * 2 * (2 << 20);
  for (const auto& [zero, expected] :
       {std::pair{1, bytes + 2 * bytes / 4}, {3, 3 * bytes / 4}}) {
    const auto session =
        Session::Create(PlanRun(ToyConfig("configs/tiny_cpu.pbtxt",
                                          {"model.vocab_size=140001",
                                           absl::StrCat("layout.zero=", zero)}),
                                world)
                            .value(),
                        {});
    ASSERT_TRUE(session.ok()) << session.status();
    // A share of the verification without a file.
    const auto opened = Checkpoint::Open(
        checkpoint, Checkpoint::Part::kEverything, {.index = 2, .count = 3});
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_LT(BytesRead(name), kSlack);
    ASSERT_TRUE(Restore(**opened, (*session)->state()).ok());
    EXPECT_GE(BytesRead(name), expected) << "ZeRO " << zero;
    EXPECT_LT(BytesRead(name), expected + kSlack) << "ZeRO " << zero;
  }
  ASSERT_TRUE(RemoveTree(folder).ok());
}

INSTANTIATE_TEST_SUITE_P(Cpu, TrainingStateTest,
                         testing::Values(std::pair("CPU", "FP32"),
                                         std::pair("CPU", "BF16")));
INSTANTIATE_TEST_SUITE_P(Gpu, TrainingStateTest,
                         testing::Values(std::pair("CUDA", "FP32"),
                                         std::pair("CUDA", "BF16")));

}  // namespace
}  // namespace tessera
