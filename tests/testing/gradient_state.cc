#include "tests/testing/gradient_state.h"

#include <map>
#include <set>

namespace tessera::testing {
namespace {

// Storage of a gradient buffer -> the parameters written.
std::map<const void*, std::set<const Parameter*>>& Written() {
  static auto* written =
      new std::map<const void*, std::set<const Parameter*>>();
  return *written;
}

}  // namespace

void BeginGradients(const ParameterStore& store) {
  Written()[store.grad().storage().data()].clear();
}

bool ClaimFirstGradWrite(const Parameter& parameter) {
  return Written()[parameter.grad().storage().data()].insert(&parameter).second;
}

}  // namespace tessera::testing
