#include "binding/module_mirror.h"

namespace fsdp::python {
namespace {

class Mirrored : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  void set_parameters(const std::vector<std::string>& names, const std::vector<at::Tensor>& parameters) {
    parameters_.clear();
    for (size_t i = 0; i < names.size(); ++i) parameters_.insert(names[i], parameters[i]);
  }
  // A module that has its mirror for good was sharded before, with the buffers that it had then.
  void add_buffers(const std::vector<std::string>& names, const std::vector<at::Tensor>& buffers) {
    const auto known = named_buffers(/*recurse=*/false);
    for (size_t i = 0; i < names.size(); ++i) {
      if (!known.contains(names[i])) register_buffer(names[i], buffers[i]);
    }
  }
  void set_children(const std::vector<std::string>& names,
                    const std::vector<c10::intrusive_ptr<ModuleMirror>>& children) {
    for (const auto& child : named_children()) unregister_module(child.key());
    for (size_t i = 0; i < names.size(); ++i) register_module(names[i], children[i]->module());
  }
};

}  // namespace

ModuleMirror::ModuleMirror(const std::string& class_name) : module_(std::make_shared<Mirrored>(class_name)) {}

void ModuleMirror::set(const std::vector<std::string>& parameter_names, const std::vector<at::Tensor>& parameters,
                       const std::vector<std::string>& buffer_names, const std::vector<at::Tensor>& buffers,
                       const std::vector<std::string>& child_names,
                       const std::vector<c10::intrusive_ptr<ModuleMirror>>& children) {
  auto& mirrored = static_cast<Mirrored&>(*module_);
  mirrored.set_parameters(parameter_names, parameters);
  mirrored.add_buffers(buffer_names, buffers);
  mirrored.set_children(child_names, children);
}

void register_module_mirror(torch::Library& library) {
  library.class_<ModuleMirror>("Module").def(torch::init<std::string>()).def("set", &ModuleMirror::set);
}

}  // namespace fsdp::python
