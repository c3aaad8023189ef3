#include "framework/dist/progress.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "framework/base/json.h"

namespace tessera {
namespace {

std::string ThisProcess() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return absl::StrCat("process ", ::getpid(), " on ", host.data());
}

}  // namespace

std::string PrintProgress(const RankProgress& progress) {
  const nlohmann::json json = {
      {"begun", progress.begun},     {"begun_name", progress.begun_name},
      {"ended", progress.ended},     {"ended_name", progress.ended_name},
      {"step", progress.step},       {"host", progress.host},
      {"excused", progress.excused}, {"process", progress.process}};
  return DumpJson(json);
}

RankProgress ParseProgress(absl::string_view text) {
  const nlohmann::json json = ParseJson(text);
  RankProgress progress;
  const auto read = [&json](const char* name, auto& field) {
    if (!json.is_object() || !json.contains(name)) return;
    try {
      json[name].get_to(field);
    } catch (const nlohmann::json::exception&) {
      // Keeps the default: the store may be anyone's.
    }
  };
  read("begun", progress.begun);
  read("begun_name", progress.begun_name);
  read("ended", progress.ended);
  read("ended_name", progress.ended_name);
  read("step", progress.step);
  read("host", progress.host);
  read("excused", progress.excused);
  read("process", progress.process);
  return progress;
}

Progress::Progress() : process_(ThisProcess()) {}

void Progress::CountOn(std::unique_ptr<Writer> writer) {
  const int64_t before_the_first = 0;
  writer->Write(kStep, {&before_the_first, 1});
  writer_ = std::move(writer);
  before_ = in_step_ = 0;
  const absl::MutexLock lock(&mutex_);
  words_ = writer_->words();
}

void Progress::Write(Word first, absl::Span<const int64_t> values) {
  if (writer_ != nullptr) return writer_->Write(first, values);
  for (size_t i = 0; i < values.size(); ++i) {
    std::atomic_ref(words_[first + i]).store(values[i]);
  }
}

void Progress::Begin(absl::string_view name) {
  int64_t number = 0;
  if (writer_ != nullptr && writer_->records()) {
    number = ++recorded_now_;
    recorded_ = std::max(recorded_, number);
    in_step_ = std::max(in_step_, number);
  } else {
    number = ++in_step_;
  }
  last_ = (number << kNameBits) | NumberOf(name);
  Write(kBegun, {last_});
}

int64_t Progress::NumberOf(absl::string_view name) {
  const absl::MutexLock lock(&mutex_);
  if (const auto found = numbers_.find(name); found != numbers_.end()) {
    return found->second;
  }
  const auto number = static_cast<int64_t>(names_.size());
  if (number >= kNames) return 0;
  names_.emplace_back(name);
  numbers_.emplace(name, number);
  return number;
}

void Progress::SetStep(int64_t step) {
  before_ += in_step_;
  in_step_ = recorded_;
  recorded_now_ = 0;
  // None of this step; the name stays.
  const int64_t none = last_ % kNames;
  Write(kEnded, {none, none, before_, step});
}

std::string Progress::SetHost(absl::string_view host, bool excused) {
  const absl::MutexLock lock(&mutex_);
  excused_ = excused;
  return std::exchange(host_, std::string(host));
}

RankProgress Progress::Now() const {
  const absl::MutexLock lock(&mutex_);
  const auto read = [this] {
    std::array<int64_t, kWords> words = {};
    for (int i = 0; i < kWords; ++i) {
      words[i] = std::atomic_ref(words_[i]).load();
    }
    return words;
  };
  std::array<int64_t, kWords> words = read();
  // What they were at one time: then no more have ended than have begun.
  for (auto again = read(); again != words; again = read()) words = again;
  const int64_t ended = words[kEnded], begun = words[kBegun];
  RankProgress now = {.begun = words[kBefore] + (begun >> kNameBits),
                      .ended = words[kBefore] + (ended >> kNameBits),
                      .step = words[kStep],
                      .host = host_,
                      .excused = excused_,
                      .process = process_};
  if (now.begun > 0) now.begun_name = names_[begun % kNames];
  if (now.ended > 0) now.ended_name = names_[ended % kNames];
  return now;
}

}  // namespace tessera
