#include "attention_backends/select_backend.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "attention_backends/auto_order.h"
#include "attention_backends/backend_table.h"
#include "attention_backends/naive/naive_backend.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

constinit const NaiveBackend kNaiveLibrarySoftmax(HeldScores::kLibrarySoftmax);
constinit const NaiveBackend kNaiveHandWrittenSoftmax(
    HeldScores::kHandWrittenSoftmax);

using Table = absl::Span<const AttentionBackend* const>;

std::string Names(const std::vector<const AttentionBackend*>& backends) {
  if (backends.empty()) return "none";
  return absl::StrJoin(backends, ", ",
                       [](std::string* out, const AttentionBackend* backend) {
                         absl::StrAppend(out, backend->name());
                       });
}

std::vector<const AttentionBackend*> Runnable(Table table,
                                              const AttentionProblem& problem) {
  std::vector<const AttentionBackend*> runnable;
  for (const AttentionBackend* backend : table) {
    if (backend->Supports(problem).ok()) runnable.push_back(backend);
  }
  return runnable;
}

// Rejects problems that are invalid for every backend.
absl::Status ValidateShape(const AttentionProblem& p) {
  if (p.b < 1 || p.s < 1 || p.t < 1 || p.h < 1 || p.g < 1 || p.d < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention needs every size to be at least 1: ", ToString(p)));
  }
  if (p.h % p.g != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention needs query heads to be a multiple of key "
                     "heads; there are ",
                     p.h, " and ", p.g));
  }
  const at::ScalarType softmax =
      p.dtype == at::kDouble ? at::kDouble : at::kFloat;
  if (p.softmax.value_or(softmax) != softmax) {
    return absl::UnimplementedError(absl::StrCat(
        "attention backends compute the softmax of ", c10::toString(p.dtype),
        " in ", c10::toString(softmax), ", not in ", c10::toString(*p.softmax),
        ": change the precision policy"));
  }
  return absl::OkStatus();
}

// The variant of NAIVE that holds that many tensors.
absl::StatusOr<BackendChoice> ConfigureNaive(const AttentionBackend& naive,
                                             int held_score_tensors) {
  switch (held_score_tensors) {
    case 1:
      return BackendChoice{&naive, "NAIVE, as configured"};
    case 2:
      return BackendChoice{&kNaiveLibrarySoftmax,
                           "NAIVE, as configured, with a library softmax: "
                           "holds 2 score tensors for backward"};
    case 3:
      return BackendChoice{&kNaiveHandWrittenSoftmax,
                           "NAIVE, as configured, with a hand-written softmax: "
                           "holds 3 score tensors for backward"};
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "attention.naive.held_score_tensors must be 1, 2 or 3; is ",
          held_score_tensors));
  }
}

absl::StatusOr<BackendChoice> SelectByName(const BackendRequest& request,
                                           Table table,
                                           const AttentionProblem& problem) {
  const std::string& name = request.name;
  const auto* const found = absl::c_find_if(
      table, [&](const AttentionBackend* b) { return b->name() == name; });
  const AttentionBackend* const backend =
      found == table.end() ? nullptr : *found;
  const absl::Status refusal =
      backend == nullptr
          ? absl::UnimplementedError("it is not part of this build")
          : backend->Supports(problem);
  if (!refusal.ok()) {
    return absl::UnimplementedError(
        absl::StrCat("attention backend ", name, " does not support ",
                     ToString(problem), ": ", refusal.message(),
                     "; would run: ", Names(Runnable(table, problem))));
  }
  if (name == "NAIVE") {
    return ConfigureNaive(*backend, request.naive_held_score_tensors);
  }
  return BackendChoice{backend, absl::StrCat(name, ", as configured")};
}

// The reasons why backends were refused, as "A, B (needs a GPU)", "C (head dim
// ...)": successive backends with the same reason share an entry.
class Refusals {
 public:
  void Add(const AttentionBackend& backend, const absl::Status& refusal) {
    if (groups_.empty() || groups_.back().reason != refusal.message()) {
      groups_.push_back({{}, std::string(refusal.message())});
    }
    groups_.back().backends.push_back(&backend);
  }
  bool empty() const { return groups_.empty(); }
  std::string Join(absl::string_view separator) const {
    return absl::StrJoin(
        groups_, separator, [](std::string* out, const Group& group) {
          absl::StrAppend(out, Names(group.backends), " (", group.reason, ")");
        });
  }

 private:
  struct Group {
    std::vector<const AttentionBackend*> backends;
    std::string reason;
  };
  std::vector<Group> groups_;
};

absl::StatusOr<BackendChoice> SelectFirst(Table table,
                                          const AttentionProblem& problem) {
  const AutoOrder order = AutoOrderFor(problem, table);
  Refusals refusals;
  for (const AttentionBackend* backend : order.backends) {
    const absl::Status supports = backend->Supports(problem);
    if (supports.ok()) {
      std::string reason = absl::StrCat("AUTO chose ", backend->name());
      if (!refusals.empty()) {
        absl::StrAppend(&reason, "; not ", refusals.Join("; not "));
      } else {
        absl::StrAppend(
            &reason, ", ",
            order.reason.empty() ? "the first in the table" : order.reason);
      }
      return BackendChoice{backend, reason};
    }
    refusals.Add(*backend, supports);
  }
  return absl::UnimplementedError(absl::StrCat("no attention backend supports ",
                                               ToString(problem), ": ",
                                               refusals.Join("; ")));
}

}  // namespace

absl::StatusOr<BackendChoice> SelectBackend(const BackendRequest& request,
                                            const AttentionProblem& problem) {
  return SelectBackend(request, problem, AttentionBackends());
}

absl::StatusOr<BackendChoice> SelectBackend(const BackendRequest& request,
                                            const AttentionProblem& problem,
                                            Table table) {
  RETURN_IF_ERROR(ValidateShape(problem));
  return request.name == "AUTO" ? SelectFirst(table, problem)
                                : SelectByName(request, table, problem);
}

}  // namespace tessera
