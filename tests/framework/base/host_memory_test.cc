#include "framework/base/host_memory.h"

#include <unistd.h>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(FreeHostBytesTest, IsPartOfTheMachinesMemory) {
  const int64_t all = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  EXPECT_GT(FreeHostBytes(), 1 << 20);
  EXPECT_LE(FreeHostBytes(), all);
}

}  // namespace
}  // namespace tessera
