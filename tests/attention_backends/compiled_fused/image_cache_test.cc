#include "attention_backends/compiled_fused/image_cache.h"

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "gtest/gtest.h"

namespace tessera::fused {
namespace {

constexpr char kKey[] = "NVRTC 13.0, sm_90 -DTESSERA_KEYS=1024";

class ImageCacheTest : public ::testing::Test {
 protected:
  ImageCacheTest()
      : directory_(absl::StrCat(
            ::testing::TempDir(), "/",
            ::testing::UnitTest::GetInstance()->current_test_info()->name(),
            "/kernels")),
        cache_(directory_) {
    EXPECT_TRUE(RemoveTree(directory_).ok());
  }

  void ReplaceFile(const std::string& contents) {
    ASSERT_TRUE(WriteFileAtomically(cache_.PathOf(kKey), contents).ok());
  }

  const std::string directory_;
  const ImageCache cache_;
  const std::string image_ = std::string("\x7f\x45\x4c\x46\0code\0", 10);
};

TEST_F(ImageCacheTest, ReturnsWhatWasWritten) {
  EXPECT_TRUE(absl::IsNotFound(cache_.Read(kKey).status()));
  ASSERT_TRUE(cache_.Write(kKey, image_).ok());
  const absl::StatusOr<std::string> read = cache_.Read(kKey);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, image_);
  EXPECT_EQ(*ImageCache(directory_).Read(kKey), image_);
}

TEST_F(ImageCacheTest, KeepsKeysApart) {
  const std::string other = absl::StrCat(kKey, "0");
  ASSERT_TRUE(cache_.Write(kKey, image_).ok());
  EXPECT_TRUE(absl::IsNotFound(cache_.Read(other).status()));
  ASSERT_TRUE(cache_.Write(other, "another").ok());
  EXPECT_EQ(*cache_.Read(kKey), image_);
  EXPECT_EQ(*cache_.Read(other), "another");
}

TEST_F(ImageCacheTest, ReplacesTheFileAndLeavesNoOther) {
  ASSERT_TRUE(cache_.Write(kKey, "older").ok());
  ASSERT_TRUE(cache_.Write(kKey, image_).ok());
  EXPECT_EQ(*cache_.Read(kKey), image_);
  EXPECT_EQ(ListDirectory(directory_)->size(), 1u);
}

TEST_F(ImageCacheTest, DetectsEveryDamagedOrMissingByte) {
  ASSERT_TRUE(cache_.Write(kKey, image_).ok());
  const std::string file = *ReadFile(cache_.PathOf(kKey));
  for (size_t i = 0; i < file.size(); ++i) {
    std::string damaged = file;
    damaged[i] ^= 1;
    ReplaceFile(damaged);
    EXPECT_TRUE(absl::IsDataLoss(cache_.Read(kKey).status())) << "byte " << i;
    ReplaceFile(file.substr(0, i));
    EXPECT_TRUE(absl::IsDataLoss(cache_.Read(kKey).status())) << i << " bytes";
  }
  ReplaceFile(file + '\0');
  EXPECT_TRUE(absl::IsDataLoss(cache_.Read(kKey).status()));
  ReplaceFile(file);
  EXPECT_EQ(*cache_.Read(kKey), image_);
}

// As after a hash collision: the file is intact but belongs to another key.
TEST_F(ImageCacheTest, RejectsAnotherKeysFile) {
  std::string other = kKey;
  other.back() = '5';
  ASSERT_TRUE(cache_.Write(other, image_).ok());
  ReplaceFile(*ReadFile(cache_.PathOf(other)));
  EXPECT_TRUE(absl::IsDataLoss(cache_.Read(kKey).status()));
}

TEST_F(ImageCacheTest, NamesThePathThatItCannotWrite) {
  ASSERT_TRUE(cache_.Write(kKey, image_).ok());
  const ImageCache below_a_file(cache_.PathOf(kKey));
  const absl::Status status = below_a_file.Write(kKey, image_);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(cache_.PathOf(kKey)), std::string::npos);
}

}  // namespace
}  // namespace tessera::fused
