// Python modules as the C++ library sees them.
#pragma once

#include <torch/custom_class.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace fsdp::python {

// torch.classes.fsdp_cpp.Module: stands for one module of Python in a tree of torch::nn::Module, with the same names
// and the same tensors, so that fully_shard finds parameters, names, shared modules and buffers by itself.
//
// A module on which fully_shard was called keeps its mirror for good, because the library knows it by its identity.
class ModuleMirror : public torch::CustomClassHolder {
 public:
  // `class_name`: the class of the Python module, for errors.
  explicit ModuleMirror(const std::string& class_name);

  // Replaces parameters and children by these, and adds buffers that are new. Names and values come in pairs of lists.
  void set(const std::vector<std::string>& parameter_names, const std::vector<at::Tensor>& parameters,
           const std::vector<std::string>& buffer_names, const std::vector<at::Tensor>& buffers,
           const std::vector<std::string>& child_names, const std::vector<c10::intrusive_ptr<ModuleMirror>>& children);

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

void register_module_mirror(torch::Library& library);

}  // namespace fsdp::python
