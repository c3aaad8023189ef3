#include "trainers/hugging_face/architecture.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

ModelConfig Model(const std::string& fields) {
  ModelConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      absl::StrCat("num_layers: 4 d_model: 32 num_heads: 4 d_ff: 64 ", fields),
      &config));
  return config;
}

TEST(ArchitectureTest, TheFirstThatComputesTheSameIsChosen) {
  for (const auto& [fields, name] :
       {std::pair{"", "LlamaForCausalLM"},
        {"rope_scaling { factor: 8 } tied_head: true head_dim: 16",
         "LlamaForCausalLM"},
        {"attention_window {}", "LlamaForCausalLM"},
        {"attention_window { tokens: 4 }", "MistralForCausalLM"},
        {"qk_norm: HEAD", "Qwen3ForCausalLM"},
        {"qk_norm: HEAD attention_window { tokens: 4 } attention_window {}",
         "Qwen3ForCausalLM"},
        {"qk_norm: PROJECTION norm_placement: AFTER", "Olmo2ForCausalLM"}}) {
    const auto chosen = HfArchitectureFor(Model(fields));
    ASSERT_TRUE(chosen.ok()) << fields << ": " << chosen.status();
    EXPECT_EQ((*chosen)->name, name) << fields;
  }
}

TEST(ArchitectureTest, WhatNoneHasIsRefusedByField) {
  for (const auto& [fields, message] :
       {std::pair{"feed_forward: RELU_SQUARED",
                  "model.feed_forward is RELU_SQUARED; no architecture"},
        {"attention_sinks: true", "model.attention_sinks is true; no"},
        {"attention_soft_cap: 50", "model.attention_soft_cap is 50; no"},
        {"logit_soft_cap: 30", "model.logit_soft_cap is 30; no architecture"},
        {"norm_placement: AFTER",
         "Olmo2ForCausalLM has model.qk_norm PROJECTION"},
        {"qk_norm: PROJECTION",
         "Olmo2ForCausalLM has model.norm_placement AFTER"},
        {"attention_window { tokens: 4 } attention_window {}",
         "MistralForCausalLM has model.attention_window: the same window in "
         "every layer"},
        {"qk_norm: HEAD attention_window { tokens: 4 } "
         "attention_window { tokens: 5 }",
         "Qwen3ForCausalLM has model.attention_window: windows of one size"},
        {"qk_norm: PROJECTION norm_placement: AFTER "
         "attention_window { tokens: 4 }",
         "Olmo2ForCausalLM has model.attention_window: no windows"}}) {
    const absl::Status refused = HfArchitectureFor(Model(fields)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << fields;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(message));
  }
}

// Literally: import and export share one table, so a round trip shows no error.
TEST(ArchitectureTest, TensorsHaveTheNamesOfTransformers) {
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"token_embeddings.weight", "model.embed_tokens.weight"},
      {"ln_final.weight", "model.norm.weight"},
      {"lm_head.weight", "lm_head.weight"},
      {"layers.12.attn.q_proj.weight",
       "model.layers.12.self_attn.q_proj.weight"},
      {"layers.12.attn.k_proj.weight",
       "model.layers.12.self_attn.k_proj.weight"},
      {"layers.12.attn.v_proj.weight",
       "model.layers.12.self_attn.v_proj.weight"},
      {"layers.12.attn.output_proj.weight",
       "model.layers.12.self_attn.o_proj.weight"},
      {"layers.12.attn.q_norm.weight",
       "model.layers.12.self_attn.q_norm.weight"},
      {"layers.12.attn.k_norm.weight",
       "model.layers.12.self_attn.k_norm.weight"},
      {"layers.0.ffn.w1.weight", "model.layers.0.mlp.gate_proj.weight"},
      {"layers.0.ffn.w3.weight", "model.layers.0.mlp.up_proj.weight"},
      {"layers.0.ffn.w2.weight", "model.layers.0.mlp.down_proj.weight"}};
  for (const HfArchitecture& architecture : HfArchitectures()) {
    for (const auto& [ours, theirs] : kNames) {
      EXPECT_EQ(HfTensorName(architecture, ours), theirs);
    }
    const bool after = architecture.norm_placement == ModelConfig::AFTER;
    EXPECT_EQ(HfTensorName(architecture, "layers.0.ln1.weight"),
              after ? "model.layers.0.post_attention_layernorm.weight"
                    : "model.layers.0.input_layernorm.weight");
    EXPECT_EQ(HfTensorName(architecture, "layers.0.ln2.weight"),
              after ? "model.layers.0.post_feedforward_layernorm.weight"
                    : "model.layers.0.post_attention_layernorm.weight");
  }
}

}  // namespace
}  // namespace tessera
