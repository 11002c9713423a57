// Makes nodes of the autograd graph, which an intrusive_ptr (2.13) or a shared_ptr (2.11) holds.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace fsdp::seams {

using NodePtr = decltype(torch::autograd::Edge::function);

template <typename Node, typename... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    // Found by its argument: 2.13 has no deleteNode.
    return std::shared_ptr<Node>(new Node(std::forward<Args>(args)...), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>(std::forward<Args>(args)...);
  }
}

}  // namespace fsdp::seams
