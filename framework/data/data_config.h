#ifndef FRAMEWORK_DATA_DATA_CONFIG_H_
#define FRAMEWORK_DATA_DATA_CONFIG_H_

#include "absl/status/statusor.h"
#include "framework/base/violations.h"
#include "framework/data/data_config.pb.h"
#include "framework/data/dataset.h"

namespace tessera {

// Adds each rule of data_config.proto that `config` breaks to `violations`.
// CreateDataset() checks the rules that depend on the model or the files.
void Validate(const DataConfig& config, Violations violations);

// Opens the data of a run. Reads all tokens, so that a bad file stops the run
// before step 0. `config` must have passed Validate().
absl::StatusOr<Dataset> CreateDataset(const DataConfig& config,
                                      const DatasetOptions& options);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_DATA_CONFIG_H_
