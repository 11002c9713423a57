#include "fsdp/fully_shard.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_set>

#include "base/device_stream.h"
#include "deferred/recorder.h"
#include "frontend/buffer_casts.h"
#include "frontend/engine_registry.h"
#include "frontend/initial_values.h"
#include "frontend/mesh_choice.h"
#include "frontend/option_checks.h"
#include "frontend/survey.h"
#include "frontend/tensor_parts.h"
#include "frontend/unit_assignment.h"
#include "torch_seams/self_check.h"

namespace fsdp {
namespace {

#ifdef NDEBUG
constexpr bool kBuiltForDebugging = false;
#else
constexpr bool kBuiltForDebugging = true;
#endif

// Checks that AutoUnits::order names only parameters that get units by this call.
void check_order(const Options& options, const std::vector<frontend::FoundParameter>& parameters) {
  if (!options.auto_units) return;
  std::unordered_set<std::string> known;
  for (const frontend::FoundParameter& parameter : parameters) {
    for (const frontend::ParameterSite& site : parameter.sites) known.insert(site.fqn);
  }
  for (const std::vector<std::string>& together : options.auto_units->order) {
    for (const std::string& fqn : together) {
      TORCH_CHECK(known.count(fqn), "fsdp: auto_units: order names '", fqn,
                  "', which is no parameter below this module, or belongs to an inner unit");
    }
  }
}

c10::Device compute_device(const Options& options, const std::vector<frontend::FoundParameter>& parameters,
                           const frontend::Survey& surveyed) {
  if (options.device) {
    TORCH_CHECK(*options.device != c10::kMeta, "fsdp: Options::device must not be meta");
    return base::with_index(*options.device);
  }
  if (parameters.empty()) return surveyed.inner.front()->device();
  c10::Device device = parameters.front().tensor.device();
  TORCH_CHECK(device != c10::kMeta, "fsdp: parameter '", parameters.front().fqn(),
              "' is on the meta device: set Options::device to the device it will be used on");
  return device;
}

flat::ShardMemory shard_memory(const Options& options, c10::Device compute) {
  if (options.offload_path) return flat::ShardMemory::on_host(compute, base::MappedFiles::in(*options.offload_path));
  return options.cpu_offload ? flat::ShardMemory::on_host(compute, nullptr) : flat::ShardMemory(compute);
}

// [Note: large parameters of the root]
// The parameters of the root unit (embeddings and heads, often with one weight) are used first and last, so their
// gradients arrive at both ends of backward. One buffer for all of them would be held from the first gradient on,
// through the peak of activations. Therefore each large parameter of a root with other units has a FlatParameter of its
// own, and with it a gradient buffer that lives only from its own gradient on.
constexpr int64_t kLargeInRoot = int64_t{1} << 18;
constexpr int64_t kNoneIsLarge = std::numeric_limits<int64_t>::max();

// Returns the dimension in which a parameter is cut (Options::shard_dim).
int64_t shard_dim_of(const Options& options, const frontend::FoundParameter& parameter) {
  if (!options.shard_dim) return 0;
  TORCH_CHECK(options.shard_cut == ShardCut::kRows, "fsdp: shard_dim needs shard_cut=kRows: the flat cut has no rows");
  const int64_t dim = options.shard_dim(parameter.tensor);
  TORCH_CHECK(dim == 0 || (dim > 0 && dim < parameter.tensor.dim()), "fsdp: shard_dim returned ", dim,
              " for parameter '", parameter.fqn(), "' of shape ", parameter.tensor.sizes());
  return dim;
}

// Returns one group for each combination of dtype, requires_grad, precision and kind of split, in order of first
// appearance. Parameters of at least `large` elements have a group of their own. `values` are the results of
// InitialValues::of.
std::vector<std::vector<flat::ShardedParameter>> group_parameters(
    const std::vector<frontend::FoundParameter>& parameters, std::vector<at::Tensor> values,
    const frontend::PathSet& full_precision_modules, int64_t large, const Options& options,
    frontend::TensorParts& parts) {
  using Key = std::tuple<at::ScalarType, bool, bool, bool, bool, size_t>;
  std::vector<std::vector<flat::ShardedParameter>> groups;
  std::map<Key, size_t> numbers;  // indices of groups
  for (size_t number = 0; number < parameters.size(); ++number) {
    const frontend::FoundParameter& parameter = parameters[number];
    flat::ShardedParameter sharded;
    sharded.tensor = parameter.tensor;
    sharded.value = std::move(values[number]);
    sharded.fqn = parameter.fqn();
    sharded.shard_dim = shard_dim_of(options, parameter);
    for (const frontend::ParameterSite& site : parameter.sites) {
      sharded.full_precision |= full_precision_modules.covers(site.module);
    }
    for (size_t i = 1; i < parameter.sites.size(); ++i) sharded.other_fqns.push_back(parameter.sites[i].fqn);
    parts.cut(parameter, sharded);
    const size_t own = parameter.tensor.numel() >= large ? number + 1 : 0;
    const Key key{parameter.tensor.scalar_type(), parameter.tensor.requires_grad(), sharded.full_precision,
                  sharded.part != nullptr,        sharded.shared_by_parts,          own};
    const auto [group, is_new] = numbers.emplace(key, groups.size());
    if (is_new) groups.emplace_back();
    groups[group->second].push_back(std::move(sharded));
  }
  return groups;
}

std::string join_fqns(const frontend::UnitSpec& spec) {
  const std::string& fqn = spec.origin.modules.front().fqn;
  return fqn.empty() ? "root" : fqn;
}

void add_units(engine::Engine& engine, const std::vector<frontend::UnitSpec>& specs, const Options& options,
               const frontend::PathSet& full_precision, frontend::InitialValues& values, frontend::TensorParts& parts) {
  auto record = options.auto_units ? std::make_shared<schedule::UseRecord>(*options.auto_units) : nullptr;
  for (const frontend::UnitSpec& spec : specs) {
    const bool is_root_of_others = spec.is_root && !engine.units().empty();
    engine::Unit& unit =
        engine.add_unit(spec.origin, frontend::unit_options(options),
                        group_parameters(spec.parameters, values.of(spec.parameters), full_precision,
                                         is_root_of_others ? kLargeInRoot : kNoneIsLarge, options, parts));
    unit.set_root(spec.is_root);
    if (record) engine.cutter().cut_later(unit, record);
  }
  if (record && !options.auto_units->order.empty()) {
    record->visit_in_given_order();
    engine.cut_units(record.get());
  }
}

std::shared_ptr<ShardedModule> build(torch::nn::Module& root, const std::vector<frontend::UnitSpec>& specs,
                                     const frontend::Survey& surveyed, const Options& options) {
  const std::string name = specs.empty() ? "root" : join_fqns(specs.front());
  engine::EngineOptions shared{.mesh = frontend::watched_mesh(frontend::choose_mesh(options, name), options.debug),
                               .use_orig_params = options.use_orig_params,
                               .shard_cut = options.shard_cut,
                               .keep_memory = options.keep_memory,
                               .memory = shard_memory(options, compute_device(options, surveyed.unassigned, surveyed)),
                               .overlap = frontend::overlap_options(options),
                               .collective_check = options.debug.collective_check,
                               .read_only_parameters = options.debug.read_only_parameters.value_or(kBuiltForDebugging)};
  frontend::check_reshard_group(options, shared.mesh, name);
  shared.exchange = frontend::choose_exchange(options, surveyed, shared.mesh);
  if (shared.exchange) shared.mesh.parts = shared.exchange->group();
  frontend::TensorParts parts(options, shared.exchange);
  for (const engine::Engine* inner : surveyed.inner) {
    frontend::check_agrees(shared, *inner);
    shared.mesh = frontend::merge_meshes(shared.mesh, inner->mesh(), inner->units().front()->name());
  }
  const auto& ranks = shared.mesh.world ? shared.mesh.world : shared.mesh.shard;
  const bool is_list = !specs.empty() && specs.front().origin.modules.size() > 1;
  shared.could_have_units_below = !is_list && !root.children().empty();
  shared.model = surveyed.inner.empty() ? frontend::number_of_model(frontend::unwatched(ranks))
                                        : surveyed.inner.front()->options().model;
  auto engine = std::make_shared<engine::Engine>(shared);
  engine->tree().ignore(surveyed.ignored);
  frontend::InitialValues values(root, options, shared.mesh, shared.memory.compute_device());
  frontend::PathSet except(frontend::annotated_paths(surveyed));
  except.add(surveyed.ignored_paths);
  values.make_others(surveyed.ignored, except);
  const std::vector<std::string> full_precision = frontend::paths_of_classes(root, options.full_precision_classes);
  if (options.buffer_dtype) {
    except.add(full_precision);
    frontend::cast_buffers(root, *options.buffer_dtype, except, *engine);
  }
  for (engine::Engine* inner : surveyed.inner) {
    std::shared_ptr<engine::Engine> keep = inner->shared_from_this();
    engine->absorb(*inner);
    frontend::unregister_engine(*inner);
  }
  frontend::rename_inner_units(*engine, surveyed.tree);
  add_units(*engine, specs, options, frontend::PathSet(full_precision), values, parts);
  parts.check_plan();
  values.finish();
  frontend::register_engine(engine);
  return std::make_shared<ShardedModule>(engine);
}

void check_called_outside_deferral() {
  TORCH_CHECK(!deferred::is_recording(),
              "fsdp: fully_shard was called under a DeferredInitGuard: build the module under the guard, and shard it "
              "after the guard has ended");
}

}  // namespace

std::shared_ptr<ShardedModule> fully_shard(torch::nn::Module& module, const Options& options) {
  check_called_outside_deferral();
  seams::self_check();
  frontend::check_unit_options(options, module_class_name(module));
  frontend::check_auto_units(options, module_class_name(module));
  frontend::Survey surveyed = frontend::survey(module, options);
  TORCH_CHECK(!surveyed.tree.parameters.empty(), "fsdp: fully_shard was called on a module of class ",
              module_class_name(module), " that has no parameters: an empty unit");
  TORCH_CHECK(!surveyed.unassigned.empty() || !surveyed.inner.empty(),
              "fsdp: fully_shard was called on a module of class ", module_class_name(module),
              " of which all parameters are ignored (Options::ignored_parameters, ignored_modules): an empty unit");
  frontend::check_not_annotated(surveyed, module);
  frontend::check_inner_units(surveyed);
  frontend::check_unassigned(surveyed, module);
  frontend::check_options_apply(options, surveyed, module_class_name(module));
  check_order(options, surveyed.unassigned);
  auto specs = options.auto_units ? frontend::assign_singly(module, surveyed.unassigned)
                                  : frontend::assign_units(module, options.auto_wrap_policy, surveyed.unassigned,
                                                           frontend::annotated_modules(surveyed));
  auto sharded = build(module, specs, surveyed, options);
  sharded->engine().tree().add_root(&module);
  return sharded;
}

std::shared_ptr<ShardedModule> fully_shard(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                                           const Options& options) {
  check_called_outside_deferral();
  seams::self_check();
  TORCH_CHECK(!modules.empty(), "fsdp: fully_shard was called with an empty list of modules");
  TORCH_CHECK(!options.auto_wrap_policy && !options.auto_units,
              "fsdp: auto_wrap_policy and auto_units cannot be used with a list of modules: their "
              "parameters become one unit. Annotate inner modules first");
  // A placeholder for the parent, because siblings have none here. Names relative to it are used until an outer module
  // is annotated.
  torch::nn::Module parent;
  frontend::UnitSpec spec;
  for (size_t i = 0; i < modules.size(); ++i) {
    TORCH_CHECK(modules[i], "fsdp: fully_shard: module ", i, " of the list is null");
    auto same = [&](const engine::AnnotatedModule& other) { return other.identity == modules[i].get(); };
    TORCH_CHECK(std::none_of(spec.origin.modules.begin(), spec.origin.modules.end(), same), "fsdp: module ", i,
                " of class ", module_class_name(*modules[i]), " occurs twice in the list");
    spec.origin.modules.push_back({std::to_string(i), modules[i].get()});
    parent.register_module(std::to_string(i), modules[i]);
  }
  frontend::check_unit_options(options, "the list of modules");
  frontend::Survey surveyed = frontend::survey(parent, options);
  for (const auto& module : modules) frontend::check_not_annotated(surveyed, *module);
  frontend::check_inner_units(surveyed);
  TORCH_CHECK(!surveyed.unassigned.empty(),
              "fsdp: fully_shard was called on modules without parameters, or of which "
              "all parameters are sharded already: an empty unit");
  frontend::check_unassigned(surveyed, parent);
  spec.parameters = surveyed.unassigned;
  return build(parent, {spec}, surveyed, options);
}

}  // namespace fsdp
