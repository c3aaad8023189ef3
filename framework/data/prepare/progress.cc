#include "framework/data/prepare/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/terminal.h"

namespace tessera {
namespace {

constexpr int kBarWidth = 30;
constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);

class Console {
 public:
  void Update(const Progress& progress) {
    const absl::Time now = MonotonicNow();
    if (progress.phase != phase_) {
      phase_ = std::string(progress.phase);
      begin_ = now;
      drawn_ = absl::InfinitePast();
      if (!is_terminal_) absl::FPrintF(stderr, "%s\n", phase_);
    }
    const bool done = progress.fraction >= 1;
    if (is_terminal_ && (done || now - drawn_ >= kRedrawInterval)) {
      drawn_ = now;
      Draw(progress.fraction);
    }
    if (!done) return;
    absl::FPrintF(stderr, "%s%s: done in %.1f s\n",
                  is_terminal_ ? "\r\33[K" : "", phase_,
                  absl::ToDoubleSeconds(now - begin_));
    phase_.clear();
  }

 private:
  void Draw(double fraction) const {
    const int filled =
        static_cast<int>(std::clamp(fraction, 0.0, 1.0) * kBarWidth);
    absl::FPrintF(stderr, "\r\33[K[%s%s] %3.0f%%  %s", std::string(filled, '#'),
                  std::string(kBarWidth - filled, '.'), 100 * fraction, phase_);
  }

  const bool is_terminal_ = CanRedraw(STDERR_FILENO);
  std::string phase_;
  absl::Time begin_;
  absl::Time drawn_;
};

}  // namespace

ProgressSink ConsoleProgress() {
  auto console = std::make_shared<Console>();
  return [console](const Progress& progress) { console->Update(progress); };
}

}  // namespace tessera
