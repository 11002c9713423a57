// Ends a program early, and yet with everything said.
#pragma once

namespace fsdp::base {

// Ends the process with `status` after writing the buffers of streams. Does not destroy static objects, of which those
// of LibTorch alone take 0.15 s to unregister its operators. Ends like exit() where something may count on it: with
// LibTorch's CUDA library, as profilers of GPUs write their files then, and under a sanitizer, which looks for leaks.
[[noreturn]] void end_process(int status);

}  // namespace fsdp::base
