#include "framework/base/random_access_file.h"

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

using ::testing::HasSubstr;

std::string Path() {
  return absl::StrCat(::testing::TempDir(), "/random_access_", getpid());
}

TEST(RandomAccessFileTest, ReadsAtAnyOffsetAlsoAfterAMove) {
  ASSERT_TRUE(WriteFileAtomically(Path(), "0123456789").ok());
  auto file = RandomAccessFile::Open(Path());
  ASSERT_TRUE(file.ok()) << file.status();
  RandomAccessFile moved = *std::move(file);
  EXPECT_EQ(moved.size(), 10);
  std::string bytes(3, ' ');
  for (const int64_t offset : {7, 0, 4}) {
    ASSERT_TRUE(moved.Read(offset, 3, bytes.data()).ok());
    EXPECT_EQ(bytes, absl::string_view("0123456789").substr(offset, 3));
  }
  // A new file with the same name does not matter.
  ASSERT_TRUE(WriteFileAtomically(Path(), "x").ok());
  EXPECT_TRUE(moved.Read(7, 3, bytes.data()).ok());
  EXPECT_EQ(bytes, "789");
}

TEST(RandomAccessFileTest, ATruncatedFileIsDataLoss) {
  ASSERT_TRUE(WriteFileAtomically(Path(), "0123456789").ok());
  const auto file = RandomAccessFile::Open(Path());
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(truncate(Path().c_str(), 6), 0);
  char bytes[4];
  EXPECT_TRUE(file->Read(2, 4, bytes).ok());
  const absl::Status status = file->Read(3, 4, bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr(Path() + ", byte 6: past the end of the file: it had 10 "
                         "bytes when it was opened and now has 6"));
}

TEST(RandomAccessFileTest, ALoopOfLinksIsAUserError) {
  const std::string loop = Path() + "_loop";
  ASSERT_EQ(symlink(loop.c_str(), loop.c_str()), 0);
  const absl::Status status = RandomAccessFile::Open(loop).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            absl::StrCat("cannot open ", loop,
                         ": Too many levels of symbolic links"));
  unlink(loop.c_str());
}

TEST(RandomAccessFileTest, RejectsWhatIsNotAFile) {
  EXPECT_EQ(RandomAccessFile::Open(Path() + "_none").status().code(),
            absl::StatusCode::kNotFound);
  const std::string pipe = Path() + "_pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, ::testing::TempDir()}) {
    EXPECT_EQ(RandomAccessFile::Open(path).status().code(),
              absl::StatusCode::kInvalidArgument)
        << path;
  }
  unlink(pipe.c_str());
}

}  // namespace
}  // namespace tessera
