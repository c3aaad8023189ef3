#ifndef TRAINERS_CONFIG_CONFIG_FLAGS_H_
#define TRAINERS_CONFIG_CONFIG_FLAGS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainers/config/run_config.pb.h"

namespace tessera {

// The flags of every program that takes a RunConfig:
//   --config=FILE      any number of files, merged in order; default:
//                      configs/tiny_cpu.pbtxt, which is installed with the
//                      program
//   --set FIELD=VALUE  applied after the files, any number of times, in order

absl::StatusOr<RunConfig> RunConfigFromFlags();

// Where the flags set `field`: "configs/tiny_cpu.pbtxt:14:3" or "--set".
std::string ConfigSourceFromFlags(absl::string_view field);

// "2.7B_bf16" for --config=configs/2.7B.pbtxt
// --config=configs/precision/bf16.pbtxt.
std::string ConfigNameFromFlags();

}  // namespace tessera

#endif  // TRAINERS_CONFIG_CONFIG_FLAGS_H_
