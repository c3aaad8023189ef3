#ifndef TRAINERS_CONFIG_CONFIG_FLAGS_H_
#define TRAINERS_CONFIG_CONFIG_FLAGS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainers/config/run_config.pb.h"

namespace tessera {

// The flags of every program that takes a RunConfig:
//   --config=FILE      any number of files, merged in order; default:
//                      configs/tiny_cpu.pbtxt, which is installed with the
//                      program
//   --set FIELD=VALUE  applied after the files, any number of times, in order

absl::StatusOr<RunConfig> RunConfigFromFlags();

// Adds the place in the files, or --set, to an error about a field
// (framework/base/field_error.h).
absl::Status WithConfigSourceFromFlags(const absl::Status& status);

// "2.7B_bf16" for --config=configs/2.7B.pbtxt
// --config=configs/precision/bf16.pbtxt.
std::string ConfigNameFromFlags();

}  // namespace tessera

#endif  // TRAINERS_CONFIG_CONFIG_FLAGS_H_
