// Kernels of the planned device for memory: allocation, views, storages. Those of the CPU stay, but for the ones that
// would copy contents.
#pragma once

namespace fsdp::planner {

// Must be called only once in a process, before register_planned_kernels().
void register_memory_kernels();

}  // namespace fsdp::planner
