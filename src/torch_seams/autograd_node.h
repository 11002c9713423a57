// Creates nodes of the autograd graph, which are held by an intrusive_ptr (LibTorch 2.13) or a shared_ptr (2.11).
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
    // The dependent argument delays the lookup of deleteNode, which 2.13 does not have.
    return std::shared_ptr<Node>(new Node(std::forward<Args>(args)...), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>(std::forward<Args>(args)...);
  }
}

}  // namespace fsdp::seams
