// Helpers for messages: shortened values, similar names, wrapped lines.

#include <pty.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/nearest_name.h"
#include "framework/base/shorten.h"
#include "framework/base/terminal.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(ShortenTest, ShortTextStaysAsItIs) {
  EXPECT_EQ(Shorten(""), "");
  EXPECT_EQ(Shorten("{name: 'a, \"b\"'}"), "{name: 'a, \"b\"'}");
  EXPECT_EQ(Shorten("na\u00efve \u6a21\u578b"), "na\u00efve \u6a21\u578b");
  EXPECT_EQ(Shorten(std::string(kMostBytesOfAValue, 'a')),
            std::string(kMostBytesOfAValue, 'a'));
}

TEST(ShortenTest, LongTextKeepsItsHeadAndTail) {
  EXPECT_EQ(Shorten("0123456789abcdefg", 16), "01234567 ... defg (17 bytes)");
  const std::string much(10000, 'x');
  EXPECT_THAT(Shorten(much), HasSubstr("x ... x"));
  EXPECT_THAT(Shorten(much), HasSubstr("(10000 bytes)"));
  EXPECT_LT(Shorten(much).size(), 256u);
}

TEST(ShortenTest, CutsBetweenCharacters) {
  EXPECT_EQ(Shorten("1234567\u6a21\u6a21\u6a21\u6a21", 16),
            "1234567 ... \u6a21 (19 bytes)");
}

TEST(ShortenTest, EscapesControlCharacters) {
  EXPECT_EQ(Shorten("a\nb\tc\r\x1b[2J\x7f"), "a\\nb\\tc\\x0d\\x1b[2J\\x7f");
  EXPECT_EQ(Shorten("\xc2\x9b"
                    "2J"),
            "\\xc2\\x9b"
            "2J");                                        // CSI in UTF-8
  EXPECT_EQ(Shorten("\xff\xe6\xa8"), "\\xff\\xe6\\xa8");  // not UTF-8
  EXPECT_EQ(Shorten(std::string("\0", 1)), "\\x00");
}

TEST(ShortenTest, AMessageKeepsItsLines) {
  EXPECT_EQ(ShortenMessage("a\n  b\n"), "a\n  b");
  const std::string shortened = ShortenMessage(absl::StrCat(
      "RANK=", std::string(10000, 'x'), " must be a number\nnext"));
  EXPECT_LT(shortened.size(), 3000u);
  EXPECT_THAT(shortened, HasSubstr("RANK=xxx"));
  EXPECT_THAT(shortened, HasSubstr("x must be a number (10022 bytes)\nnext"));
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "line\n";
  EXPECT_THAT(ShortenMessage(many), HasSubstr("line\n... 900 more"));
}

TEST(NearestNameTest, FindsTyposAndNothingElse) {
  const std::vector<std::string> names = {"num_layers", "num_heads", "d_ff"};
  EXPECT_EQ(NearestName("num_layer", names), "num_layers");
  EXPECT_EQ(NearestName("NUM_HEADS", names), "num_heads");
  EXPECT_EQ(NearestName("width", names), "");
  EXPECT_EQ(NearestName("", names), "");
  EXPECT_EQ(NearestName(std::string(1 << 20, 'd'), names), "");
}

TEST(FoldTest, WrapsAtSpaces) {
  EXPECT_EQ(Fold("attention   one two three four", 20, 12),
            "attention   one two\n            three\n            four");
  EXPECT_EQ(Fold("    a b", 80, 4), "    a b");
  EXPECT_EQ(Fold("folder      /a/path/that/is/long, next", 20, 12),
            "folder      /a/path/that/is/long,\n            next");
}

// Sets an environment variable, or unsets it, during its lifetime.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Variable() { setenv(name_, before_.c_str(), 1); }

 private:
  const char* const name_;
  std::string before_;
};

TEST(CanRedrawTest, OnlyOnAnInteractiveTerminal) {
  int controller = -1, terminal = -1;
  ASSERT_EQ(openpty(&controller, &terminal, nullptr, nullptr, nullptr), 0);
  {
    const Variable term("TERM", "xterm"), ci("CI", nullptr);
    EXPECT_TRUE(CanRedraw(terminal));
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    EXPECT_FALSE(CanRedraw(pipe_ends[1]));
    close(pipe_ends[0]);
    close(pipe_ends[1]);
  }
  for (const auto& [name, value] :
       {std::pair<const char*, const char*>{"dumb", nullptr},
        {nullptr, nullptr},
        {"xterm", "true"}}) {
    const Variable term("TERM", name), ci("CI", value);
    EXPECT_FALSE(CanRedraw(terminal));
  }
  close(terminal);
  close(controller);
}

}  // namespace
}  // namespace tessera
