// The files in configs/ are valid and have the sizes that docs/design.md lists.

#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "framework/base/text_proto.h"
#include "framework/optim/optimizer_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/config/config_text.h"
#include "trainers/config/config_loader.h"

namespace tessera {
namespace {

using ::testing::StartsWith;

// d_model, d_ff, layers, heads, parameters as counted in docs/design.md.
struct Size {
  int d_model, d_ff, layers, heads;
  double millions;
};
const std::map<std::string, Size> kSizes = {
    {"small", {768, 3072, 12, 12, 128.6}},
    {"medium", {1024, 4096, 24, 16, 423.2}},
    {"large", {1280, 5120, 36, 20, 969.4}},
    {"xl", {1600, 6400, 48, 25, 1998}},
    {"2.7B", {2560, 10240, 32, 32, 3407}},
};

// For docs/design.md's model with an untied head.
double MillionsOfParameters(const ModelConfig& model) {
  const double c = model.d_model(), f = model.d_ff();
  const double block = 4 * c * c + 3 * c * f + 2 * c;
  return (2.0 * model.vocab_size() * c + model.num_layers() * block + c) / 1e6;
}

class ConfigFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto tiny = FindRuntimeFile("configs/tiny_cpu.pbtxt");
    ASSERT_TRUE(tiny.ok()) << tiny.status();
    folder_ = tiny->substr(0, tiny->rfind('/'));
    files_ = Names("");
    ASSERT_GE(files_.size(), kSizes.size());
  }

  // The files of a folder in configs/, as "naive.pbtxt".
  std::vector<std::string> Names(const std::string& folder) const {
    std::vector<std::string> names;
    const auto all = ListDirectory(absl::StrCat(folder_, "/", folder));
    EXPECT_TRUE(all.ok()) << all.status();
    for (const std::string& name : *all) {
      if (absl::EndsWith(name, ".pbtxt")) names.push_back(name);
    }
    return names;
  }

  // The config from files in configs/, named without ".pbtxt".
  RunConfig Load(std::vector<std::string> names) const {
    for (std::string& name : names) {
      name = absl::StrCat(folder_, "/", name, ".pbtxt");
    }
    const auto config = LoadRunConfig(names, {});
    EXPECT_TRUE(config.ok()) << config.status();
    return config.value_or(RunConfig());
  }

  std::string folder_;
  std::vector<std::string> files_;  // files that are valid on their own
};

TEST_F(ConfigFilesTest, EveryOneParsesAndIsValid) {
  for (const std::string& file : files_) {
    const auto config = LoadRunConfig({folder_ + "/" + file}, {});
    EXPECT_TRUE(config.ok()) << config.status();
  }
}

TEST_F(ConfigFilesTest, EveryOneTrainsForAnyNumberOfSteps) {
  for (const std::string& file : files_) {
    for (const int64_t steps : {1, 2, 3, 20, 1000}) {
      const auto config = LoadRunConfig(
          {folder_ + "/" + file}, {absl::StrCat("training.steps=", steps)});
      ASSERT_TRUE(config.ok()) << config.status();
      // Checks that its phases fit.
      const OptimizerConfig& optimizer = config->optimizer();
      EXPECT_EQ(LearningRateScheduleOf(optimizer.schedule(),
                                       optimizer.adamw().lr(), steps)
                    .peak_lr,
                optimizer.adamw().lr())
          << file;
    }
  }
}

// As in the training of published results.
TEST_F(ConfigFilesTest, WarmupTakesATenthOrAnEighthOfTheSteps) {
  for (const std::string& file : files_) {
    const auto config = LoadRunConfig({folder_ + "/" + file}, {});
    ASSERT_TRUE(config.ok()) << config.status();
    const int64_t steps = config->training().steps();
    EXPECT_EQ(WarmupSteps(config->optimizer().schedule(), steps),
              file == "tiny_cpu.pbtxt" ? 50 : steps / 10)
        << file;
  }
}

TEST_F(ConfigFilesTest, EveryOneStartsWithItsSchemaAndPurpose) {
  for (const char* folder : {"", "precision/", "attention/"}) {
    for (const std::string& name : Names(folder)) {
      EXPECT_THAT(ReadFile(absl::StrCat(folder_, "/", folder, name)).value(),
                  StartsWith("# proto-file: trainers/config/run_config.proto\n"
                             "# proto-message: tessera.RunConfig\n"
                             "# "))
          << folder << name;
    }
  }
}

TEST_F(ConfigFilesTest, SizesMatchTheDesign) {
  for (const auto& [name, size] : kSizes) {
    const RunConfig config = Load({name});
    const ModelConfig& model = config.model();
    EXPECT_EQ(model.d_model(), size.d_model) << name;
    EXPECT_EQ(model.d_ff(), size.d_ff) << name;
    EXPECT_EQ(model.num_layers(), size.layers) << name;
    EXPECT_EQ(model.num_heads(), size.heads) << name;
    EXPECT_NEAR(MillionsOfParameters(model), size.millions,
                size.millions * 5e-4)
        << name;
    EXPECT_EQ(config.precision().mode(), PrecisionConfig::FP32);
    EXPECT_EQ(config.training().batch_size(), 4);
    EXPECT_EQ(model.context_length(), 512);
  }
}

// The files of attention/, as "naive", with the backend that each sets.
std::map<std::string, AttentionConfig::Backend> Backends() {
  std::map<std::string, AttentionConfig::Backend> backends;
  const auto& type = *AttentionConfig::Backend_descriptor();
  for (int i = 0; i < type.value_count(); ++i) {
    const auto backend = AttentionConfig::Backend(type.value(i)->number());
    if (backend == AttentionConfig::UNSPECIFIED) continue;
    if (backend == AttentionConfig::AUTO) continue;
    backends[absl::AsciiStrToLower(type.value(i)->name())] = backend;
  }
  return backends;
}

// An overlay sets what its name says. Those of attention/ also turn determinism
// off, which not every backend supports.
TEST_F(ConfigFilesTest, EverySizeTakesEveryPrecisionAndBackend) {
  const std::map<std::string, PrecisionConfig::Mode> precisions = {
      {"fp32", PrecisionConfig::FP32}, {"bf16", PrecisionConfig::BF16}};
  EXPECT_EQ(Names("precision").size(), precisions.size());
  EXPECT_EQ(Names("attention").size(), Backends().size());
  for (const auto& [size, unused] : kSizes) {
    RunConfig expected = Load({size});
    EXPECT_TRUE(expected.training().deterministic());
    for (const auto& [precision, mode] : precisions) {
      expected.mutable_precision()->set_mode(mode);
      EXPECT_EQ(PrintWithDefaults(Load({size, "precision/" + precision})),
                PrintWithDefaults(expected));
      RunConfig with_backend = expected;
      with_backend.mutable_training()->set_deterministic(false);
      for (const auto& [name, backend] : Backends()) {
        with_backend.mutable_attention()->set_backend(backend);
        EXPECT_EQ(PrintWithDefaults(Load(
                      {size, "precision/" + precision, "attention/" + name})),
                  PrintWithDefaults(with_backend));
      }
    }
  }
}

// The sizes in the README's commands have their own files.
TEST_F(ConfigFilesTest, NamedConfigsHaveTheirSizeAndPrecision) {
  for (const char* size : {"small", "2.7B"}) {
    EXPECT_EQ(PrintWithDefaults(Load({absl::StrCat(size, "_bf16")})),
              PrintWithDefaults(Load({size, "precision/bf16"})));
  }
}

TEST_F(ConfigFilesTest, ResolvedTextIsAConfigOfTheSameRun) {
  for (const std::string& file : files_) {
    const auto config = LoadRunConfig({folder_ + "/" + file}, {});
    ASSERT_TRUE(config.ok()) << config.status();
    const auto again =
        LoadRunConfig({WriteConfig(PrintWithDefaults(*config))}, {});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(ConfigHash(*again), ConfigHash(*config)) << file;
  }
}

}  // namespace
}  // namespace tessera
