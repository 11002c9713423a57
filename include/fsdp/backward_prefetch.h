// When backward gathers ahead: an option that Options and the schedule share.
#pragma once

#include <cstdint>

namespace fsdp {

// When the gather of the unit that backward is expected to need next is issued (FSDP paper, section 3.3.2).
enum class BackwardPrefetch : uint8_t {
  kNone,  // when it is needed
  kPre,   // before the current unit's gradients are computed: two units are gathered at a time
  kPost,  // after the current unit's gradients were captured and it was released
};
const char* to_string(BackwardPrefetch prefetch);

}  // namespace fsdp
