// Prints the table of docs/precision.md.

#include <iostream>

#include "framework/base/process.h"
#include "framework/precision/precision_policy.h"

int main() {
  tessera::PrepareProcess();
  std::cout << tessera::PrecisionTableMarkdown();
}
