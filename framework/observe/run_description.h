#ifndef FRAMEWORK_OBSERVE_RUN_DESCRIPTION_H_
#define FRAMEWORK_OBSERVE_RUN_DESCRIPTION_H_

#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

// What is known about a run before its first step.
struct RunDescription {
  // Which rank is simulated, and what that means; empty in a real run.
  std::string simulated;
  std::string build;        // "tessera 1.0.0, LibTorch 2.11.0, CUDA 13.0"
  std::string config_hash;  // hash of the resolved config: "9f86d081884c7d65"
  std::string device;       // "NVIDIA H200"
  int world_size = 1;
  // "2 ranks: shard 2, ZeRO 1: ...; NCCL 2.28.9"; empty for one rank.
  std::string layout;
  std::string precision;  // "BF16"
  std::string attention;  // the backend and who chose it
  std::string execution;  // "GRAPH (chosen by AUTO)"
  std::string data;       // "default_text, 18,203,112 tokens"
  std::string run_folder;
  std::string saves;  // "every 15 minutes and after the last step"
  int64_t parameters = 0;
  int64_t batch_size = 0;  // sequences per step, over all ranks
  int64_t context = 0;
  int64_t micro_batches = 1;
  int64_t first_step = 0;  // > 0 when resumed
  int64_t steps = 0;
  double flops_per_token = 0;
  std::optional<double> peak_tflops;
  std::string memory_table;  // FormatMemoryTable(); may be empty
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_RUN_DESCRIPTION_H_
