#include "attention_backends/support_table.h"

#include <fstream>
#include <sstream>

#include "attention_backends/attention_backend.h"
#include "attention_backends/backend_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/picky_backend.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing::PickyBackend;

TEST(SupportTable, IsTheOneInTheDocs) {
  std::ifstream file("docs/attention_backends.md");
  ASSERT_TRUE(file.good());
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_THAT(page.str(), HasSubstr(SupportTable(AttentionBackends())))
      << "Put this table into docs/attention_backends.md.";
}

TEST(SupportTable, ShowsWhatABackendRefuses) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky};
  EXPECT_THAT(SupportTable(table),
              HasSubstr("| 64, 128, 192, 256 | yes | yes | yes | no | "
                        "1 + 0 + 2 |\n"));
}

}  // namespace
}  // namespace tessera
