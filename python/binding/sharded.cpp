#include "binding/sharded.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "binding/whole_parameter.h"
#include "engine/engine.h"

namespace fsdp::python {
namespace {

std::vector<std::shared_ptr<torch::nn::Module>> modules_of(const std::vector<Sharded::Mirror>& mirrors) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const Sharded::Mirror& mirror : mirrors) modules.push_back(mirror->module());
  return modules;
}

ShardedModule::ModuleList references_to(const std::vector<Sharded::Mirror>& mirrors) {
  ShardedModule::ModuleList references;
  for (const Sharded::Mirror& mirror : mirrors) references.emplace_back(*mirror->module());
  return references;
}

// Whether any unit was made for the module itself. None was if all its parameters belong to modules below it.
bool has_units(const ShardedModule& sharded, const torch::nn::Module& module) {
  const auto& units = sharded.engine().units();
  return std::any_of(units.begin(), units.end(), [&](const auto& unit) {
    const auto& modules = unit->names().modules();
    return std::any_of(modules.begin(), modules.end(),
                       [&](const engine::AnnotatedModule& annotated) { return annotated.identity == &module; });
  });
}

engine::Unit* unit_at(int64_t number) { return reinterpret_cast<engine::Unit*>(number); }  // NOLINT: enter() made it

}  // namespace

c10::intrusive_ptr<Sharded> Sharded::fully_shard(const std::vector<Mirror>& modules,
                                                 const c10::intrusive_ptr<OptionsForPython>& options) {
  TORCH_CHECK_VALUE(!modules.empty(), "fsdp: fully_shard was called with an empty list of modules");
  if (modules.size() == 1) {
    return c10::make_intrusive<Sharded>(fsdp::fully_shard(*modules.front()->module(), options->options()));
  }
  return c10::make_intrusive<Sharded>(fsdp::fully_shard(modules_of(modules), options->options()));
}

c10::intrusive_ptr<Sharded> Sharded::of(const at::Tensor& tensor) {
  engine::Engine& engine = unit_of_whole(tensor, "Sharded.of").engine();
  return c10::make_intrusive<Sharded>(std::make_shared<ShardedModule>(engine.shared_from_this()));
}

c10::Dict<std::string, at::Tensor> Sharded::leaves() const {
  c10::Dict<std::string, at::Tensor> result;
  for (const auto& [fqn, leaf] : module_->named_parameters()) result.insert(fqn, leaf);
  return result;
}

template <typename Change>
void Sharded::for_each_unit_of(const std::vector<Mirror>& modules, const Change& change) {
  for (const Mirror& mirror : modules) {
    if (has_units(*module_, *mirror->module())) change(*mirror->module());
  }
}

void Sharded::set_requires_gradient_sync(const std::vector<Mirror>& modules, bool on) {
  for_each_unit_of(modules, [&](const auto& module) { module_->set_requires_gradient_sync(module, on, false); });
}

void Sharded::set_requires_all_reduce(const std::vector<Mirror>& modules, bool on) {
  for_each_unit_of(modules, [&](const auto& module) { module_->set_requires_all_reduce(module, on, false); });
}

void Sharded::set_gradient_divide_factor(const std::vector<Mirror>& modules, std::optional<double> factor) {
  for_each_unit_of(modules, [&](const auto& module) { module_->set_gradient_divide_factor(module, factor); });
}

void Sharded::set_reshard_after_forward(const std::vector<Mirror>& modules, bool on) {
  for_each_unit_of(modules, [&](const auto& module) { module_->set_reshard_after_forward(module, on, false); });
}

void Sharded::set_reshard_after_backward(const std::vector<Mirror>& modules, bool on) {
  for_each_unit_of(modules, [&](const auto& module) { module_->set_reshard_after_backward(module, on, false); });
}

void Sharded::set_unshard_in_backward(const std::vector<Mirror>& modules, bool on) {
  for_each_unit_of(modules, [&](const auto& module) { module_->set_unshard_in_backward(module, on); });
}

void Sharded::set_unit_reduced_hook(int64_t address) {
  if (address == 0) {
    module_->hooks().set_unit_reduced_hook({});
    return;
  }
  auto* call = reinterpret_cast<int (*)()>(address);  // NOLINT: ctypes gives functions as numbers
  auto hook = [reduced = reduced_leaves_, call](const std::string& unit, const std::vector<at::Tensor>& leaves) {
    *reduced = leaves;
    const int failed = call();
    reduced->clear();
    TORCH_CHECK(!failed, "fsdp: a hook on the gradients of unit '", unit, "' has raised an exception");
  };
  module_->hooks().set_unit_reduced_hook(hook);
}

c10::intrusive_ptr<UnshardHandleForPython> Sharded::unshard(const Mirror& module, bool async_op) {
  if (!has_units(*module_, *module->module())) return c10::make_intrusive<UnshardHandleForPython>(UnshardHandle());
  return c10::make_intrusive<UnshardHandleForPython>(module_->unshard(*module->module(), async_op));
}

void Sharded::reshard(const std::optional<Mirror>& module) {
  if (!module) {
    module_->reshard();
  } else if (has_units(*module_, *(*module)->module())) {
    module_->reshard(*(*module)->module());
  }
}

void Sharded::set_modules_to_forward_prefetch(const Mirror& module, const std::vector<Mirror>& modules) {
  module_->set_modules_to_forward_prefetch(*module->module(), references_to(modules));
}

void Sharded::set_modules_to_backward_prefetch(const Mirror& module, const std::vector<Mirror>& modules) {
  module_->set_modules_to_backward_prefetch(*module->module(), references_to(modules));
}

void Sharded::open_full_params(bool recurse, bool writeback, bool rank0_only, bool offload_to_cpu, bool with_grads) {
  const SummonOptions options{.recurse = recurse,
                              .writeback = writeback,
                              .rank0_only = rank0_only,
                              .offload_to_cpu = offload_to_cpu,
                              .with_grads = with_grads};
  scopes_.push_back(std::make_unique<ScopeThread>(
      [this, options](const std::function<void()>& body) { module_->summon_full_params(options, body); }));
}

void Sharded::open_pin(const std::vector<at::Tensor>& parameters) {
  scopes_.push_back(std::make_unique<ScopeThread>(
      [this, parameters](const std::function<void()>& body) { module_->pin(parameters, body); }));
}

void Sharded::close() {
  TORCH_CHECK(!scopes_.empty(), "fsdp: no scope is open");
  std::unique_ptr<ScopeThread> scope = std::move(scopes_.back());
  scopes_.pop_back();
  scope->close();
}

std::vector<int64_t> Sharded::enter(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> entered;
  try {
    for (const at::Tensor& tensor : tensors) {
      const seams::StorageOwner* owner = owner_of_whole(tensor);
      if (!owner) continue;
      engine::Unit* unit = engine::unit_of(*owner);
      const auto number = reinterpret_cast<int64_t>(unit);
      if (std::find(entered.begin(), entered.end(), number) != entered.end()) continue;
      unit->engine().enter(*unit, owner->index);
      entered.push_back(number);
    }
  } catch (...) {
    leave(entered);
    throw;
  }
  return entered;
}

void Sharded::leave(const std::vector<int64_t>& units) {
  for (auto number = units.rbegin(); number != units.rend(); ++number) {
    unit_at(*number)->engine().gatherer().unpin(*unit_at(*number));
  }
}

c10::Dict<std::string, int64_t> Sharded::stats() const {
  const EngineStats stats = module_->diagnostics().stats();
  c10::Dict<std::string, int64_t> result;
  result.insert("units", stats.units);
  result.insert("all_gathers", stats.all_gathers);
  result.insert("reduce_scatters", stats.reduce_scatters);
  result.insert("all_reduces", stats.all_reduces);
  result.insert("prefetches", stats.prefetches);
  result.insert("prefetches_wasted", stats.prefetches_wasted);
  result.insert("gathered_bytes", stats.gathered_bytes);
  result.insert("peak_gathered_bytes", stats.peak_gathered_bytes);
  result.insert("gathered_units", stats.gathered_units);
  result.insert("peak_gathered_units", stats.peak_gathered_units);
  result.insert("gradient_buffer_bytes", stats.gradient_buffer_bytes);
  result.insert("peak_gradient_buffer_bytes", stats.peak_gradient_buffer_bytes);
  return result;
}

void register_sharded(torch::Library& library) {
  library.class_<UnshardHandleForPython>("UnshardHandle").def("wait", &UnshardHandleForPython::wait);
  library.class_<Sharded>("Sharded")
      .def_static("fully_shard", &Sharded::fully_shard)
      .def_static("of", &Sharded::of)
      .def("identity", &Sharded::identity)
      .def("leaves", &Sharded::leaves)
      .def("zero_grad", &Sharded::zero_grad)
      .def("grad_norm", &Sharded::grad_norm)
      .def("clip_grad_norm", &Sharded::clip_grad_norm)
      .def("set_tree_requires_gradient_sync", &Sharded::set_tree_requires_gradient_sync)
      .def("set_requires_gradient_sync", &Sharded::set_requires_gradient_sync)
      .def("set_requires_all_reduce", &Sharded::set_requires_all_reduce)
      .def("set_is_last_backward", &Sharded::set_is_last_backward)
      .def("wait_for_gradients", &Sharded::wait_for_gradients)
      .def("set_gradient_divide_factor", &Sharded::set_gradient_divide_factor)
      .def("set_reshard_after_forward", &Sharded::set_reshard_after_forward)
      .def("set_reshard_after_backward", &Sharded::set_reshard_after_backward)
      .def("set_unshard_in_backward", &Sharded::set_unshard_in_backward)
      .def("set_unit_reduced_hook", &Sharded::set_unit_reduced_hook)
      .def("reduced_leaves", &Sharded::reduced_leaves)
      .def("reset", &Sharded::reset)
      .def("unshard", &Sharded::unshard)
      .def("reshard", &Sharded::reshard)
      .def("set_modules_to_forward_prefetch", &Sharded::set_modules_to_forward_prefetch)
      .def("set_modules_to_backward_prefetch", &Sharded::set_modules_to_backward_prefetch)
      .def("set_full_precision", &Sharded::set_full_precision)
      .def("cut_units", &Sharded::cut_units)
      .def("execution_order", &Sharded::execution_order)
      .def("open_full_params", &Sharded::open_full_params)
      .def("open_pin", &Sharded::open_pin)
      .def("close", &Sharded::close)
      .def_static("enter", &Sharded::enter)
      .def_static("leave", &Sharded::leave)
      .def("describe_units", &Sharded::describe_units)
      .def("memory_summary", &Sharded::memory_summary)
      .def("collective_log", &Sharded::collective_log)
      .def("stats", &Sharded::stats)
      .def("verify_sharding", &Sharded::verify_sharding);
}

}  // namespace fsdp::python
