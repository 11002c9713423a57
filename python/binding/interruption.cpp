#include "binding/interruption.h"

#include <csignal>
#include <system_error>

#include "fsdp/interruption.h"

namespace fsdp::python {
namespace {

struct sigaction handler_before;

void end_waits(int signal, siginfo_t* info, void* context) {
  interrupt_waits();
  if (handler_before.sa_flags & SA_SIGINFO) {
    handler_before.sa_sigaction(signal, info, context);
  } else if (handler_before.sa_handler != SIG_DFL && handler_before.sa_handler != SIG_IGN) {
    handler_before.sa_handler(signal);
  }
}

}  // namespace

void Interruption::end_waits_at_sigint() {
  struct sigaction present;
  if (sigaction(SIGINT, nullptr, &present) != 0) throw std::system_error(errno, std::generic_category(), "sigaction");
  if ((present.sa_flags & SA_SIGINFO) && present.sa_sigaction == &end_waits) return;
  handler_before = present;
  struct sigaction ours = present;
  ours.sa_flags |= SA_SIGINFO;
  ours.sa_sigaction = &end_waits;
  if (sigaction(SIGINT, &ours, nullptr) != 0) throw std::system_error(errno, std::generic_category(), "sigaction");
}

void Interruption::allow_waits() { fsdp::allow_waits(); }

void register_interruption(torch::Library& library) {
  library.class_<Interruption>("Interruption")
      .def_static("end_waits_at_sigint", &Interruption::end_waits_at_sigint)
      .def_static("allow_waits", &Interruption::allow_waits);
}

}  // namespace fsdp::python
