// The library's checkpoints for Python.
#pragma once

#include <torch/custom_class.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "binding/given_optimizer.h"
#include "binding/module_mirror.h"
#include "binding/process_group.h"
#include "binding/sharded.h"

namespace fsdp::python {

// torch.classes.fsdp_cpp.Checkpoint: the contents of one checkpoint (fsdp::CheckpointedRun), to save or to load once.
//
// Python first describes the optimizer and the tensors of this rank, then calls save() or load(). load() writes to the
// model itself; Python asks for the rest. Collective, with the errors of save_checkpoint and load_checkpoint.
class Checkpoint : public torch::CustomClassHolder {
 public:
  using Numbers = c10::Dict<std::string, double>;
  using Tensors = c10::Dict<std::string, at::Tensor>;

  // `module`: the tree of the module that fully_shard was called on last, with the buffers to keep. `world`: all ranks.
  Checkpoint(c10::intrusive_ptr<Sharded> sharded, c10::intrusive_ptr<ModuleMirror> module,
             c10::intrusive_ptr<Group> world);

  // Without a group, the checkpoint has no optimizer.
  void add_group(const std::vector<at::Tensor>& leaves, const Numbers& options);
  // Tensors are 1-D, as the leaf.
  void set_state(const at::Tensor& leaf, const Tensors& tensors, const Numbers& numbers);
  void set_of_rank(const std::string& name, const at::Tensor& tensor) { of_rank_[name] = tensor; }

  // `user`: JSON text.
  void save(const std::string& folder, const std::string& user);
  void load(const std::string& folder, bool strict);

  // -- results of load() --
  const std::string& user() const { return user_; }
  // JSON text: the saved parameter groups, each with "parameters" and "options".
  const std::string& groups() const { return groups_; }
  // What was not loaded, one item on each line.
  const std::string& report() const { return report_; }
  Tensors of_rank() const;
  Numbers options(int64_t group) const;
  bool has_state(const at::Tensor& leaf) const { return optimizer_.leaf(leaf).has_value(); }
  Tensors tensors(const at::Tensor& leaf) const;
  Numbers numbers(const at::Tensor& leaf) const;

 private:
  c10::intrusive_ptr<Sharded> sharded_;
  c10::intrusive_ptr<ModuleMirror> module_;
  c10::intrusive_ptr<Group> world_;
  GivenOptimizer optimizer_;
  std::map<std::string, at::Tensor> of_rank_;
  std::string user_, groups_, report_;
};

void register_checkpoint(torch::Library& library);

}  // namespace fsdp::python
