#include "trainers/generation/sampling.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "attention_backends/backend_table.h"
#include "framework/data/tokenize/utf8.h"
#include "framework/program/executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"
#include "trainers/generation/text_generation.h"
#include "trainers/plan/run_plan.h"

namespace tessera {
namespace {

// Not a multiple of anything: the model sees 64, 128 and 130 tokens.
constexpr int64_t kContext = 130;
constexpr int64_t kTokens = 140;

std::vector<std::string> OnDevice(const std::string& device,
                                  const std::string& backend,
                                  const std::string& precision) {
  return {"model.d_model=128",
          "model.context_length=130",
          "training.device=" + device,
          "training.deterministic=false",
          "attention.backend=" + backend,
          "precision.mode=" + precision};
}

std::unique_ptr<Session> Trained(const std::vector<std::string>& sets) {
  auto session = Toy("configs/tiny_cpu.pbtxt", sets);
  Train(*session, 20);
  return session;
}

NextTokenModel ModelOf(Session& session) {
  return NextTokenModel(session.plan(), *session.state().parameters);
}

std::vector<int64_t> MostLikely(NextTokenModel& model) {
  std::vector<int64_t> tokens = {3};
  const absl::Status status =
      Sample(model, tokens, {.temperature = 0, .max_tokens = kTokens},
             [&](int64_t, int64_t token) {
               tokens.push_back(token);
               return true;
             });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(tokens.size(), 1 + kTokens);
  return tokens;
}

// The largest difference, over positions, between the logit of the most likely
// token and that of the token in `tokens`, given exactly the tokens before.
double LargestLoss(Session& session, const std::vector<int64_t>& tokens) {
  const RunPlan& plan = session.plan();
  double largest = 0;
  for (size_t i = 1; i < tokens.size(); ++i) {
    const std::vector<int64_t> seen(
        tokens.begin() + (i > kContext ? i - kContext : 0), tokens.begin() + i);
    const int64_t length = static_cast<int64_t>(seen.size());
    const ProgramTarget target = TargetOf(plan);
    const NextTokenProgram next =
        BuildNextTokenProgram(
            {.shape = plan.shape,
             .batch = 1,
             .sequence = length,
             .backend = FindBackend("NAIVE"),
             .attention = AttentionProblemOf(plan.shape, 1, length,
                                             /*needs_grad=*/false, target)},
            target)
            .value();
    const Schedule schedule = ForwardSchedule(next.program);
    Executor executor(schedule, PlanLifetimes(schedule),
                      *session.state().parameters);
    const at::Device device = plan.device.device;
    executor.SetInput(next.ids, at::tensor(seen).unsqueeze(0).to(device));
    executor.SetInput(next.position,
                      at::full({1}, length - 1, at::kLong).to(device));
    executor.Run();
    const at::Tensor logits =
        executor.Get(next.logits).flatten().to(at::kFloat);
    largest =
        std::max(largest, (logits.max() - logits[tokens[i]]).item<double>());
  }
  return largest;
}

TEST(SamplingTest, DrawsFromTheModelsPredictions) {
  const auto session = Trained(OnDevice("CPU", "NAIVE", "FP32"));
  NextTokenModel model = ModelOf(*session);
  const std::vector<int64_t> tokens = MostLikely(model);
  EXPECT_LE(LargestLoss(*session, tokens), 1e-4);
  // A different token would be detected.
  std::vector<int64_t> other = tokens;
  other[100] = (other[100] + 1) % 61;
  EXPECT_GT(LargestLoss(*session, other), 1e-2);
}

// The tokens that can be drawn, each with its share of [0, 1), determined with
// a fine grid of numbers.
std::vector<double> Shares(const std::vector<float>& logits,
                           const SamplingOptions& options) {
  constexpr int kDraws = 4000;
  std::vector<double> shares(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    shares[DrawToken(logits, options, (i + 0.5) / kDraws)] += 1.0 / kDraws;
  }
  return shares;
}

TEST(DrawTokenTest, KeepsTheLikeliestTokensWithTheirProbabilities) {
  // Probabilities 1/4, 1/8, 1/2 and 1/8.
  const std::vector<float> logits = {std::log(2.0f), 0, std::log(4.0f), 0};
  using testing::DoubleNear;
  using testing::ElementsAre;
  const auto near = [](double share) { return DoubleNear(share, 1e-3); };
  EXPECT_THAT(Shares(logits, {}),
              ElementsAre(near(0.25), near(0.125), near(0.5), near(0.125)));
  EXPECT_THAT(Shares(logits, {.temperature = 0}),
              ElementsAre(0, 0, near(1), 0));
  // Squares: 4, 1, 16 and 1 of 22.
  EXPECT_THAT(Shares(logits, {.temperature = 0.5}),
              ElementsAre(near(4.0 / 22), near(1.0 / 22), near(16.0 / 22),
                          near(1.0 / 22)));
  EXPECT_THAT(Shares(logits, {.top_k = 2}),
              ElementsAre(near(1.0 / 3), 0, near(2.0 / 3), 0));
  // Of two equally likely tokens, the first.
  EXPECT_THAT(Shares(logits, {.top_k = 3}),
              ElementsAre(near(2.0 / 7), near(1.0 / 7), near(4.0 / 7), 0));
  // The fewest that reach the sum.
  EXPECT_THAT(Shares(logits, {.top_p = 0.49}), ElementsAre(0, 0, near(1), 0));
  EXPECT_THAT(Shares(logits, {.top_p = 0.51}),
              ElementsAre(near(1.0 / 3), 0, near(2.0 / 3), 0));
  // Exactly the sum is enough: one of two tokens.
  EXPECT_THAT(Shares({0, 0}, {.top_p = 0.5}), ElementsAre(near(1), 0));
  // At least a third, a half as likely as the likeliest.
  EXPECT_THAT(Shares(logits, {.min_p = 0.3}),
              ElementsAre(near(1.0 / 3), 0, near(2.0 / 3), 0));
  EXPECT_THAT(Shares(logits, {.min_p = 0.51}), ElementsAre(0, 0, near(1), 0));
  // Relative to the tokens that top_k keeps: 2/3 is one of two.
  EXPECT_THAT(Shares(logits, {.top_k = 2, .top_p = 0.6}),
              ElementsAre(0, 0, near(1), 0));
}

TEST(DrawTokenTest, DrawsFromAllOfALargeVocabulary) {
  constexpr int64_t kVocab = 300;
  at::manual_seed(7);
  const at::Tensor row = at::randn({kVocab}) / 2;
  const std::vector<float> logits(row.const_data_ptr<float>(),
                                  row.const_data_ptr<float>() + kVocab);
  const at::Tensor shares = at::tensor(Shares(logits, {}), at::kDouble);
  const at::Tensor wanted = at::softmax(row.to(at::kDouble), 0);
  EXPECT_LE((shares - wanted).abs().max().item<double>(), 1e-3);
  // The 200 likeliest.
  const at::Tensor top =
      at::tensor(Shares(logits, {.top_k = 200}), at::kDouble);
  EXPECT_EQ((top > 0).sum().item<int64_t>(), 200);
  EXPECT_LE(wanted.masked_select(top == 0).max().item<double>(),
            wanted.masked_select(top > 0).min().item<double>());
}

// DrawToken() in other words: sorts all tokens first.
int64_t PlainlyDrawn(const std::vector<float>& logits,
                     const SamplingOptions& options, double uniform) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  const auto weight = [&](int64_t token) {
    return std::exp((double{logits[token]} - logits[order[0]]) /
                    options.temperature);
  };
  double mass = 0;
  if (options.top_k > 0) {
    order.resize(options.top_k);
    for (const int64_t token : order) mass += weight(token);
  } else {
    for (size_t token = 0; token < logits.size(); ++token) {
      mass += weight(static_cast<int64_t>(token));
    }
  }
  if (options.top_p < 1 || options.min_p > 0) {
    const double enough = options.top_p * mass;
    size_t kept = 0;
    for (mass = 0; kept < order.size() && mass < enough &&
                   weight(order[kept]) >= options.min_p;
         ++kept) {
      mass += weight(order[kept]);
    }
    order.resize(kept);
  }
  double target = uniform * mass;
  for (const int64_t token : order) {
    target -= weight(token);
    if (target < 0) return token;
  }
  return order.back();
}

TEST(DrawTokenTest, SortsOnlyTheFirstTokensAndDrawsTheSame) {
  constexpr int64_t kVocab = 5000;
  at::manual_seed(7);
  const std::vector<SamplingOptions> all = {
      {},
      {.temperature = 0.8, .top_p = 0.95},
      {.min_p = 0.01},
      {.temperature = 0.3, .top_k = 900, .top_p = 0.9}};
  for (const double scale : {0.0, 0.1, 1.0, 5.0}) {
    // Many are equal, and some are -0.
    const at::Tensor row = at::round(at::randn({kVocab}) * scale * 8) / 8;
    const std::vector<float> logits(row.const_data_ptr<float>(),
                                    row.const_data_ptr<float>() + kVocab);
    for (size_t i = 0; i < all.size(); ++i) {
      for (double uniform = 0; uniform < 1; uniform += 0.01) {
        ASSERT_EQ(DrawToken(logits, all[i], uniform),
                  PlainlyDrawn(logits, all[i], uniform))
            << scale << " " << i << " " << uniform;
      }
    }
  }
}

TEST(DrawTokenTest, StaysWithinTheVocabularyAtTheEnds) {
  const std::vector<float> logits = {0, 0, 0};
  EXPECT_EQ(DrawToken(logits, {}, 0), 0);
  EXPECT_EQ(DrawToken(logits, {}, std::nextafter(1.0, 0.0)), 2);
  EXPECT_EQ(DrawToken(logits, {}, 1), 2);
}

TEST(SamplingTest, StopsBeforeItsStopTokenAndDrawsOnlyTokensWithText) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  NextTokenModel model = ModelOf(*session);
  const auto sample = [&](const SamplingOptions& options) {
    std::vector<int64_t> tokens;
    const absl::Status status =
        Sample(model, {3}, options, [&](int64_t, int64_t token) {
          tokens.push_back(token);
          return true;
        });
    EXPECT_TRUE(status.ok()) << status;
    return tokens;
  };
  const std::vector<int64_t> all = sample({.seed = 5, .max_tokens = 12});
  ASSERT_EQ(all.size(), 12u);
  EXPECT_EQ(sample({.seed = 5, .max_tokens = 12}), all);
  EXPECT_NE(sample({.seed = 6, .max_tokens = 12}), all);
  const int64_t stop = all[7];
  const auto end = std::find(all.begin(), all.end(), stop);
  EXPECT_EQ(sample({.seed = 5, .max_tokens = 12, .stop_tokens = {99, stop}}),
            std::vector<int64_t>(all.begin(), end));
  for (const int64_t token :
       sample({.seed = 5, .max_tokens = 50, .vocab_size = 4})) {
    EXPECT_LT(token, 4);
  }
}

TEST(SamplingTest, APenaltyKeepsTokensFromBeingRepeated) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  NextTokenModel model = ModelOf(*session);
  const auto distinct = [&](double penalty) {
    std::set<int64_t> tokens = {3};
    const absl::Status status = Sample(
        model, {3},
        {.temperature = 0, .repetition_penalty = penalty, .max_tokens = 40},
        [&](int64_t, int64_t token) {
          tokens.insert(token);
          return true;
        });
    EXPECT_TRUE(status.ok()) << status;
    return tokens.size();
  };
  EXPECT_EQ(distinct(100), 41u);
  EXPECT_LT(distinct(1), 41u);
}

// As in transformers. What only comes before the text is no part of it.
TEST(SamplingTest, APenaltyCountsStopTokensOfThePrompt) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  NextTokenModel model = ModelOf(*session);
  const std::vector<float> logits = model.LogitsAfter({{0, 1}}).value();
  ASSERT_GT(logits[0], 0);
  ASSERT_GT(logits[1], logits[0]);
  const auto ends = [&](int64_t before_text) {
    bool ended = true;
    const absl::Status status = Sample(model, {0, 1},
                                       {.temperature = 0,
                                        .repetition_penalty = 100,
                                        .before_text = before_text,
                                        .max_tokens = 1,
                                        .stop_tokens = {0},
                                        .vocab_size = 2},
                                       [&](int64_t, int64_t) {
                                         ended = false;
                                         return true;
                                       });
    EXPECT_TRUE(status.ok()) << status;
    return ended;
  };
  EXPECT_FALSE(ends(0));  // both are penalized
  EXPECT_TRUE(ends(1));
}

TEST(SamplingTest, RefusesOptionsOutOfRange) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto refusal = [](const SamplingOptions& options) {
    const absl::Status status = Validate(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal({.temperature = kInfinity}),
            "temperature must be a finite number >= 0; is inf");
  EXPECT_EQ(refusal({.temperature = std::nan("")}),
            "temperature must be a finite number >= 0; is nan");
  EXPECT_EQ(refusal({.samples = 0}), "samples must be in [1, 1024]; is 0");
  EXPECT_EQ(refusal({.max_tokens = 2000000000}),
            "max_tokens must be in [1, 1048576]; is 2000000000");
  EXPECT_EQ(refusal({.min_p = 1.5}), "min_p must be in [0, 1]; is 1.5");
  for (const double penalty : {0.0, 1e-40, 1e300, std::nan("")}) {
    EXPECT_THAT(refusal({.repetition_penalty = penalty}),
                testing::HasSubstr("repetition_penalty must be in [0.01, 100]"))
        << penalty;
  }
  EXPECT_TRUE(Validate({.temperature = 1e300, .max_tokens = 1 << 20}).ok());
}

TEST(SamplingTest, AModelWithoutFiniteLogitsIsAnError) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  session->state().parameters->weights().master.fill_(std::nan(""));
  NextTokenModel model = ModelOf(*session);
  const absl::Status status =
      Sample(model, {3}, {}, [](int64_t, int64_t) { return true; });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("its logits are not finite"));
}

// Every token is a part of a character or a character.
class PartsTokenizer : public Tokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view) const override {
    return std::vector<int32_t>();
  }
  absl::StatusOr<std::string> Decode(
      absl::Span<const int32_t> ids) const override {
    const char* const kTexts[] = {"a", "\xc3", "\xa9", "\xe2\x96", "\205b", ""};
    std::string text;
    for (const int32_t id : ids) text += kTexts[id % std::size(kTexts)];
    return text;
  }
  TokenizerKind kind() const override { return TokenizerKind::kBytes; }
  int64_t vocab_size() const override { return 60; }
  int32_t eos_id() const override { return 60; }
  std::string Serialize() const override { return ""; }
};

class BeginningTokenizer : public PartsTokenizer {
 public:
  std::vector<int32_t> begin_ids() const override { return {7, 8}; }
};

Prompt PromptOf(const std::string& text) {
  return MakePrompt(PartsTokenizer(), {}, text).value();
}

TEST(PromptTest, BeginsAsTheTokenizerSays) {
  EXPECT_EQ(PromptOf("a").tokens, std::vector<int64_t>{60});
  EXPECT_EQ(PromptOf("a").before_text, 1);
  const Prompt prompt = MakePrompt(BeginningTokenizer(), {}, "a").value();
  EXPECT_EQ(prompt.tokens, (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(prompt.before_text, 2);
  EXPECT_EQ(prompt.text, "a");
}

// Attention did not look beyond a document, nor was its end a context.
TEST(PromptTest, SeparateDocumentsDoNotFollowTheEndOfAnother) {
  DataConfig data;
  data.set_documents(DataConfig::SEPARATE);
  EXPECT_TRUE(MakePrompt(PartsTokenizer(), data, "a").value().tokens.empty());
  const auto nothing = MakePrompt(PartsTokenizer(), data, "");
  EXPECT_TRUE(absl::IsInvalidArgument(nothing.status()));
  EXPECT_EQ(MakePrompt(BeginningTokenizer(), data, "").value().tokens,
            (std::vector<int64_t>{7, 8}));
  data.set_train_across_documents(true);
  EXPECT_EQ(MakePrompt(PartsTokenizer(), data, "").value().tokens,
            std::vector<int64_t>{60});
}

TEST(SampleTextTest, EmitsWholeCharactersAsTheyAreDrawn) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  NextTokenModel model = ModelOf(*session);
  const SamplingOptions options = {.temperature = 5, .max_tokens = 300};
  const PartsTokenizer tokenizer;
  std::vector<std::string> pieces;
  const auto keep = [&](absl::string_view text) {
    pieces.emplace_back(text);
    return absl::OkStatus();
  };
  ASSERT_TRUE(
      SampleText(model, tokenizer, PromptOf("say: "), options, keep).ok());
  ASSERT_EQ(pieces.size(), 302u);  // the prompt, each token, and what is held
  EXPECT_EQ(pieces[0], "say: ");
  std::string text;
  int held = 0;
  std::set<size_t> ends;  // of the pieces
  for (const std::string& piece : pieces) {
    text += piece;
    ends.insert(text.size());
    held += piece.empty();
  }
  EXPECT_GT(held, 20);
  int characters = 0;  // of several bytes
  for (size_t at = 0; at < text.size();) {
    const int bytes = Utf8CharacterBytes(absl::string_view(text).substr(at));
    for (int i = 1; i < bytes; ++i) EXPECT_EQ(ends.count(at + i), 0u) << at;
    characters += bytes > 1;
    at += std::max(1, bytes);
  }
  EXPECT_GT(characters, 5);
  // The same tokens, decoded at once.
  std::vector<int32_t> tokens;
  SamplingOptions same = options;
  same.vocab_size = tokenizer.vocab_size();
  ASSERT_TRUE(
      Sample(model, {tokenizer.eos_id()}, same, [&](int64_t, int64_t token) {
        tokens.push_back(static_cast<int32_t>(token));
        return true;
      }).ok());
  EXPECT_EQ(text, absl::StrCat("say: ", tokenizer.Decode(tokens).value()));
  // An error ends the sample.
  const absl::Status full = absl::FailedPreconditionError("full");
  int calls = 0;
  EXPECT_EQ(SampleText(model, tokenizer, PromptOf(""), options,
                       [&](absl::string_view) {
                         return ++calls == 3 ? full : absl::OkStatus();
                       }),
            full);
  EXPECT_EQ(calls, 3);
}

TEST(SampleTextTest, SeveralSamplesAreThoseOfTheirSeeds) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  NextTokenModel model = ModelOf(*session);
  const PartsTokenizer tokenizer;
  const auto sample = [&](SamplingOptions options) {
    options.temperature = 5;
    options.max_tokens = 40;
    options.stop_texts = {"ab"};  // some end before the others
    std::string text;
    const absl::Status status =
        SampleText(model, tokenizer, PromptOf("so: "), options,
                   [&](absl::string_view piece) {
                     absl::StrAppend(&text, piece);
                     return absl::OkStatus();
                   });
    EXPECT_TRUE(status.ok()) << status;
    return text;
  };
  std::vector<std::string> single_samples;
  std::set<size_t> lengths;
  for (uint64_t seed = 7; seed < 12; ++seed) {
    single_samples.push_back(sample({.seed = seed}));
    lengths.insert(single_samples.back().size());
  }
  EXPECT_GT(lengths.size(), 2u);
  EXPECT_EQ(sample({.samples = 5, .seed = 7}),
            absl::StrJoin(single_samples, "\n---\n"));
}

TEST(SampleTokensTest, EachSampleIsALine) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  NextTokenModel model = ModelOf(*session);
  const auto sample = [&](const SamplingOptions& options) {
    std::string text;
    const absl::Status status =
        SampleTokens(model, {3, 1}, options, [&](absl::string_view piece) {
          absl::StrAppend(&text, piece);
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
    return text;
  };
  const std::string first = sample({.seed = 4, .max_tokens = 9});
  EXPECT_THAT(first, testing::StartsWith("3,1,"));
  EXPECT_EQ(sample({.samples = 2, .seed = 4, .max_tokens = 9}),
            absl::StrCat(first, "\n", sample({.seed = 5, .max_tokens = 9})));
}

TEST(SampleTokensTest, ThreadsDrawTheSame) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  NextTokenModel model = ModelOf(*session);
  const int threads = at::get_num_threads();
  std::vector<std::string> texts;
  for (const int count : {1, 4}) {
    at::set_num_threads(count);
    std::string& text = texts.emplace_back();
    // So many samples that each thread has some.
    const absl::Status status = SampleTokens(
        model, {3, 1},
        {.repetition_penalty = 2, .samples = 1024, .max_tokens = 5},
        [&](absl::string_view piece) {
          absl::StrAppend(&text, piece);
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
  }
  at::set_num_threads(threads);
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(SampleTextTest, EndsBeforeItsStopText) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  NextTokenModel model = ModelOf(*session);
  const PartsTokenizer tokenizer;
  const auto sample = [&](const std::vector<std::string>& stops) {
    std::string text;
    const absl::Status status =
        SampleText(model, tokenizer, PromptOf(""),
                   {.temperature = 5, .max_tokens = 100, .stop_texts = stops},
                   [&](absl::string_view piece) {
                     absl::StrAppend(&text, piece);
                     return absl::OkStatus();
                   });
    EXPECT_TRUE(status.ok()) << status;
    return text;
  };
  const std::string all = sample({});
  EXPECT_EQ(sample({"no token has this"}), all);
  // Three bytes are parts of two tokens at least.
  for (size_t at : {size_t{0}, all.size() / 2, all.size() - 3}) {
    const std::string stop = all.substr(at, 3);
    const std::string text = all.substr(0, all.find(stop));
    EXPECT_EQ(sample({stop}), text) << at;
    // The first in the text ends it, not the first in the list. One that has
    // begun and does not come holds back no more than itself.
    EXPECT_EQ(sample({all.substr(all.size() - 2), stop + "\x01", stop}),
              all.substr(0, std::min(text.size(),
                                     all.find(all.substr(all.size() - 2)))))
        << at;
  }
}

// Not from capped logits divided by the temperature before the cap, which is
// another distribution.
TEST(SamplingTest, DrawsFromCappedLogitsAtEachTemperature) {
  constexpr double kCap = 0.5;
  const auto plain = Toy("configs/tiny_cpu.pbtxt");
  const auto capped =
      Toy("configs/tiny_cpu.pbtxt", {"model.logit_soft_cap=0.5"});
  NextTokenModel plain_model = ModelOf(*plain), capped_model = ModelOf(*capped);
  // Both have the same initial weights.
  const std::vector<float> x = plain_model.LogitsAfter({{3}}).value();
  const std::vector<float> y = capped_model.LogitsAfter({{3}}).value();
  EXPECT_GT(*std::max_element(x.begin(), x.end()), 2 * kCap);
  for (const double temperature : {0.25, 1.0}) {
    std::vector<double> expected;
    for (const float logit : x) {
      expected.push_back(
          std::exp(kCap * std::tanh(logit / kCap) / temperature));
    }
    const double total = std::accumulate(expected.begin(), expected.end(), 0.0);
    const std::vector<double> shares = Shares(y, {.temperature = temperature});
    for (size_t token = 0; token < shares.size(); ++token) {
      EXPECT_NEAR(shares[token], expected[token] / total, 5e-4) << token;
    }
  }
}

class GpuSampling : public testing::TestWithParam<std::string> {};

TEST_P(GpuSampling, EveryBackendSamples) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const auto sets = OnDevice("CUDA", GetParam(), "BF16");
  const absl::Status refusal =
      PlanRun(ToyConfig("configs/tiny_cpu.pbtxt", sets), {}).status();
  if (!refusal.ok()) GTEST_SKIP() << refusal.message();
  const auto session = Trained(sets);
  NextTokenModel model = ModelOf(*session);
  EXPECT_LE(LargestLoss(*session, MostLikely(model)), 0.1);
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const AttentionBackend* backend : AttentionBackends()) {
    names.emplace_back(backend->name());
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, GpuSampling, testing::ValuesIn(Names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera
