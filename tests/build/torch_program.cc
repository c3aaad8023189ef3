// The smallest program that uses LibTorch and reads a data file; bundle_test
// packs it and runs it outside Bazel.

#include <ATen/ATen.h>

#include <cstdio>
#include <string>

#include "absl/status/statusor.h"
#include "framework/base/runtime_files.h"

int main(int argc, char** argv) {
  const absl::StatusOr<std::string> file =
      tessera::FindRuntimeFile("tests/build/torch_program.txt");
  if (!file.ok()) {
    std::fprintf(stderr, "%s\n", file.status().ToString().c_str());
    return 1;
  }
  std::printf("sum %lld, %d arguments, file %s\n",
              static_cast<long long>(at::arange(5).sum().item<int64_t>()),
              argc - 1, file->c_str());
  return 0;
}
