// Names of a training run's tensors in a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace fsdp {

inline std::string model_name(const std::string& fqn) { return "model/" + fqn; }
inline std::string buffer_name(const std::string& fqn) { return "buffer/" + fqn; }
inline std::string optimizer_name(const std::string& fqn, const std::string& name) {
  return "optimizer/" + fqn + "/" + name;
}
inline std::string rank_name(int rank, const std::string& name) { return "rank/" + std::to_string(rank) + "/" + name; }

// Throws when a leaf of an optimizer is none of the model's.
void check_leaf(bool is_of_model, const at::Tensor& leaf);

}  // namespace fsdp
