// The parts of a training step.
#pragma once

#include <cstdint>

namespace fsdp {

// Which part of a training step a collective or a use of a unit belongs to.
enum class Pass : uint8_t { kSetup, kForward, kBackward, kReduce, kUser };
const char* to_string(Pass pass);

}  // namespace fsdp
