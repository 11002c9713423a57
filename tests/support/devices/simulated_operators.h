// Kernels of the simulated device for memory: allocation, views, copies.
#pragma once

namespace fsdp::testing {

// Registers the kernels. Must be called only once in a process, before the fallback is registered.
void register_simulated_operators();

}  // namespace fsdp::testing
