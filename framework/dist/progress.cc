#include "framework/dist/progress.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "framework/base/json.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/cuda_graph.h"
#include "framework/cuda/page_locked.h"
#include "framework/cuda/stream_write.h"

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
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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

void Progress::CountOn(c10::Device gpu) {
  // Never freed: a GPU whose communications were aborted may still write.
  const auto* const words =
      new at::Tensor(PageLocked({kWords}, at::kLong).zero_());
  words_ = words->mutable_data_ptr<int64_t>();
  gpu_ = gpu;
  before_ = in_step_ = 0;
}

void Progress::Write(Word first, absl::Span<const int64_t> values) {
  int64_t* word = words_ + first;
  if constexpr (kCudaBuild) {
    if (gpu_.has_value()) {
      std::vector<cuda::StreamWrite> writes;
      for (const int64_t value : values) writes.push_back({word++, value});
      ThrowIfError(cuda::WriteOnStream(*gpu_, writes));
      return;
    }
  }
  for (const int64_t value : values) {
    std::atomic_ref<int64_t>(*word++) = value;
  }
}

void Progress::Begin(absl::string_view name) {
  int64_t number = 0;
  if (gpu_.has_value() && IsCapturing(*gpu_)) {
    number = ++recorded_now_;
    recorded_ = std::max(recorded_, number);
    in_step_ = std::max(in_step_, number);
  } else {
    number = ++in_step_;
  }
  last_ = (number << kNameBits) | NumberOf(name);
  Write(kBegun, {last_});
}

void Progress::End() { Write(kEnded, {last_}); }

void Progress::SetStep(int64_t step) {
  before_ += in_step_;
  in_step_ = recorded_;
  recorded_now_ = 0;
  // None of this step; the name stays.
  const int64_t none = last_ & ((1 << kNameBits) - 1);
  Write(kEnded, {none, none, before_, step});
}

int64_t Progress::NumberOf(absl::string_view name) {
  const absl::MutexLock lock(&mutex_);
  if (const auto found = numbers_.find(name); found != numbers_.end()) {
    return found->second;
  }
  const auto number = static_cast<int64_t>(names_.size());
  if (number >= int64_t{1} << kNameBits) return 0;
  names_.emplace_back(name);
  numbers_.emplace(name, number);
  return number;
}

std::string Progress::SetHost(absl::string_view host, bool excused) {
  const absl::MutexLock lock(&mutex_);
  excused_ = excused;
  return std::exchange(host_, std::string(host));
}

RankProgress Progress::Now() const {
  const absl::MutexLock lock(&mutex_);
  const auto word = [this](Word word) -> int64_t {
    return std::atomic_ref<int64_t>(words_[word]);
  };
  // In this order, so that no more have ended than have begun.
  const int64_t ended = word(kEnded), begun = word(kBegun);
  const int64_t before = word(kBefore);
  RankProgress now = {.begun = before + (begun >> kNameBits),
                      .ended = before + (ended >> kNameBits),
                      .step = word(kStep),
                      .host = host_,
                      .excused = excused_,
                      .process = process_};
  constexpr int64_t kName = (int64_t{1} << kNameBits) - 1;
  if (now.begun > 0) now.begun_name = names_[begun & kName];
  if (now.ended > 0) now.ended_name = names_[ended & kName];
  return now;
}

}  // namespace tessera
