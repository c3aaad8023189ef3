#include "framework/observe/trace/step_profile.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "framework/observe/trace/op_place.h"

namespace tessera {
namespace {

// The device was idle if the first activity of the trace began this soon after
// its launch; otherwise it was busy with work from before the trace.
constexpr int64_t kIdleLaunchNs = 50'000;

constexpr char kOutside[] = "outside";

// What the activities of one range count towards, as indices into vectors of
// StepProfile.
struct Slots {
  bool counts = false;
  int phase = 0, block = 0, op = 0;
  int attention = -1;
  int64_t AttentionTime::*part = nullptr;
};

class ProfileBuilder {
 public:
  ProfileBuilder(const Trace& trace, absl::Span<const StepRow> rows,
                 const DeviceRates& rates)
      : trace_(trace), places_(PlacesOf(trace)) {
    profile_.rates = rates;
    places_.push_back({.step = 0});  // of range -1
    AddRows(rows);
    for (const OpPlace& place : places_) slots_.push_back(SlotsOf(place));
  }

  StepProfile Build() && {
    profile_.dropped = trace_.dropped;
    int64_t busy_until = std::numeric_limits<int64_t>::min();
    for (const DeviceActivity& activity : trace_.activities) {
      if (!slots_[PlaceOf(activity)].counts) continue;
      Count(activity);
      profile_.busy_ns += std::max<int64_t>(
          0, activity.end_ns - std::max(activity.begin_ns, busy_until));
      busy_until = std::max(busy_until, activity.end_ns);
    }
    AddWallTimes();
    AddWorkOfKernels();
    AddOpsOfKernels();
    OrderTotals();
    OrderKernels();
    return std::move(profile_);
  }

 private:
  // A kernel in one kind of op and phase.
  struct Kernel {
    int index = 0;  // into profile_.kernels
    KernelClass kernel_class = KernelClass::kOther;
  };
  using ClassTimes = std::array<int64_t, kKernelClasses>;
  // What a kernel took in one op.
  struct KernelInOp {
    int64_t ns = 0, instances = 0;
    bool computes_products = false;
  };

  size_t PlaceOf(const DeviceActivity& activity) const {
    return activity.range < 0 ? places_.size() - 1 : activity.range;
  }

  int AddOp(OpTime op) {
    const auto [found, is_new] =
        op_of_.emplace(std::tuple(op.phase, op.group, op.name),
                       static_cast<int>(profile_.ops.size()));
    if (is_new) profile_.ops.push_back(std::move(op));
    return found->second;
  }

  void AddRows(absl::Span<const StepRow> rows) {
    for (const StepRow& row : rows) {
      const int index = AddOp({.phase = row.phase,
                               .group = row.group,
                               .name = row.name,
                               .kind = row.kind,
                               .cost = Cost(),
                               .roofline_seconds = 0.0});
      OpTime& op = profile_.ops[index];
      for (int64_t i = 0; i < row.count; ++i) *op.cost += row.cost;
      if (op.roofline_seconds.has_value() && row.seconds.has_value()) {
        *op.roofline_seconds += static_cast<double>(row.count) * *row.seconds;
      } else {
        op.roofline_seconds.reset();
      }
    }
  }

  int OpOf(const OpPlace& place) {
    if (place.op.empty()) return AddOp({.phase = place.phase});
    return AddOp(
        {.phase = place.phase, .group = place.group, .name = place.op});
  }

  template <typename Row, typename IsIt>
  static int IndexOf(std::vector<Row>* rows, Row row, const IsIt& is_it) {
    const auto found = absl::c_find_if(*rows, is_it);
    const int index = static_cast<int>(found - rows->begin());
    if (found == rows->end()) rows->push_back(std::move(row));
    return index;
  }
  static int IndexOf(std::vector<TimeTotal>* totals, const std::string& name) {
    return IndexOf(totals, TimeTotal{.name = name},
                   [&](const TimeTotal& t) { return t.name == name; });
  }

  Slots SlotsOf(const OpPlace& place) {
    Slots slots{.counts = place.step >= 0};
    if (!slots.counts) return slots;
    slots.op = OpOf(place);
    slots.phase = IndexOf(&profile_.phases, place.phase);
    slots.block = IndexOf(&profile_.blocks, place.block());
    if (profile_.ops[slots.op].kind == "attention") {
      slots.attention = IndexOf(
          &profile_.attention, AttentionTime{.phase = place.phase},
          [&](const AttentionTime& a) { return a.phase == place.phase; });
      slots.part = place.part == "scores"    ? &AttentionTime::scores_ns
                   : place.part == "softmax" ? &AttentionTime::softmax_ns
                   : place.part == "values"  ? &AttentionTime::values_ns
                                             : &AttentionTime::other_ns;
    }
    return slots;
  }

  void Count(const DeviceActivity& activity) {
    const Slots& slots = slots_[PlaceOf(activity)];
    const Kernel& kernel = KernelOf(activity);
    const int64_t ns = activity.end_ns - activity.begin_ns;
    ++profile_.activities;
    profile_.total_ns += ns;
    KernelTime& time = profile_.kernels[kernel.index];
    ++time.instances;
    time.ns += ns;
    if (const auto counted = trace_.counters.find(activity.correlation);
        counted != trace_.counters.end()) {
      time.counters = time.counters.value_or(KernelCounters());
      *time.counters += counted->second;
    }
    const int kernel_class = static_cast<int>(kernel.kernel_class);
    class_times_[kernel.index][kernel_class] += ns;
    classes_[kernel_class].ns += ns;
    ++classes_[kernel_class].activities;
    for (TimeTotal* total :
         {&profile_.phases[slots.phase], &profile_.blocks[slots.block]}) {
      total->ns += ns;
      ++total->activities;
    }
    OpTime& op = profile_.ops[slots.op];
    op.ns += ns;
    ++op.activities;
    KernelInOp& in_op = kernels_of_op_[slots.op][kernel.index];
    if (in_op.instances == 0) {
      in_op.computes_products = ComputesProducts(time.symbol);
    }
    in_op.ns += ns;
    ++in_op.instances;
    if (slots.attention >= 0) {
      profile_.attention[slots.attention].*slots.part += ns;
    }
  }

  const Kernel& KernelOf(const DeviceActivity& activity) {
    const size_t place = PlaceOf(activity);
    const uint64_t key =
        uint64_t{static_cast<uint32_t>(activity.name)} << 32 | place;
    const auto found = kernel_at_.find(key);
    if (found != kernel_at_.end()) return found->second;
    const absl::string_view symbol = trace_.name(activity.name);
    const std::string& op_kind = profile_.ops[slots_[place].op].kind;
    const auto [kernel, is_new] =
        kernel_of_.emplace(activity.name, profile_.kernels.size());
    if (is_new) {
      profile_.kernels.push_back(
          {.name = activity.kind == DeviceActivity::Kind::kKernel
                       ? ReadableKernelName(symbol)
                       : std::string(symbol),
           .symbol = std::string(symbol)});
      class_times_.emplace_back();
      full_names_.push_back(FullKernelName(symbol));
    }
    return kernel_at_[key] = {
               .index = kernel->second,
               .kernel_class = ClassOf(
                   activity.kind, symbol,
                   {.phase = places_[place].phase, .op_kind = op_kind})};
  }

  // What each of the kernels of an op does of its work; absent if that is not
  // known.
  static std::map<int, std::optional<Cost>> WorkInOp(
      const OpTime& op, const std::map<int, KernelInOp>& kernels,
      int64_t steps) {
    std::map<int, std::optional<Cost>> work;
    int64_t product_kernels = 0, product_instances = 0;
    for (const auto& [index, kernel] : kernels) {
      work[index] = std::nullopt;
      if (static_cast<double>(kernel.ns) >=
          kNearlyAll * static_cast<double>(op.ns)) {
        return {{index, op.cost}};
      }
      if (!kernel.computes_products) continue;
      ++product_kernels;
      product_instances += kernel.instances;
    }
    if (!op.cost.has_value() || op.cost->product_flops == 0) return work;
    // Each instance computes one product, or one kernel all of them.
    if (product_instances != steps * op.cost->products &&
        product_kernels != 1) {
      return work;
    }
    for (const auto& [index, kernel] : kernels) {
      if (!kernel.computes_products) continue;
      const double flops = op.cost->product_flops *
                           static_cast<double>(kernel.instances) /
                           static_cast<double>(product_instances);
      work[index] = {.flops = flops, .product_flops = flops};
    }
    return work;
  }

  void AddWorkOfKernels() {
    std::vector<bool> known(profile_.kernels.size(), true);
    for (const auto& [op, kernels] : kernels_of_op_) {
      const auto work = WorkInOp(profile_.ops[op], kernels, profile_.steps);
      for (const auto& [index, kernel] : kernels) {
        const auto found = work.find(index);
        if (found == work.end() || !found->second.has_value()) {
          known[index] = false;
          continue;
        }
        std::optional<Cost>& cost = profile_.kernels[index].cost;
        // Bytes count only if they are known in each op.
        const bool all_bytes =
            found->second->bytes > 0 && (!cost.has_value() || cost->bytes > 0);
        cost = cost.value_or(Cost());
        *cost += *found->second;
        if (!all_bytes) cost->bytes = 0;
      }
    }
    for (size_t i = 0; i < known.size(); ++i) {
      if (!known[i]) profile_.kernels[i].cost.reset();
    }
  }

  void AddOpsOfKernels() {
    std::vector<std::map<std::string, int64_t>> times(profile_.kernels.size());
    for (const auto& [op, kernels] : kernels_of_op_) {
      const OpTime& row = profile_.ops[op];
      const std::string& kind = row.kind.empty() ? row.name : row.kind;
      for (const auto& [index, kernel] : kernels) {
        times[index]
             [kind.empty() ? row.phase : absl::StrCat(row.phase, " ", kind)] +=
            kernel.ns;
      }
    }
    for (size_t i = 0; i < times.size(); ++i) {
      profile_.kernels[i].op =
          absl::c_max_element(times[i], [](const auto& a, const auto& b) {
            return a.second < b.second;
          })->first;
    }
  }

  void AddWallTimes() {
    struct Issued {
      int64_t call_ns, end_ns;
    };
    std::vector<Issued> issued;
    for (const auto& [activity, call] : IssuedActivities(trace_)) {
      if (call == nullptr) continue;
      if (issued.empty() &&  // the first to begin
          activity->begin_ns - call->end_ns > kIdleLaunchNs) {
        issued.push_back(
            {std::numeric_limits<int64_t>::min(), activity->begin_ns});
      }
      issued.push_back({call->begin_ns, activity->end_ns});
    }
    absl::c_stable_sort(issued, [](const Issued& a, const Issued& b) {
      return a.call_ns < b.call_ns;
    });
    size_t next = 0;
    int64_t device_end = std::numeric_limits<int64_t>::min();
    const auto run_device_until = [&](int64_t host_ns) {
      for (; next < issued.size() && issued[next].call_ns < host_ns; ++next) {
        device_end = std::max(device_end, issued[next].end_ns);
      }
    };
    for (const HostRange& range : trace_.ranges) {
      if (range.level != HostRange::Level::kStep) continue;
      run_device_until(range.begin_ns);
      const int64_t begin = std::max(range.begin_ns, device_end);
      run_device_until(range.end_ns);
      profile_.wall_ns += std::max(range.end_ns, device_end) - begin;
      ++profile_.steps;
    }
  }

  void OrderTotals() {
    for (int i = 0; i < kKernelClasses; ++i) {
      TimeTotal total = classes_[i];
      total.name = std::string(KernelClassName(static_cast<KernelClass>(i)));
      profile_.classes.push_back(std::move(total));
    }
    const auto empty = [](const auto& row) { return row.activities == 0; };
    for (std::vector<TimeTotal>* totals :
         {&profile_.classes, &profile_.phases, &profile_.blocks}) {
      std::erase_if(*totals, empty);
      std::stable_partition(
          totals->begin(), totals->end(),
          [](const TimeTotal& total) { return total.name != kOutside; });
    }
    const auto number = [](const TimeTotal& block) {
      int64_t value = 0;
      return absl::SimpleAtoi(block.name.substr(block.name.find('_') + 1),
                              &value)
                 ? value
                 : std::numeric_limits<int64_t>::max();
    };
    absl::c_stable_sort(profile_.blocks,
                        [&](const TimeTotal& a, const TimeTotal& b) {
                          return number(a) < number(b);
                        });
    std::erase_if(profile_.ops, [&](const OpTime& op) {
      return empty(op) && !op.cost.has_value();
    });
  }

  void OrderKernels() {
    std::map<std::string, int> by_name, by_full_name;
    for (size_t i = 0; i < profile_.kernels.size(); ++i) {
      ++by_name[profile_.kernels[i].name];
      ++by_full_name[full_names_[i]];
    }
    for (size_t i = 0; i < profile_.kernels.size(); ++i) {
      KernelTime& kernel = profile_.kernels[i];
      if (by_name[kernel.name] > 1) {
        kernel.name =
            by_full_name[full_names_[i]] > 1 ? kernel.symbol : full_names_[i];
      }
      const ClassTimes& times = class_times_[i];
      kernel.kernel_class =
          static_cast<KernelClass>(absl::c_max_element(times) - times.begin());
    }
    absl::c_stable_sort(
        profile_.kernels,
        [](const KernelTime& a, const KernelTime& b) { return a.ns > b.ns; });
  }

  const Trace& trace_;
  std::vector<OpPlace> places_;  // by range; the last is of range -1
  std::vector<Slots> slots_;     // likewise
  std::map<std::tuple<std::string, std::string, std::string>, int> op_of_;
  std::unordered_map<int, int> kernel_of_;          // by name
  std::unordered_map<uint64_t, Kernel> kernel_at_;  // by name and place
  std::map<int, std::map<int, KernelInOp>> kernels_of_op_;
  std::vector<ClassTimes> class_times_;  // by kernel
  std::vector<std::string> full_names_;  // likewise
  std::array<TimeTotal, kKernelClasses> classes_;
  StepProfile profile_;
};

// Of what took `ns` in all steps.
Speed SpeedOf(int64_t ns, int64_t steps, const std::optional<Cost>& cost,
              const std::optional<double>& roofline_seconds) {
  if (ns == 0 || !cost.has_value()) return {};
  const double ns_per_step = static_cast<double>(ns) /
                             static_cast<double>(std::max<int64_t>(steps, 1));
  Speed speed;
  if (cost->flops > 0) speed.tflop_per_s = cost->flops * 1e-3 / ns_per_step;
  if (cost->bytes > 0) {
    speed.gb_per_s = static_cast<double>(cost->bytes) / ns_per_step;
  }
  if (roofline_seconds.has_value()) {
    speed.roofline_share = *roofline_seconds * 1e9 / ns_per_step;
  }
  return speed;
}

}  // namespace

double StepProfile::MsPerStep(int64_t ns) const {
  return static_cast<double>(ns) * 1e-6 /
         static_cast<double>(std::max<int64_t>(steps, 1));
}

double StepProfile::Share(int64_t ns) const {
  return total_ns == 0
             ? 0
             : static_cast<double>(ns) / static_cast<double>(total_ns);
}

int64_t StepProfile::ClassNs(KernelClass kernel_class) const {
  const auto found = absl::c_find_if(classes, [&](const TimeTotal& total) {
    return total.name == KernelClassName(kernel_class);
  });
  return found == classes.end() ? 0 : found->ns;
}

Speed SpeedOf(const OpTime& op, int64_t steps) {
  return SpeedOf(op.ns, steps, op.cost, op.roofline_seconds);
}

Speed SpeedOf(const KernelTime& kernel, const StepProfile& profile) {
  return SpeedOf(kernel.ns, profile.steps, kernel.cost,
                 kernel.cost.has_value()
                     ? RooflineSeconds(*kernel.cost, profile.rates)
                     : std::nullopt);
}

void AddCounters(const StepProfile& counted, StepProfile* profile) {
  profile->counted_step = counted.counted_step;
  profile->not_counted = counted.not_counted;
  using Key = std::pair<absl::string_view, absl::string_view>;
  std::map<Key, const KernelTime*> kernels;
  for (const KernelTime& kernel : counted.kernels) {
    kernels.emplace(Key(kernel.symbol, kernel.name), &kernel);
  }
  for (KernelTime& kernel : profile->kernels) {
    const auto found = kernels.find(Key(kernel.symbol, kernel.name));
    if (found != kernels.end()) kernel.counters = found->second->counters;
  }
}

std::optional<double> FlopPerDramByte(const KernelTime& kernel,
                                      const StepProfile& profile) {
  if (!kernel.cost.has_value() || !kernel.counters.has_value()) {
    return std::nullopt;
  }
  const double bytes = kernel.counters->dram_bytes_per_launch().value_or(0) *
                       static_cast<double>(kernel.instances) /
                       static_cast<double>(profile.steps);
  if (bytes <= 0 || kernel.cost->flops <= 0) return std::nullopt;
  return kernel.cost->flops / bytes;
}

std::optional<double> SoftmaxToProducts(const AttentionTime& attention) {
  const int64_t products = attention.scores_ns + attention.values_ns;
  if (products == 0) return std::nullopt;
  return static_cast<double>(attention.softmax_ns) /
         static_cast<double>(products);
}

StepProfile BuildStepProfile(const Trace& trace, absl::Span<const StepRow> rows,
                             const DeviceRates& rates) {
  return ProfileBuilder(trace, rows, rates).Build();
}

}  // namespace tessera
