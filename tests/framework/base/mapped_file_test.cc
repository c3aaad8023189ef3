#include "framework/base/mapped_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::EndsWith;

class MappedFileTest : public ::testing::TestWithParam<MappedFile::ReadOrder> {
 protected:
  MappedFileTest()
      : dir_(absl::StrCat(::testing::TempDir(), "/mapped_", ::getpid())) {
    EXPECT_TRUE(RemoveTree(dir_).ok());
    EXPECT_TRUE(MakeDirectories(dir_).ok());
  }
  ~MappedFileTest() override { EXPECT_TRUE(RemoveTree(dir_).ok()); }

  std::string Write(absl::string_view contents) const {
    const std::string path = dir_ + "/f";
    EXPECT_TRUE(WriteFileAtomically(path, contents).ok());
    return path;
  }

  const std::string dir_;
};
INSTANTIATE_TEST_SUITE_P(
    Orders, MappedFileTest,
    ::testing::Values(MappedFile::ReadOrder::kAny,
                      MappedFile::ReadOrder::kFrontToBack));

TEST_P(MappedFileTest, HoldsTheBytesOfAFile) {
  for (const std::string& contents :
       {std::string(), std::string("a\0b", 3), std::string(100'000, 'x')}) {
    const auto file = MappedFile::Open(Write(contents), GetParam());
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->bytes(), contents);
    EXPECT_EQ(file->size(), contents.size());
  }
}

TEST_P(MappedFileTest, BytesStayValidAfterAMove) {
  MappedFile file = MappedFile::Open(Write("bytes"), GetParam()).value();
  const absl::string_view bytes = file.bytes();
  MappedFile moved = std::move(file);
  MappedFile assigned;
  EXPECT_EQ(assigned.bytes(), "");
  assigned = std::move(moved);
  EXPECT_EQ(assigned.bytes().data(), bytes.data());
  EXPECT_EQ(bytes, "bytes");
}

TEST_P(MappedFileTest, SaysWhyItCannotOpen) {
  EXPECT_EQ(MappedFile::Open(dir_ + "/none", GetParam()).status().code(),
            absl::StatusCode::kNotFound);
  const absl::Status folder = MappedFile::Open(dir_, GetParam()).status();
  EXPECT_EQ(folder.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(folder.message()),
              EndsWith(" is a folder, not a file"));
  const std::string pipe = dir_ + "/pipe";  // without a writer
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(
      std::string(MappedFile::Open(pipe, GetParam()).status().message()),
      EndsWith("/pipe is not a regular file"));
  const std::string path = Write("secret");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  if (access(path.c_str(), R_OK) == 0) return;  // root can read everything
  EXPECT_EQ(MappedFile::Open(path, GetParam()).status().code(),
            absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace tessera
