// Connects the ranks of a group over Gloo.
#pragma once

#ifndef USE_DISTRIBUTED
#define USE_DISTRIBUTED
#endif
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "fsdp/backends.h"

namespace fsdp::comm {

class MeetingPoint;

// Connects rank `rank` to the `size` - 1 other ranks that come to `store`, which belongs to this group alone. `point`:
// names the rendezvous in errors, and the address to connect from if options.host is empty. Blocks. If this rank cannot
// connect, it tells the others why and throws. Changes the process's handling of SIGPIPE from the default to ignored.
c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const MeetingPoint& point,
                                                        const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                        int size, const GlooOptions& options);

}  // namespace fsdp::comm
