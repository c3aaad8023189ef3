// Prints the table of docs/precision.md.

#include <iostream>

#include "framework/precision/precision_policy.h"

int main() { std::cout << tessera::PrecisionTableMarkdown(); }
