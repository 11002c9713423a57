// Hooks on the gradients that reach a leaf, and on the backward passes (graph tasks) that produce them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace fsdp::seams {

// Calls `capture` with each gradient (possibly undefined) just before it would be accumulated into tensor.grad(), after
// all tensor hooks; nothing is accumulated afterwards. Runs on the thread of the backward pass, without holding any
// lock of autograd. Returns an object that keeps the hook alive: hold it as long as gradients of the tensor are to be
// captured.
std::shared_ptr<void> add_gradient_capture(const at::Tensor& tensor, std::function<void(const at::Tensor&)> capture);

// Calls `visit` when a gradient reaches the tensor, before other hooks run. Unlike a capture it survives set_data with
// another dtype or device, so it notices a tensor that has left the engine. It is lost if other code registers its
// first hook on the tensor afterwards.
void add_gradient_tripwire(const at::Tensor& tensor, std::function<void()> visit);

// Returns the id of the backward pass that runs on this thread, or -1.
int current_backward();
inline bool in_backward() { return current_backward() != -1; }
// Whether that pass keeps its graph for another one (retain_graph). Call only inside a node's apply.
bool backward_keeps_graph();

// Calls `callback` at the end of the current backward pass. If the pass throws, the callback is destroyed without being
// called.
void at_end_of_backward(std::function<void()> callback);

}  // namespace fsdp::seams
