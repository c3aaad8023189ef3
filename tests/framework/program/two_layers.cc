#include "tests/framework/program/two_layers.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::testing {

Built TwoLayers(const ProgramTarget& target) {
  ProgramBuilder b(target);
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  Value y = x;
  for (const char* name : {"one", "two"}) {
    const ProgramBuilder::Scope scope(b, name);
    y = Product(b, Square(b, y),
                Matrix(b, absl::StrCat(name, ".weight"), kWidth, kWidth));
  }
  const Value loss = Total(b, y);
  b.Output(loss);
  return {std::move(b).Build().value(), x, loss};
}

namespace {

std::string NameOf(const Task& task) {
  const bool sums = task.kind == Task::Kind::kReduce;
  if (!sums && task.kind != Task::Kind::kUpdate) return "task";
  return absl::StrCat(sums ? "sum " : "update ", task.range.begin, "..",
                      task.range.end);
}

}  // namespace

std::vector<std::string> RunNames(const Schedule& schedule) {
  std::vector<std::string> names;
  for (const StepRun& run : schedule.runs) {
    if (run.kind == StepRun::Kind::kTask) {
      names.push_back(NameOf(schedule.tasks[run.task]));
      continue;
    }
    const OpNode& node = schedule.program->ops()[run.op];
    std::string name =
        run.kind == StepRun::Kind::kAdd
            ? "add"
            : absl::StrCat(PhaseName(run.phase), " ", node.op->kind());
    for (size_t i = 0; i < run.d_operands.size(); ++i) {
      if (run.d_operands[i].wanted()) absl::StrAppend(&name, " d", i);
    }
    names.push_back(std::move(name));
  }
  return names;
}

std::map<int, std::vector<int>> WaitsOf(const Schedule& schedule) {
  std::map<int, std::vector<int>> waits;
  for (size_t i = 0; i < schedule.runs.size(); ++i) {
    const std::vector<int>& of_run = schedule.runs[i].waits;
    if (!of_run.empty()) waits[static_cast<int>(i)] = of_run;
  }
  return waits;
}

}  // namespace tessera::testing
