#include "framework/base/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace tessera {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// The number after the word `name` in a file of lines "name number ...".
std::optional<int64_t> Field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    if (int64_t number; word == name && file >> number) return number;
    file.clear();
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

std::optional<int64_t> Number(const std::string& path) {
  std::ifstream file(path);
  int64_t number;
  if (file >> number) return number;
  return std::nullopt;  // also for "max"
}

// What a container's limit leaves. `cached` names the page cache in
// memory.stat.
int64_t FreeInContainer(const std::string& limit_file,
                        const std::string& usage_file,
                        const std::string& stat_file,
                        const std::string& cached) {
  const std::optional<int64_t> limit = Number(limit_file);
  const std::optional<int64_t> usage = Number(usage_file);
  if (!limit.has_value() || !usage.has_value()) return kUnlimited;
  // Shared memory counts as cache, but cannot be dropped.
  const int64_t files = Field(stat_file, cached).value_or(0) -
                        Field(stat_file, "shmem").value_or(0);
  return *limit - (*usage - std::max<int64_t>(files, 0));
}

}  // namespace

int64_t FreeHostBytes() {
  const int64_t machine =
      Field("/proc/meminfo", "MemAvailable:")
          .value_or(sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE) / 1024) *
      1024;
  const std::string root = "/sys/fs/cgroup/memory";
  const int64_t container = std::min(
      FreeInContainer(root + ".max", root + ".current", root + ".stat", "file"),
      FreeInContainer(root + "/memory.limit_in_bytes",
                      root + "/memory.usage_in_bytes", root + "/memory.stat",
                      "cache"));
  return std::max<int64_t>(0, std::min(machine, container));
}

}  // namespace tessera
