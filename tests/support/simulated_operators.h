// Kernels of the simulated device that deal with memory: allocation, views, copies.
#pragma once

namespace fsdp::testing {

// Once in a process, before the fallback.
void register_simulated_operators();

}  // namespace fsdp::testing
