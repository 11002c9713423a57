// Operators of the simulated device: the CPU's operators, run on a stream.
//
// A call returns outputs whose memory is written when the current stream reaches the operator. Their sizes and strides
// come from a rehearsal on the meta device or, if LibTorch has no meta kernel, on zeros on the CPU. The operator works
// on the tensors' memory as it is at that time and does not keep it alive, so that memory that is freed too early shows
// as wrong data. An error is reported at the next synchronisation.
//
// Operators whose output sizes depend on data, that return numbers, or that draw random numbers wait for the stream and
// run immediately.
//
// Results round differently if LibTorch itself composes an operator differently for a device than for the CPU: dropout,
// scaled_dot_product_attention with dropout, RNN. LSTM and GRU (for which LibTorch requires fused cells), sparse
// tensors and autocast are not supported and refused with LibTorch's message.
#pragma once

namespace fsdp::testing {

// Registers the fallback for every operator with a CPU kernel, and for operators of other libraries. Must be called
// only once in a process.
void register_simulated_fallback();

}  // namespace fsdp::testing
