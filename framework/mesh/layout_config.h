#ifndef FRAMEWORK_MESH_LAYOUT_CONFIG_H_
#define FRAMEWORK_MESH_LAYOUT_CONFIG_H_

#include "framework/base/violations.h"
#include "framework/mesh/layout.h"
#include "framework/mesh/layout_config.pb.h"

namespace tessera {

// Adds each rule of layout_config.proto that `config` breaks, whatever the
// number of ranks, to `violations`.
void Validate(const LayoutConfig& config, Violations violations);

LayoutOptions LayoutOptionsOf(const LayoutConfig& config);

}  // namespace tessera

#endif  // FRAMEWORK_MESH_LAYOUT_CONFIG_H_
