// Ctrl-C while a rank waits for others in C++, where the interpreter does not see it.
#pragma once

#include <torch/custom_class.h>

namespace fsdp::python {

// torch.classes.fsdp_cpp.Interruption: the library's waits end when SIGINT comes.
struct Interruption : torch::CustomClassHolder {
  // Puts a handler of SIGINT before the present one, which it calls: it ends the library's waits (interrupt_waits).
  // A handler that is set afterwards takes its place. Threads: the main thread.
  static void end_waits_at_sigint();
  // Must be called when the signal has been handled: later waits are as usual.
  static void allow_waits();
};

void register_interruption(torch::Library& library);

}  // namespace fsdp::python
