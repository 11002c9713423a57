// Names of a training run's tensors in a checkpoint, and which parameters an optimizer's leaf stands for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"

namespace fsdp {

inline std::string model_name(const std::string& fqn) { return "model/" + fqn; }
inline std::string buffer_name(const std::string& fqn) { return "buffer/" + fqn; }
inline std::string optimizer_name(const std::string& fqn, const std::string& name) {
  return "optimizer/" + fqn + "/" + name;
}
inline std::string rank_name(int rank, const std::string& name) { return "rank/" + std::to_string(rank) + "/" + name; }

// Throws when a leaf of an optimizer is none of the model's.
void check_leaf(bool is_of_model, const at::Tensor& leaf);

class LeafNames {
 public:
  explicit LeafNames(const ShardedModule& model);
  // The FQNs of the parameters in a leaf; an error when it is none of the model's.
  const std::vector<std::string>& of(const at::Tensor& leaf) const;

 private:
  std::map<const at::TensorImpl*, std::vector<std::string>> names_;
};

}  // namespace fsdp
