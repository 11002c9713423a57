// Self-check at start-up of everything in this folder.
#pragma once

namespace fsdp::seams {

// Throws if this LibTorch does not behave as the seams expect (key inheritance, storages that can be emptied and
// refilled, hooks on gradients), with an error that names the failed check and the version. Runs once in a process;
// later calls return at once.
void self_check();

}  // namespace fsdp::seams
