#ifndef FRAMEWORK_BASE_HOST_MEMORY_H_
#define FRAMEWORK_BASE_HOST_MEMORY_H_

#include <cstdint>

namespace tessera {

// An estimate of the bytes of host memory that this process can still take: the
// machine's, or what the container's limit (cgroups 2 and 1) leaves. Files in
// the page cache count as free.
int64_t FreeHostBytes();

}  // namespace tessera

#endif  // FRAMEWORK_BASE_HOST_MEMORY_H_
