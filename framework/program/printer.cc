#include "framework/program/printer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/program/memory.h"

namespace tessera {
namespace {

std::string TopScope(const StepRow& row) {
  return row.group.substr(0, row.group.find('/'));
}

bool IsForward(const StepRow& row) {
  return row.phase == PhaseName(Phase::kForward);
}

absl::string_view NameOf(StepStream stream) {
  switch (stream) {
    case StepStream::kMain:
      return "";
    case StepStream::kWeightGradients:
      return "weight gradients";
    case StepStream::kCommunication:
      return "communication";
    case StepStream::kUpdate:
      return "update";
  }
  return "";
}

// The type of the first output of a run.
std::string OutputOf(const Schedule& schedule, const StepRun& run) {
  if (run.kind == StepRun::Kind::kTask) {
    return ToString(schedule.tasks[run.task].output);
  }
  if (run.kind != StepRun::Kind::kBackward) {
    return ToString(schedule.values[run.results[0]].type);
  }
  const OpNode& node = schedule.program->ops()[run.op];
  for (size_t i = 0; i < run.d_operands.size(); ++i) {
    if (run.d_operands[i].wanted()) {
      return ToString(schedule.program->info(node.operands[i]).type);
    }
  }
  return "";
}

StepRow RowOf(const Schedule& schedule, const Lifetimes& lifetimes, int index,
              const DeviceRates& rates) {
  const StepRun& run = schedule.runs[index];
  StepRow row;
  row.phase = std::string(PhaseName(run.phase));
  row.stream = std::string(NameOf(run.stream));
  row.group = schedule.program->ScopePath(schedule.ScopeOf(run));
  row.name = schedule.NameOf(run);
  row.output = OutputOf(schedule, run);
  if (run.kind == StepRun::Kind::kTask) {
    row.kind = schedule.tasks[run.task].family;
    row.kernel = schedule.tasks[run.task].kernel;
  } else if (run.kind == StepRun::Kind::kAdd) {
    row.kind = "add";
    row.kernel = "ATen";
  } else {
    const Op& op = *schedule.program->ops()[run.op].op;
    row.kind = std::string(op.kind());
    row.kernel = op.kernel();
  }
  row.kept_bytes = KeptBytesOf(schedule, lifetimes, index);
  if (run.micro_batch >= 0) {
    row.count = row.micro_batches = schedule.micro_batches;
  }
  row.cost = schedule.CostOf(run);
  row.seconds = RooflineSeconds(row.cost, rates);
  return row;
}

// The group's contents without the block's number.
std::string Fingerprint(absl::Span<const StepRow> group) {
  std::string text;
  for (const StepRow& row : group) {
    const std::string within = row.group.find('/') == std::string::npos
                                   ? ""
                                   : row.group.substr(row.group.find('/'));
    absl::StrAppend(&text, row.phase, "|", row.stream, "|", within, "|",
                    row.name, "|", row.kind, "|", row.output, "|",
                    row.cost.flops, "|", row.cost.bytes, "|", row.kept_bytes,
                    "\n");
  }
  return text;
}

// "block_0/ffn" and "block_31/ffn" as "block_0..31/ffn".
std::string Range(const std::string& first, const std::string& last) {
  const size_t begin = first.find('_') + 1;
  const size_t last_end = last.find('/');
  return absl::StrCat(first.substr(0, first.find('/')), "..",
                      last.substr(begin, last_end - begin),
                      first.find('/') == std::string::npos
                          ? ""
                          : first.substr(first.find('/')));
}

std::string Engineering(double value, absl::string_view unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  int prefix = 0;
  while (value >= 999.5 && prefix < 5) {
    value /= 1000;
    ++prefix;
  }
  return absl::StrFormat("%.3g %s%s", value, kPrefixes[prefix], unit);
}

// The times of the runs of both rows.
std::optional<double> MeanMeasured(const StepRow& a, const StepRow& b) {
  if (!a.measured_seconds.has_value() || !b.measured_seconds.has_value()) {
    return std::nullopt;
  }
  const auto count_a = static_cast<double>(a.count);
  const auto count_b = static_cast<double>(b.count);
  return (count_a * *a.measured_seconds + count_b * *b.measured_seconds) /
         (count_a + count_b);
}

bool IsMeasured(absl::Span<const StepRow> rows) {
  return std::any_of(rows.begin(), rows.end(), [](const StepRow& row) {
    return row.measured_seconds.has_value();
  });
}

// Of a measured time to the one by the roofline.
std::optional<double> RatioOf(std::optional<double> measured,
                              std::optional<double> seconds) {
  if (!measured.has_value() || seconds.value_or(0) <= 0) return std::nullopt;
  return *measured / *seconds;
}

std::string FormatRatio(std::optional<double> ratio) {
  return ratio.has_value() ? absl::StrFormat("%.2f", *ratio) : "n/a";
}

std::string Microseconds(std::optional<double> seconds) {
  return seconds.has_value() ? absl::StrFormat("%.1f", *seconds * 1e6) : "n/a";
}

// The cells of one line: texts, aligned left, then numbers.
struct Cells {
  std::vector<std::string> texts, numbers;
};

Cells CellsOf(const StepRow& row, bool streams, bool measured) {
  Cells cells = {{row.phase, row.group, row.name, row.kernel, row.output},
                 {absl::StrCat(row.count), Engineering(row.cost.flops, ""),
                  Engineering(static_cast<double>(row.cost.bytes), "B"),
                  row.kept_bytes > 0
                      ? Engineering(static_cast<double>(row.kept_bytes), "B")
                      : "",
                  Microseconds(row.seconds)}};
  if (streams) cells.texts.insert(cells.texts.begin() + 1, row.stream);
  if (measured) {
    cells.numbers.push_back(Microseconds(row.measured_seconds));
    cells.numbers.push_back(
        FormatRatio(RatioOf(row.measured_seconds, row.seconds)));
  }
  return cells;
}

Cells Heads(bool streams, bool measured) {
  Cells cells = {{"phase", "part", "op", "kernel", "writes"},
                 {"runs", "FLOP", "moves", "keeps", "best us"}};
  if (streams) cells.texts.insert(cells.texts.begin() + 1, "stream");
  if (measured) {
    cells.numbers.insert(cells.numbers.end(), {"took us", "ratio"});
  }
  return cells;
}

// The lines, each column as wide as its widest cell.
std::string Align(const std::vector<Cells>& lines) {
  const size_t texts = lines[0].texts.size();
  const auto cell = [&](const Cells& line, size_t i) -> const std::string& {
    return i < texts ? line.texts[i] : line.numbers[i - texts];
  };
  std::vector<size_t> widths(texts + lines[0].numbers.size());
  for (const Cells& line : lines) {
    for (size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], cell(line, i).size());
    }
  }
  std::string text;
  for (const Cells& line : lines) {
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string padding(widths[i] - cell(line, i).size(), ' ');
      absl::StrAppend(
          &text, i == 0 ? "" : "  ",
          i < texts ? cell(line, i) + padding : padding + cell(line, i));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

struct Total {
  Cost cost;
  int64_t kept_bytes = 0;
  double seconds = 0, measured_seconds = 0;
  int64_t runs = 0;
};

}  // namespace

std::optional<double> RooflineSeconds(const Cost& cost,
                                      const DeviceRates& rates) {
  const double other = cost.flops - cost.product_flops;
  if (!rates.bytes_per_s.has_value() ||
      (cost.product_flops > 0 && !rates.product_flops_per_s.has_value()) ||
      (other > 0 && !rates.vector_flops_per_s.has_value())) {
    return std::nullopt;
  }
  const double bytes = static_cast<double>(cost.bytes) / *rates.bytes_per_s;
  const double products = cost.product_flops > 0
                              ? cost.product_flops / *rates.product_flops_per_s
                              : 0;
  const double rest = other > 0 ? other / *rates.vector_flops_per_s : 0;
  return std::max({bytes, products, rest});
}

std::vector<StepRow> StepRows(const Schedule& schedule,
                              const Lifetimes& lifetimes,
                              const DeviceRates& rates) {
  std::vector<StepRow> rows;
  for (size_t run = 0; run < schedule.runs.size(); ++run) {
    if (schedule.runs[run].micro_batch > 0) continue;
    StepRow row = RowOf(schedule, lifetimes, static_cast<int>(run), rates);
    // The sums of the gradients' slices are one row, wherever they run.
    const auto same = absl::c_find_if(rows, [&](const StepRow& other) {
      return schedule.runs[run].kind == StepRun::Kind::kTask &&
             other.phase == row.phase && other.name == row.name;
    });
    if (same == rows.end()) {
      rows.push_back(std::move(row));
      continue;
    }
    same->count += row.count;
    const auto mean = [&](auto of_all, auto one) {
      return of_all + (one - of_all) * row.count / same->count;
    };
    same->cost.flops = mean(same->cost.flops, row.cost.flops);
    same->cost.product_flops =
        mean(same->cost.product_flops, row.cost.product_flops);
    same->cost.bytes = mean(same->cost.bytes, row.cost.bytes);
    same->seconds = RooflineSeconds(same->cost, rates);
  }
  return rows;
}

std::vector<StepRow> FoldBlocks(absl::Span<const StepRow> rows) {
  std::vector<StepRow> folded;
  std::map<std::string, size_t> seen;  // fingerprint -> its first row
  std::vector<std::string> last;       // by row: the last group folded into it
  for (size_t begin = 0; begin < rows.size();) {
    const std::string scope = TopScope(rows[begin]);
    size_t end = begin + 1;
    while (end < rows.size() && TopScope(rows[end]) == scope &&
           IsForward(rows[end]) == IsForward(rows[begin])) {
      ++end;
    }
    const absl::Span<const StepRow> group = rows.subspan(begin, end - begin);
    begin = end;
    const auto [found, is_new] =
        seen.emplace(Fingerprint(group), folded.size());
    if (is_new || scope.empty()) {
      folded.insert(folded.end(), group.begin(), group.end());
      last.resize(folded.size());
      continue;
    }
    for (size_t i = 0; i < group.size(); ++i) {
      StepRow& row = folded[found->second + i];
      row.measured_seconds = MeanMeasured(row, group[i]);
      row.count += group[i].count;
      last[found->second + i] = group[i].group;
    }
  }
  for (size_t i = 0; i < folded.size(); ++i) {
    if (!last[i].empty()) folded[i].group = Range(folded[i].group, last[i]);
  }
  return folded;
}

std::string FormatStep(absl::Span<const StepRow> rows) {
  const bool measured = IsMeasured(rows);
  const bool streams = absl::c_any_of(
      rows, [](const StepRow& row) { return !row.stream.empty(); });
  std::vector<Cells> lines = {Heads(streams, measured)};
  std::map<std::string, Total> totals;
  Total all;
  for (const StepRow& row : rows) {
    lines.push_back(CellsOf(row, streams, measured));
    for (Total* total : {&totals[row.kind], &all}) {
      for (int64_t i = 0; i < row.count; ++i) total->cost += row.cost;
      total->kept_bytes += row.count / row.micro_batches * row.kept_bytes;
      total->seconds +=
          static_cast<double>(row.count) * row.seconds.value_or(0);
      total->measured_seconds +=
          static_cast<double>(row.count) * row.measured_seconds.value_or(0);
      total->runs += row.count;
    }
  }
  std::string text = Align(lines);
  const bool timed =
      std::all_of(rows.begin(), rows.end(),
                  [](const StepRow& row) { return row.seconds.has_value(); });
  absl::StrAppendFormat(&text, "\n%-20s%8s%12s%12s%12s%12s", "totals", "runs",
                        "FLOP", "moves", "keeps", "best us");
  if (measured) absl::StrAppendFormat(&text, "%12s%8s", "took us", "ratio");
  absl::StrAppend(&text, "\n");
  std::vector<std::pair<std::string, Total>> kinds(totals.begin(),
                                                   totals.end());
  std::sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) {
    return a.second.cost.bytes > b.second.cost.bytes;
  });
  kinds.emplace_back("all", all);
  for (const auto& [kind, total] : kinds) {
    absl::StrAppendFormat(
        &text, "%-20s%8d%12s%12s%12s%12s", kind, total.runs,
        Engineering(total.cost.flops, ""),
        Engineering(static_cast<double>(total.cost.bytes), "B"),
        Engineering(static_cast<double>(total.kept_bytes), "B"),
        timed ? absl::StrFormat("%.1f", total.seconds * 1e6) : "n/a");
    if (measured) {
      absl::StrAppendFormat(
          &text, "%12.1f%8s", total.measured_seconds * 1e6,
          FormatRatio(timed ? RatioOf(total.measured_seconds, total.seconds)
                            : std::nullopt));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

nlohmann::ordered_json StepToJson(absl::Span<const StepRow> rows) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  const bool measured = IsMeasured(rows);
  const auto or_null = [](std::optional<double> value, double scale) {
    return value.has_value() ? nlohmann::ordered_json(*value * scale)
                             : nlohmann::ordered_json();
  };
  for (const StepRow& row : rows) {
    nlohmann::ordered_json line = {{"phase", row.phase},
                                   {"stream", row.stream},
                                   {"part", row.group},
                                   {"op", row.name},
                                   {"kind", row.kind},
                                   {"kernel", row.kernel},
                                   {"writes", row.output},
                                   {"count", row.count},
                                   {"flops", row.cost.flops},
                                   {"bytes", row.cost.bytes},
                                   {"products", row.cost.products},
                                   {"kept_bytes", row.kept_bytes}};
    line["roofline_us"] = or_null(row.seconds, 1e6);
    if (measured) {
      line["measured_us"] = or_null(row.measured_seconds, 1e6);
      line["measured_to_roofline"] =
          or_null(RatioOf(row.measured_seconds, row.seconds), 1);
    }
    json.push_back(std::move(line));
  }
  return json;
}

}  // namespace tessera
