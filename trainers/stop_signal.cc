#include "trainers/stop_signal.h"

#include <csignal>

namespace tessera {
namespace {

volatile std::sig_atomic_t received_signal = 0;
struct sigaction earlier_interrupt, earlier_terminate;

void Receive(int signo) { received_signal = signo; }

}  // namespace

StopSignal::StopSignal() {
  received_signal = 0;
  struct sigaction action = {};
  action.sa_handler = Receive;
  // Resets to the default on delivery: the second signal is not held back.
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &earlier_interrupt);
  sigaction(SIGTERM, &action, &earlier_terminate);
}

StopSignal::~StopSignal() {
  sigaction(SIGINT, &earlier_interrupt, nullptr);
  sigaction(SIGTERM, &earlier_terminate, nullptr);
}

int StopSignal::received() const { return received_signal; }

}  // namespace tessera
