#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/limited_printer.h"

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  tessera::testing::LimitedPrinter::Install();
  return RUN_ALL_TESTS();
}
