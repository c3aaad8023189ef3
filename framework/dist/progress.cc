#include "framework/dist/progress.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "framework/base/json.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/page_locked.h"
#include "framework/dist/progress_kernels.h"

namespace tessera {
namespace {

std::string ThisProcess() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return absl::StrCat("process ", ::getpid(), " on ", host.data());
}

std::atomic_ref<int64_t> Word(const at::Tensor& words, int word) {
  return std::atomic_ref<int64_t>(words.mutable_data_ptr<int64_t>()[word]);
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

Progress::Progress()
    : words_(at::zeros({kWords}, at::kLong)), process_(ThisProcess()) {}

void Progress::CountOn(c10::Device device) {
  counts_ = at::zeros({kWords}, at::dtype(at::kLong).device(device));
  // Never freed: a GPU whose communications were aborted may still write.
  const auto* const words =
      new at::Tensor(PageLocked({kWords}, at::kLong).zero_());
  const absl::MutexLock lock(&mutex_);
  words_ = *words;
}

void Progress::Count(Word word, absl::string_view name) {
  const int64_t number = NumberOf(name);
  if constexpr (kCudaBuild) {
    if (counts_.defined()) {
      ThrowIfError(cuda::Count(counts_, word, int64_t{1} << kNameBits, number,
                               words_.mutable_data_ptr<int64_t>() + word));
      return;
    }
  }
  const auto value = tessera::Word(words_, word);
  value = (((value >> kNameBits) + 1) << kNameBits) | number;
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

void Progress::SetStep(int64_t step) {
  if constexpr (kCudaBuild) {
    if (counts_.defined()) {
      ThrowIfError(cuda::Store(counts_, step,
                               words_.mutable_data_ptr<int64_t>() + kStep));
      return;
    }
  }
  tessera::Word(words_, kStep) = step;
}

std::string Progress::SetHost(absl::string_view host, bool excused) {
  const absl::MutexLock lock(&mutex_);
  excused_ = excused;
  return std::exchange(host_, std::string(host));
}

RankProgress Progress::Now() const {
  const absl::MutexLock lock(&mutex_);
  // In this order, so that no more have ended than have begun.
  const int64_t ended = tessera::Word(words_, kEnded);
  const int64_t begun = tessera::Word(words_, kBegun);
  const auto name =
      [this](int64_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return count == 0 ? "" : names_[count & ((1 << kNameBits) - 1)];
      };
  return {.begun = begun >> kNameBits,
          .ended = ended >> kNameBits,
          .begun_name = name(begun),
          .ended_name = name(ended),
          .step = tessera::Word(words_, kStep),
          .host = host_,
          .excused = excused_,
          .process = process_};
}

}  // namespace tessera
