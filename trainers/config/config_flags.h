#ifndef TRAINERS_CONFIG_CONFIG_FLAGS_H_
#define TRAINERS_CONFIG_CONFIG_FLAGS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainers/config/run_config.pb.h"

namespace tessera {

// The flags that every program which takes a RunConfig has:
//   --config=FILE      any number of files, merged in order; default:
//                      configs/tiny_cpu.pbtxt, which travels along
//   --set FIELD=VALUE  on top of them, any number of times, in order

absl::StatusOr<RunConfig> RunConfigFromFlags();

// Where they set `field`: "configs/tiny_cpu.pbtxt:14:3" or "--set".
std::string ConfigSourceFromFlags(absl::string_view field);

// "2.7B_bf16" for --config=configs/2.7B.pbtxt
// --config=configs/precision/bf16.pbtxt.
std::string ConfigNameFromFlags();

}  // namespace tessera

#endif  // TRAINERS_CONFIG_CONFIG_FLAGS_H_
