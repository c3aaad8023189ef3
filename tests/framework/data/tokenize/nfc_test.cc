#include "framework/data/tokenize/nfc.h"

#include <utf8proc.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

std::string Nfc(absl::string_view text) {
  std::string buffer;
  return std::string(ToNfc(text, &buffer));
}

TEST(NfcTest, ComposesAndReorders) {
  EXPECT_EQ(Nfc("plain"), "plain");
  EXPECT_EQ(Nfc(""), "");
  EXPECT_EQ(Nfc("cafe\u0301!"), "caf\u00e9!");
  EXPECT_EQ(Nfc("\u212b"), "\u00c5");              // Angstrom sign
  EXPECT_EQ(Nfc("a\u0302\u0323 x"), "\u1ead x");   // reorders
  EXPECT_EQ(Nfc("\u1112\u1161\u11ab"), "\ud55c");  // Hangul
  EXPECT_EQ(Nfc("\u0915\u093c"), "\u0915\u093c");  // an exclusion
  EXPECT_EQ(Nfc("\u0958"), "\u0915\u093c");
  EXPECT_EQ(Nfc("\ufb01 \u2460"), "\ufb01 \u2460");  // not compatibility
}

TEST(NfcTest, ReturnsNormalizedTextItself) {
  const std::string text = "Größe 漢字 한국어 🚀";
  std::string buffer;
  EXPECT_EQ(ToNfc(text, &buffer).data(), text.data());
}

// Skipping what cannot change is the same as normalizing the whole text.
TEST(NfcTest, AgreesWithUtf8procOnRandomText) {
  std::vector<int32_t> characters = {'a', ' ', 'e', 0xc5, 0x3b1, 0x65e5};
  for (int32_t c = 0x300; c < 0x1100; ++c) characters.push_back(c);
  for (int32_t c = 0x1100; c < 0x1200; ++c) characters.push_back(c);
  for (int32_t c = 0x1e00; c < 0x2130; ++c) characters.push_back(c);
  for (int32_t c = 0xac00; c < 0xac40; ++c) characters.push_back(c);
  for (int32_t c = 0x11000; c < 0x11400; ++c) characters.push_back(c);
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      uint8_t bytes[4];
      const auto size =
          utf8proc_encode_char(characters[random() % characters.size()], bytes);
      text.append(reinterpret_cast<const char*>(bytes), size);
      if (random() % 3 == 0) text += "e\u0301";
    }
    auto* whole = utf8proc_NFC(reinterpret_cast<const uint8_t*>(text.c_str()));
    ASSERT_EQ(Nfc(text), reinterpret_cast<const char*>(whole)) << text;
    free(whole);
  }
}

}  // namespace
}  // namespace tessera
