// Start-up self-check of everything in this folder.
#pragma once

namespace fsdp::seams {

// Throws if this LibTorch does not behave as the seams expect (key inheritance, storages that empty and refill, hooks
// on gradients), naming what failed and the version. Runs once a process; later calls return at once.
void self_check();

}  // namespace fsdp::seams
