// A device on which programs run without computing: it has streams, events, addresses and shapes, but no memory and no
// values. With it, the host's operators compute nothing either.
//
// The device type is PrivateUse1. Once begin_planning() has been called, all operators of this process on that device
// and on the CPU only make results of the right shapes (planned_kernels.h); so a process either plans or computes.
// Reports of what would happen go to the DeviceLog of PlannedMemory.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace fsdp::planner {

// Turns this process into one that plans. Must be called before the first backward: LibTorch counts devices once.
void begin_planning();

inline c10::Device planned_device() { return {c10::kPrivateUse1, 0}; }

// The number of a stream, or of the one that is current in this thread: 0 is the default stream.
inline int stream_number(const c10::Stream& stream) { return static_cast<int>(stream.id()); }
int current_stream_number();

}  // namespace fsdp::planner
