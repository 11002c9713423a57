// Where gradients of a leaf arrive, and the backward passes (graph tasks) that bring them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace fsdp::seams {

// Calls `capture` with each gradient (possibly undefined) just before it would be accumulated into tensor.grad(),
// after all tensor hooks; nothing is accumulated afterwards. Runs on the thread of the backward, without any lock of
// autograd's held. Returns what keeps the hook alive: hold it as long as the tensor is to be captured.
std::shared_ptr<void> add_gradient_capture(const at::Tensor& tensor, std::function<void(const at::Tensor&)> capture);

// Calls `visit` when a gradient reaches the tensor, before other hooks run. Unlike a capture it survives set_data with
// another dtype or device, so it notices a tensor that has left the engine. It is lost when somebody registers the
// first hook of his own on the tensor afterwards.
void add_gradient_tripwire(const at::Tensor& tensor, std::function<void()> visit);

// The backward pass that runs on this thread, or -1.
int current_backward();
// Whether it keeps its graph for another one (retain_graph). Inside a node's apply only.
bool backward_keeps_graph();

// Calls `callback` at the end of the current backward pass. When the pass throws, the callback is destroyed without
// being called.
void at_end_of_backward(std::function<void()> callback);

}  // namespace fsdp::seams
