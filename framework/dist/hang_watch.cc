#include "framework/dist/hang_watch.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "framework/base/file.h"
#include "framework/base/json.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/dist/rank_list.h"

namespace tessera {
namespace {

constexpr char kHang[] = "no communication has made progress for ";
constexpr size_t kMeasuredSteps = 15;
constexpr std::chrono::seconds kLongestWrite(5);
constexpr double kStepsWaited = 10;
// The number of ranks that read the progress of all.
constexpr char kReadersKey[] = "progress/readers";

std::string ProgressKey(int rank) { return absl::StrCat("progress/", rank); }

// "rank 1 (process 4711 on gpu01)".
std::string NamesOf(const std::vector<int>& of,
                    const std::vector<RankProgress>& ranks) {
  std::string names = RankList(of);
  if (of.size() == 1 && !ranks[of[0]].process.empty()) {
    absl::StrAppend(&names, " (", ranks[of[0]].process, ")");
  }
  return names;
}

// "Rank 1 (process 4711 on gpu01) has ended operation 2 of 5 in step 7 and has
// begun none since; its host writes the log." `there`: what was named last; may
// be null.
std::string Whereabouts(const std::vector<int>& of,
                        const std::vector<RankProgress>& ranks,
                        const RankProgress* there) {
  const RankProgress& one = ranks[of[0]];
  std::string names = NamesOf(of, ranks);
  names[0] = 'R';
  const bool many = of.size() > 1;
  if (there != nullptr && one.begun == there->begun && one.begun > one.ended &&
      one.begun_name == there->begun_name) {
    return absl::StrCat(" ", names, many ? " wait there." : " waits there.");
  }
  std::string text = absl::StrCat(" ", names, many ? " have " : " has ");
  if (one.begun > one.ended) {
    absl::StrAppend(&text, "begun '", one.begun_name, "' of step ", one.step,
                    " and not ended it");
  } else if (one.begun == 0) {
    absl::StrAppend(&text, "begun no communication");
  } else {
    absl::StrAppend(&text, "ended '", one.ended_name, "' in step ", one.step,
                    " and begun none since");
  }
  if (!one.host.empty()) {
    absl::StrAppend(&text, many ? "; the host of each " : "; its host ",
                    one.host);
  }
  return text + ".";
}

// The ranks by where they are, furthest first.
std::vector<std::vector<int>> Groups(const std::vector<RankProgress>& ranks) {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    RankProgress place = ranks[rank];
    place.process.clear();
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const std::vector<int>& group) {
                                     RankProgress other = ranks[group[0]];
                                     other.process.clear();
                                     return other == place;
                                   });
    if (same == groups.end()) {
      groups.push_back({rank});
    } else {
      same->push_back(rank);
    }
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [&](const auto& a, const auto& b) {
                     return ranks[a[0]].begun > ranks[b[0]].begun;
                   });
  return groups;
}

}  // namespace

absl::Duration HangClock::limit() const {
  if (polls_per_step_.empty()) return limits_.first;
  std::deque<double> sorted = polls_per_step_;
  const auto middle = sorted.begin() + sorted.size() / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  return std::max(limits_.least, kStepsWaited * *middle * interval_);
}

bool HangClock::Poll(const RankProgress& progress) {
  ++polls_in_step_;
  if (progress.step != last_.step) {
    // The time before the first step is not a step's.
    if (last_.step > 0 && progress.step > last_.step) {
      polls_per_step_.push_back(
          static_cast<double>(polls_in_step_) /
          static_cast<double>(progress.step - last_.step));
      if (polls_per_step_.size() > kMeasuredSteps) polls_per_step_.pop_front();
    }
    polls_in_step_ = 0;
  }
  const bool waits = progress.begun > progress.ended;
  const bool moved =
      progress.begun != last_.begun || progress.ended != last_.ended;
  silent_polls_ = waits && !moved ? silent_polls_ + 1 : 0;
  last_ = progress;
  return waits && waited() >= limit();
}

std::vector<int> MissingRanks(const std::vector<RankProgress>& ranks) {
  const auto [fewest, most] = std::minmax_element(
      ranks.begin(), ranks.end(),
      [](const auto& a, const auto& b) { return a.begun < b.begun; });
  std::vector<int> missing;
  if (fewest->begun == most->begun) return missing;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (ranks[rank].begun == fewest->begun) missing.push_back(rank);
  }
  return missing;
}

std::string DescribeHang(const std::vector<RankProgress>& ranks,
                         absl::Duration waited) {
  const std::vector<std::vector<int>> groups = Groups(ranks);
  const RankProgress& furthest = ranks[groups[0][0]];
  const std::vector<int> missing = MissingRanks(ranks);
  std::string text = absl::StrCat(kHang, absl::FormatDuration(waited), ": ");
  if (!missing.empty()) {
    absl::StrAppend(&text, NamesOf(missing, ranks),
                    missing.size() == 1 ? " is" : " are", " missing in '",
                    furthest.begun_name, "' of step ", furthest.step, ".");
  } else if (groups.size() > 1) {
    absl::StrAppend(&text, "the ranks are in different operations.");
  } else {
    absl::StrAppend(&text, "all ranks are in '", furthest.begun_name,
                    "' of step ", furthest.step,
                    ", so a GPU or the network between them hangs.");
    return text;
  }
  constexpr size_t kMostGroups = 4;
  for (size_t g = 0; g < std::min(groups.size(), kMostGroups); ++g) {
    text +=
        Whereabouts(groups[g], ranks, missing.empty() ? nullptr : &furthest);
  }
  if (groups.size() > kMostGroups) {
    absl::StrAppend(&text, " ", groups.size() - kMostGroups,
                    " more ranks or groups of ranks are elsewhere.");
  }
  return text;
}

bool IsHang(absl::string_view text) { return absl::StrContains(text, kHang); }

absl::StatusOr<std::optional<std::string>> HangWatch::Poll(
    KeyValueStore& store) {
  RankProgress now = progress_.Now();
  if (sent_ != now) {
    RETURN_IF_ERROR(store.Set(ProgressKey(rank_), PrintProgress(now)));
    sent_ = now;
  }
  // A rank whose communication has failed may still write a checkpoint.
  if (!clock_.Poll(now) || now.excused) return std::nullopt;
  // One rank at a time, so that the store answers heartbeats in between.
  std::vector<RankProgress> ranks;
  ASSIGN_OR_RETURN(const int64_t readers, store.Add(kReadersKey, 1));
  if (readers == 1) {
    ASSIGN_OR_RETURN(ranks, ReadAll(store));
  }
  RETURN_IF_ERROR(store.Add(kReadersKey, -1).status());
  if (ranks.empty()) return std::nullopt;
  std::vector<int> excused;
  for (const int rank : MissingRanks(ranks)) {
    if (ranks[rank].excused) excused.push_back(rank);
  }
  if (excused.empty()) return DescribeHang(ranks, clock_.waited());
  LogWarning(absl::StrCat("rank ", rank_, " of ", world_size_, " has waited ",
                          absl::FormatDuration(clock_.waited()), " in '",
                          now.begun_name, "' of step ", now.step, " for ",
                          NamesOf(excused, ranks), ", which ",
                          ranks[excused[0]].host));
  clock_.Restart();
  return std::nullopt;
}

absl::StatusOr<std::vector<RankProgress>> HangWatch::ReadAll(
    KeyValueStore& store) const {
  std::vector<RankProgress> ranks(world_size_);
  for (int rank = 0; rank < world_size_; ++rank) {
    ASSIGN_OR_RETURN(const std::optional<std::string> sent,
                     store.Get(ProgressKey(rank)));
    // A rank that has sent nothing yet has begun nothing.
    if (sent.has_value()) ranks[rank] = ParseProgress(*sent);
  }
  return ranks;
}

void HangWatch::SetFolder(absl::string_view folder) {
  const absl::MutexLock lock(&mutex_);
  folder_ = std::string(folder);
}

std::string HangWatch::WriteReport(absl::string_view why) const {
  std::string folder;
  {
    const absl::MutexLock lock(&mutex_);
    folder = folder_;
  }
  if (folder.empty()) return "";
  const std::string path = absl::StrCat(folder, "/hang_rank_", rank_, ".json");
  nlohmann::json json = ParseJson(PrintProgress(progress_.Now()));
  json["rank"] = rank_;
  json["world_size"] = world_size_;
  json["why"] = std::string(why);
  json["time"] = absl::FormatTime(absl::Now());
  const std::string text = DumpJson(json, 2) + "\n";
  // A file system that does not answer must not keep this process alive.
  std::promise<absl::Status> promise;
  std::future<absl::Status> future = promise.get_future();
  std::thread([folder, path, text, promise = std::move(promise)]() mutable {
    // Machines may not share the folder that rank 0 has created.
    absl::Status status = MakeDirectories(folder);
    if (status.ok()) status = WriteFileAtomically(path, text);
    promise.set_value(std::move(status));
  }).detach();
  if (future.wait_for(kLongestWrite) != std::future_status::ready) {
    return absl::StrCat(" ", path, " cannot be written: the disk is silent.");
  }
  const absl::Status written = future.get();
  return written.ok() ? absl::StrCat(" This rank's progress is in ", path, ".")
                      : absl::StrCat(" ", written.message(), ".");
}

}  // namespace tessera
