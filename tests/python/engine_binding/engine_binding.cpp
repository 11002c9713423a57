// torch.classes.fsdp_test.Engine for the Python tests: the engine on plain tensors and names, with one rank.
#include <torch/custom_class.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "binding/scope_thread.h"
#include "engine/engine.h"
#include "engine/full_parameters.h"
#include "frontend/engine_registry.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"
#include "fsdp/fully_shard.h"
#include "torch_seams/keyed_storage.h"
#include "torch_seams/self_check.h"

namespace fsdp::testing {
namespace {

std::vector<std::vector<flat::ShardedParameter>> group_by_dtype_and_requires_grad(
    const std::vector<at::Tensor>& parameters, const std::vector<std::string>& fqns) {
  std::vector<std::vector<flat::ShardedParameter>> groups;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i];
    auto alike = [&](const std::vector<flat::ShardedParameter>& group) {
      const at::Tensor& other = group.front().tensor;
      return other.scalar_type() == tensor.scalar_type() && other.requires_grad() == tensor.requires_grad();
    };
    auto group = std::find_if(groups.begin(), groups.end(), alike);
    if (group == groups.end()) group = groups.insert(groups.end(), std::vector<flat::ShardedParameter>{});
    flat::ShardedParameter parameter;
    parameter.tensor = tensor;
    parameter.fqn = fqns.at(i);
    group->push_back(std::move(parameter));
  }
  return groups;
}

std::optional<at::ScalarType> dtype_of(std::optional<int64_t> code) {
  return code ? std::optional(static_cast<at::ScalarType>(*code)) : std::nullopt;
}

// Passes tensors through methods of a class instead of operators, which the engine would see as uses of the parameters.
class EngineForPython : public torch::CustomClassHolder {
 public:
  explicit EngineForPython(bool strict_release) {
    seams::self_check();
    engine::EngineOptions options;
    options.mesh.world = make_fake_communicator(0, 1);
    engine_ = std::make_shared<engine::Engine>(options);
    engine_->gatherer().set_strict(strict_release);
    frontend::register_engine(engine_);  // like fully_shard: parameters keep their engine alive
  }

  // `compute` and `reduce` are codes of at::ScalarType.
  void add_unit(std::vector<at::Tensor> parameters, std::vector<std::string> fqns, const std::string& module_fqn,
                std::optional<int64_t> compute, std::optional<int64_t> reduce) {
    engine::UnitOptions options;
    options.param_dtype = dtype_of(compute);
    options.reduce_dtype = dtype_of(reduce);
    engine::Unit& unit =
        engine_->add_unit({{{module_fqn, nullptr}}}, options, group_by_dtype_and_requires_grad(parameters, fqns));
    unit.set_root(module_fqn.empty());
  }

  // Returns the whole gradient of each parameter that has one, in the dtype of the shards.
  c10::Dict<std::string, at::Tensor> gradients() {
    c10::Dict<std::string, at::Tensor> result;
    for (const auto& [fqn, leaf] : ShardedModule(engine_).named_parameters()) {
      if (leaf.grad().defined()) {
        const flat::ShardedParameter& parameter = *find(fqn);
        result.insert(fqn, leaf.grad().as_strided(parameter.sizes, parameter.strides).clone());
      }
    }
    return result;
  }

  c10::Dict<std::string, at::Tensor> full_parameters() {
    c10::Dict<std::string, at::Tensor> result;
    fsdp::engine::for_each_full_parameter(
        *engine_, [&](const std::string& fqn, const at::Tensor& full) { result.insert(fqn, full.clone()); });
    return result;
  }

  // Returns the tensors for the optimizer, by FQN.
  c10::Dict<std::string, at::Tensor> leaves() {
    c10::Dict<std::string, at::Tensor> result;
    for (const auto& [fqn, leaf] : ShardedModule(engine_).named_parameters()) result.insert(fqn, leaf);
    return result;
  }

  bool is_gradient_sentinel(const at::Tensor& tensor) {
    const seams::StorageOwner* owner = seams::storage_owner(tensor);
    return owner && owner->kind == seams::StorageOwner::Kind::kGradientSentinel;
  }

  void zero_grad(bool set_to_none) { ShardedModule(engine_).zero_grad(set_to_none); }
  double clip_grad_norm_(double max_norm) { return ShardedModule(engine_).clip_grad_norm_(max_norm).item<double>(); }
  void unshard() { engine_->unshard(engine_->tree().all(), /*async_op=*/false); }
  void reshard() { engine_->gatherer().reshard_all(); }
  void reset() { engine_->passes().reset(); }
  void check_membership() { engine_->tree().check_membership(); }
  int64_t gathered_units() { return engine_->stats().gathered_units; }
  int64_t gradient_buffer_bytes() { return engine_->stats().gradient_buffer_bytes; }

  void open_full_params(bool writeback) {
    open([this, writeback](const auto& body) {
      fsdp::engine::summon_full_params(*engine_, {.writeback = writeback}, body);
    });
  }
  void open_pin(std::vector<at::Tensor> parameters) {
    open([this, parameters](const auto& body) { ShardedModule(engine_).pin(parameters, body); });
  }
  // Closes the scope that was opened last.
  void close() {
    TORCH_CHECK(!scopes_.empty(), "no scope is open");
    std::unique_ptr<python::ScopeThread> scope = std::move(scopes_.back());
    scopes_.pop_back();
    scope->close();
  }

 private:
  void open(python::ScopeThread::Scope scope) {
    scopes_.push_back(std::make_unique<python::ScopeThread>(std::move(scope)));
  }

  const flat::ShardedParameter* find(const std::string& fqn) const {
    for (const auto& unit : engine_->units()) {
      for (const auto& flat : unit->flat_parameters()) {
        for (const flat::ShardedParameter& parameter : flat->parameters()) {
          if (parameter.fqn == fqn) return &parameter;
        }
      }
    }
    TORCH_CHECK(false, "no parameter '", fqn, "'");
  }

  std::shared_ptr<engine::Engine> engine_;
  std::vector<std::unique_ptr<python::ScopeThread>> scopes_;
};

}  // namespace

TORCH_LIBRARY(fsdp_test, m) {
  m.class_<EngineForPython>("Engine")
      .def(torch::init<bool>())
      .def("add_unit", &EngineForPython::add_unit)
      .def("gradients", &EngineForPython::gradients)
      .def("full_parameters", &EngineForPython::full_parameters)
      .def("leaves", &EngineForPython::leaves)
      .def("is_gradient_sentinel", &EngineForPython::is_gradient_sentinel)
      .def("zero_grad", &EngineForPython::zero_grad)
      .def("clip_grad_norm_", &EngineForPython::clip_grad_norm_)
      .def("unshard", &EngineForPython::unshard)
      .def("reshard", &EngineForPython::reshard)
      .def("reset", &EngineForPython::reset)
      .def("check_membership", &EngineForPython::check_membership)
      .def("gathered_units", &EngineForPython::gathered_units)
      .def("gradient_buffer_bytes", &EngineForPython::gradient_buffer_bytes)
      .def("open_full_params", &EngineForPython::open_full_params)
      .def("open_pin", &EngineForPython::open_pin)
      .def("close", &EngineForPython::close);
}

}  // namespace fsdp::testing
