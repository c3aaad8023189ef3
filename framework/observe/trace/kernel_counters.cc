#include "framework/observe/trace/kernel_counters.h"

namespace tessera {
namespace {

void Add(const std::optional<double>& value, std::optional<double>* sum) {
  if (value.has_value()) *sum = sum->value_or(0) + *value;
}

std::optional<double> Ratio(const std::optional<double>& part,
                            const std::optional<double>& whole) {
  if (!part.has_value() || whole.value_or(0) <= 0) return std::nullopt;
  return *part / *whole;
}

}  // namespace

KernelCounters& KernelCounters::operator+=(const KernelCounters& other) {
  launches += other.launches;
  ns += other.ns;
  Add(other.tensor_ns, &tensor_ns);
  Add(other.dram_bytes, &dram_bytes);
  Add(other.l2_hits, &l2_hits);
  Add(other.l2_lookups, &l2_lookups);
  return *this;
}

std::optional<double> KernelCounters::tensor_share() const {
  return Ratio(tensor_ns, ns);
}

std::optional<double> KernelCounters::dram_bytes_per_launch() const {
  return Ratio(dram_bytes, static_cast<double>(launches));
}

std::optional<double> KernelCounters::l2_hit_share() const {
  return Ratio(l2_hits, l2_lookups);
}

}  // namespace tessera
