// The ways in which ranks on CPUs exchange data.
#pragma once

#include <cstdint>

namespace fsdp::planner {

enum class HostPath : uint8_t {
  kGloo,     // messages between processes
  kMemory,   // memory that the ranks of a host share, from and to which data are copied
  kInPlace,  // the same memory, in which ranks read the writes of others
};

}  // namespace fsdp::planner
