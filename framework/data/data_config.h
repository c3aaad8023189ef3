#ifndef FRAMEWORK_DATA_DATA_CONFIG_H_
#define FRAMEWORK_DATA_DATA_CONFIG_H_

#include "framework/base/violations.h"
#include "framework/data/data_config.pb.h"

namespace tessera {

// Adds every broken rule of data_config.proto that needs neither the model's
// config nor a look at the files; CreateDataset() checks those.
void Validate(const DataConfig& config, Violations violations);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_DATA_CONFIG_H_
