// Sharded modules for Python.
#pragma once

#include <torch/custom_class.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "binding/module_mirror.h"
#include "binding/options.h"
#include "binding/scope_thread.h"
#include "fsdp/fully_shard.h"

namespace fsdp::python {

// torch.classes.fsdp_cpp.UnshardHandle
struct UnshardHandleForPython : torch::CustomClassHolder {
  explicit UnshardHandleForPython(UnshardHandle handle_) : handle(std::move(handle_)) {}
  void wait() { handle.wait(); }
  UnshardHandle handle;
};

// torch.classes.fsdp_cpp.Sharded: fsdp::ShardedModule. Functions take the mirrors of modules (ModuleMirror).
//
// Methods of these classes are no operators, so the engine does not see the tensors that pass through them as uses.
// Threads: as ShardedModule. The interpreter's lock is free while a method runs.
class Sharded : public torch::CustomClassHolder {
 public:
  using Mirror = c10::intrusive_ptr<ModuleMirror>;

  static c10::intrusive_ptr<Sharded> fully_shard(const std::vector<Mirror>& modules,
                                                 const c10::intrusive_ptr<OptionsForPython>& options);
  // Returns the tree that a parameter belongs to. `tensor`: a whole parameter or a view of one.
  static c10::intrusive_ptr<Sharded> of(const at::Tensor& tensor);

  explicit Sharded(std::shared_ptr<ShardedModule> module) : module_(std::move(module)) {}
  // A number that two handles have in common if they belong to one tree.
  int64_t identity() const { return reinterpret_cast<int64_t>(&module_->engine()); }

  // -- leaves and gradients --
  c10::Dict<std::string, at::Tensor> leaves() const;
  void zero_grad(bool set_to_none) { module_->zero_grad(set_to_none); }
  at::Tensor grad_norm(double norm_type, bool error_if_nonfinite) {
    return module_->grad_norm(norm_type, error_if_nonfinite);
  }
  at::Tensor clip_grad_norm(double max_norm, double norm_type, bool error_if_nonfinite) {
    return module_->clip_grad_norm_(max_norm, norm_type, error_if_nonfinite);
  }
  void set_is_last_backward(bool on) { module_->set_is_last_backward(on); }
  void wait_for_gradients() { module_->wait_for_gradients(); }
  // For the whole tree, as no_sync() does.
  void set_tree_requires_gradient_sync(bool on) { module_->set_requires_gradient_sync(on); }
  // Switches of the units made for the modules themselves; modules without units are left out.
  void set_requires_gradient_sync(const std::vector<Mirror>& modules, bool on);
  void set_requires_all_reduce(const std::vector<Mirror>& modules, bool on);
  void set_gradient_divide_factor(const std::vector<Mirror>& modules, std::optional<double> factor);
  void set_reshard_after_forward(const std::vector<Mirror>& modules, bool on);
  void set_reshard_after_backward(const std::vector<Mirror>& modules, bool on);
  void set_unshard_in_backward(const std::vector<Mirror>& modules, bool on);
  // Calls the C function at `address`, if not 0, whenever a FlatParameter's gradients are complete. It returns 0, or
  // another number to make backward throw. During the call, reduced_leaves() returns the leaves.
  void set_unit_reduced_hook(int64_t address);
  std::vector<at::Tensor> reduced_leaves() const { return *reduced_leaves_; }
  void reset() { module_->reset(); }

  // -- gathering --
  c10::intrusive_ptr<UnshardHandleForPython> unshard(const Mirror& module, bool async_op);
  void reshard(const std::optional<Mirror>& module);
  void set_modules_to_forward_prefetch(const Mirror& module, const std::vector<Mirror>& modules);
  void set_modules_to_backward_prefetch(const Mirror& module, const std::vector<Mirror>& modules);
  void set_full_precision(bool on) { module_->set_full_precision(on); }
  void cut_units() { module_->cut_units(); }
  std::vector<std::vector<std::string>> execution_order() const { return module_->execution_order(); }

  // -- scopes, each a pair of calls --
  void open_full_params(bool recurse, bool writeback, bool rank0_only, bool offload_to_cpu, bool with_grads);
  void open_pin(const std::vector<at::Tensor>& parameters);
  // Closes the scope that was opened last; throws its error, if it has one.
  void close();
  // Gathers the units of whole parameters and keeps them gathered, as the dispatcher does around one operator, for code
  // that reads memory without operators; other tensors are ignored. Returns what leave() takes.
  static std::vector<int64_t> enter(const std::vector<at::Tensor>& tensors);
  static void leave(const std::vector<int64_t>& units);

  // -- reports --
  std::string describe_units() const { return module_->diagnostics().describe_units(); }
  std::string memory_summary() const { return module_->diagnostics().memory_summary(); }
  std::string collective_log() const { return module_->diagnostics().collective_log(); }
  c10::Dict<std::string, int64_t> stats() const;
  void verify_sharding() { module_->diagnostics().verify_sharding(); }

  const std::shared_ptr<ShardedModule>& module() const { return module_; }

 private:
  // Calls `change` with each of the modules that units were made for.
  template <typename Change>
  void for_each_unit_of(const std::vector<Mirror>& modules, const Change& change);

  std::shared_ptr<ShardedModule> module_;
  std::vector<std::unique_ptr<ScopeThread>> scopes_;
  // Shared with the hook, which may outlive this handle.
  std::shared_ptr<std::vector<at::Tensor>> reduced_leaves_ = std::make_shared<std::vector<at::Tensor>>();
};

void register_sharded(torch::Library& library);

}  // namespace fsdp::python
