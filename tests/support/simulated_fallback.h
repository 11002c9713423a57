// Operators of the simulated device: those of the CPU, done on a stream.
//
// An operator's call returns outputs whose memory is written when the current stream gets to it; sizes and strides come
// from a rehearsal on the meta device or, where LibTorch has no meta kernel, on zeros on the CPU. It works on the
// tensors' memory as it is at that time and does not keep it alive: what is freed too early shows as wrong data. An
// error shows at the next synchronisation.
//
// Operators whose outputs' sizes depend on data, that return numbers, or draw random numbers, wait for the stream and
// run at once.
//
// Where LibTorch itself composes an operator for a device otherwise than for the CPU, results round differently:
// dropout, scaled_dot_product_attention with dropout, RNN. Not there, and refused with LibTorch's message: LSTM and GRU
// (LibTorch wants fused cells), sparse tensors, autocast.
#pragma once

namespace fsdp::testing {

// For every operator with a kernel for the CPU, and for those of other libraries. Once in a process.
void register_simulated_fallback();

}  // namespace fsdp::testing
