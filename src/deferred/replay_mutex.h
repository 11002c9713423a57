// The mutex of replays.
#pragma once

#include "base/mutex.h"

namespace fsdp::deferred {

// Held while operators are replayed, by one thread at a time, because replays move generators back and forth.
inline base::Mutex replay_mutex;

}  // namespace fsdp::deferred
