#include "framework/dist/heartbeat.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

constexpr char kFailureKey[] = "failure";

std::string BeatKey(int rank) { return absl::StrCat("beats/", rank); }

}  // namespace

Heartbeat::Heartbeat(std::shared_ptr<KeyValueStore> store,
                     const Options& options,
                     std::function<void(absl::string_view)> on_lost)
    : store_(std::move(store)),
      options_(options),
      allowed_polls_(std::max<int64_t>(1, options.timeout / options.interval)),
      on_lost_(std::move(on_lost)) {
  const int watched = options.rank == 0 ? options.world_size : 1;
  for (int rank = 0; rank < watched; ++rank) {
    if (rank != options.rank) peers_.push_back({.rank = rank});
  }
  beat_ = std::thread(&Heartbeat::Beat, this);
  watch_ = std::thread(&Heartbeat::WatchBeat, this);
}

void Heartbeat::Stop() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  // Join the watching thread last: it ends the process if a request hangs.
  if (beat_.joinable()) beat_.join();
  if (watch_.joinable()) watch_.join();
}

void Heartbeat::Announce(absl::string_view failure) {
  // If the store is gone, its end has already been noticed.
  store_->SetIfMissing(kFailureKey, std::string(failure)).IgnoreError();
  // The store ends with rank 0.
  if (options_.rank == 0) absl::SleepFor(2 * options_.interval);
}

void Heartbeat::NoteFailure() {
  const absl::MutexLock lock(&mutex_);
  knows_failure_ = true;
}

void Heartbeat::AwaitReport() {
  {
    const absl::MutexLock lock(&mutex_);
    if (!knows_failure_) return;
  }
  SleepUnlessStopped(options_.timeout);
}

void Heartbeat::Beat() {
  do {
    absl::StatusOr<std::optional<std::string>> lost = PollOnce();
    if (!lost.ok()) {
      lost = absl::StrCat("lost the connection to rank 0, which has ended (",
                          lost.status().message(), ")");
    }
    if (lost->has_value()) {
      // After Stop() the owner reports its own error.
      if (SleepUnlessStopped(absl::ZeroDuration())) ReportOnce(**lost);
      break;
    }
    const absl::MutexLock lock(&mutex_);
    ++polls_;
  } while (SleepUnlessStopped(options_.interval));
  const absl::MutexLock lock(&mutex_);
  beat_ended_ = true;
}

absl::StatusOr<std::optional<std::string>> Heartbeat::PollOnce() {
  RETURN_IF_ERROR(store_->Add(BeatKey(options_.rank), 1).status());
  ASSIGN_OR_RETURN(std::optional<std::string> failure,
                   store_->Get(kFailureKey));
  if (failure.has_value()) {
    NoteFailure();
    // Longer than rank 0 takes to announce. Launchers may kill all ranks once
    // one has ended, and the rank that failed has the best error message.
    SleepUnlessStopped(3 * options_.interval);
    return failure;
  }
  if (options_.poll != nullptr) {
    ASSIGN_OR_RETURN(failure, options_.poll(*store_));
    if (failure.has_value()) {
      NoteFailure();
      Announce(*failure);
      // The other ranks wait as long and then report the same.
      SleepUnlessStopped(3 * options_.interval);
      return failure;
    }
  }
  for (Peer& peer : peers_) {
    ASSIGN_OR_RETURN(std::optional<std::string> lost, PollPeer(peer));
    if (lost.has_value()) {
      Announce(*lost);
      return lost;
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<std::string>> Heartbeat::PollPeer(Peer& peer) {
  ASSIGN_OR_RETURN(const int64_t beats, store_->Add(BeatKey(peer.rank), 0));
  if (beats != peer.beats) {
    peer.beats = beats;
    peer.silent_polls = 0;
  } else if (++peer.silent_polls >= allowed_polls_) {
    return absl::StrCat("rank ", peer.rank, " of ", options_.world_size,
                        " has given no sign of life for ",
                        absl::FormatDuration(options_.timeout),
                        ": it was killed, or its machine is unreachable");
  }
  return std::nullopt;
}

void Heartbeat::WatchBeat() {
  int64_t seen = -1;
  int64_t silent_polls = 0;
  while (true) {
    {
      const absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&beat_ended_),
                                  options_.interval)) {
        return;
      }
      silent_polls = polls_ == seen ? silent_polls + 1 : 0;
      seen = polls_;
    }
    // Two polls more than a peer gets, because the other thread has more
    // information and may be about to report.
    if (silent_polls > allowed_polls_ + 2) break;
  }
  ReportOnce(absl::StrCat("rank 0 of ", options_.world_size,
                          " has not answered for ",
                          absl::FormatDuration(options_.timeout)));
}

bool Heartbeat::SleepUnlessStopped(absl::Duration duration) {
  const absl::MutexLock lock(&mutex_);
  return !mutex_.AwaitWithTimeout(absl::Condition(&stopping_), duration);
}

void Heartbeat::ReportOnce(absl::string_view lost) {
  {
    const absl::MutexLock lock(&mutex_);
    if (std::exchange(reported_, true)) return;
  }
  on_lost_(lost);
}

}  // namespace tessera
