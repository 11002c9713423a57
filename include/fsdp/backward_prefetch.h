// When backward gathers units ahead: an option that Options and the schedule share.
#pragma once

#include <cstdint>

namespace fsdp {

// When to issue the gather of the unit that backward is expected to need next (FSDP paper, section 3.3.2).
enum class BackwardPrefetch : uint8_t {
  kNone,  // when the unit is needed
  kPre,   // before the current unit's gradients are computed: two units are gathered at a time
  kPost,  // after the current unit's gradients are captured and the unit is released
};
const char* to_string(BackwardPrefetch prefetch);

}  // namespace fsdp
