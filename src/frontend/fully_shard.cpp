#include "fsdp/fully_shard.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>

#include "flat/shardable.h"
#include "frontend/buffer_casts.h"
#include "frontend/engine_registry.h"
#include "frontend/mesh_choice.h"
#include "frontend/option_checks.h"
#include "frontend/unit_assignment.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/keyed_storage.h"
#include "torch_seams/self_check.h"

namespace fsdp {
namespace {

std::string quoted_list(const std::vector<std::string>& names) {
  constexpr size_t kShown = 20;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) {
    text += (i ? ", '" : "'") + names[i] + "'";
  }
  return names.size() > kShown ? c10::str(text, " and ", names.size() - kShown, " more") : text;
}

Unit* unit_of(const at::Tensor& tensor) {
  seams::StorageOwner* owner = seams::has_sharded_key(tensor) ? seams::storage_owner(tensor) : nullptr;
  return owner ? static_cast<Unit*>(owner->unit.load()) : nullptr;
}

// What lies below the module(s) of one fully_shard call.
struct Survey {
  ModuleTree tree;
  std::vector<FoundParameter> unassigned;
  std::vector<Engine*> inner;  // of inner modules that were annotated before, in module order
};

Survey survey(const torch::nn::Module& root) {
  Survey result{survey_modules(root), {}, {}};
  for (const FoundParameter& parameter : result.tree.parameters) {
    Unit* unit = unit_of(parameter.tensor);
    if (!unit) {
      TORCH_CHECK(!seams::has_sharded_key(parameter.tensor), "fsdp: parameter '", parameter.fqn(),
                  "' belongs to a sharded module that is gone");
      result.unassigned.push_back(parameter);
    } else if (std::find(result.inner.begin(), result.inner.end(), unit->engine) == result.inner.end()) {
      result.inner.push_back(unit->engine);
    }
  }
  return result;
}

std::unordered_set<const void*> annotated_modules(const Survey& surveyed) {
  std::unordered_set<const void*> modules;
  for (const Engine* engine : surveyed.inner) {
    for (const auto& unit : engine->units()) {
      for (const AnnotatedModule& module : unit->modules()) {
        modules.insert(module.identity);
      }
    }
  }
  return modules;
}

void check_not_annotated(const Survey& surveyed, const torch::nn::Module& module) {
  if (annotated_modules(surveyed).count(&module) == 0) {
    return;
  }
  std::vector<std::string> fqns;
  for (const FoundParameter& parameter : survey_modules(module).parameters) {
    fqns.push_back(parameter.fqn());
  }
  TORCH_CHECK(false, "fsdp: fully_shard was called twice on the same module of class ", module_class_name(module),
              "; its parameters ", quoted_list(fqns), " are sharded already");
}

// Inner units must lie below this call's modules whole, and a parameter that one of them took must not be held outside
// of it as well: it would be in two units' reach.
void check_inner_units(const Survey& surveyed) {
  const ModuleTree& tree = surveyed.tree;
  for (const FoundParameter& parameter : tree.parameters) {
    Unit* unit = unit_of(parameter.tensor);
    if (!unit) {
      continue;
    }
    for (const ParameterSite& site : parameter.sites) {
      bool inside = false;
      for (const AnnotatedModule& module : unit->modules()) {
        auto path = tree.paths.find(module.identity);
        inside |= path != tree.paths.end() &&
                  std::any_of(path->second.begin(), path->second.end(),
                              [&](const std::string& at) { return is_at_or_below(site.module, at); });
      }
      TORCH_CHECK(inside, "fsdp: parameter '", site.fqn, "' (first registered as '", parameter.fqn(),
                  "') already belongs to unit '", unit->name(),
                  "', which does not contain this registration: a parameter cannot be in two units. Annotate the "
                  "modules that share it together, fully_shard({a, b}, options), or only a module above both");
    }
  }
}

void rename_inner_units(Engine& engine, const ModuleTree& tree) {
  for (const auto& unit : engine.units()) {
    std::vector<std::string> module_fqns;
    for (const AnnotatedModule& module : unit->modules()) {
      auto path = tree.paths.find(module.identity);
      TORCH_CHECK(path != tree.paths.end(), "fsdp: unit '", unit->name(),
                  "' was annotated on a module that is not below the module of this fully_shard call");
      module_fqns.push_back(path->second.front());
    }
    unit->rename(module_fqns, [&](const at::Tensor& tensor) {
      std::vector<std::string> fqns;
      for (const ParameterSite& site : tree.find(tensor)->sites) {
        fqns.push_back(site.fqn);
      }
      return fqns;
    });
  }
}

void check_one_device(const std::vector<FoundParameter>& parameters) {
  std::map<std::string, std::vector<std::string>> by_device;
  for (const FoundParameter& parameter : parameters) {
    by_device[parameter.tensor.device().str()].push_back(parameter.fqn());
  }
  if (by_device.size() > 1) {
    std::string text;
    for (const auto& [device, fqns] : by_device) {
      text += c10::str(text.empty() ? "" : "; ", device, ": ", quoted_list(fqns));
    }
    TORCH_CHECK(false, "fsdp: the parameters of one fully_shard call must be on one device, but they are on ", text,
                ". Move the module before sharding it");
  }
}

// Two tensors over the same memory are tied in one process; as shards they would drift apart in silence.
void check_no_overlap(const std::vector<FoundParameter>& parameters) {
  struct Range {
    const char* begin;
    const char* end;
    const FoundParameter* parameter;
  };
  std::vector<Range> ranges;
  for (const FoundParameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    if (tensor.has_storage() && tensor.numel() > 0 && !tensor.is_meta()) {
      int64_t last = 0;
      for (int64_t d = 0; d < tensor.dim(); ++d) {
        last += (tensor.size(d) - 1) * tensor.stride(d);
      }
      const char* begin = static_cast<const char*>(tensor.const_data_ptr());
      ranges.push_back({begin, begin + (last + 1) * tensor.element_size(), &parameter});
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    TORCH_CHECK(ranges[i].begin >= ranges[i - 1].end, "fsdp: parameters '", ranges[i - 1].parameter->fqn(), "' and '",
                ranges[i].parameter->fqn(),
                "' lie over the same memory but are two tensors: sharded, they would no "
                "longer share values. Register one tensor under both names, or clone one of them");
  }
}

void check_all_shardable(const std::vector<FoundParameter>& parameters) {
  for (const FoundParameter& parameter : parameters) {
    check_shardable(parameter.tensor, parameter.fqn());
  }
  check_no_overlap(parameters);
}

// AutoUnits::order names parameters that get units by this call.
void check_order(const Options& options, const std::vector<FoundParameter>& parameters) {
  if (!options.auto_units) {
    return;
  }
  std::unordered_set<std::string> known;
  for (const FoundParameter& parameter : parameters) {
    for (const ParameterSite& site : parameter.sites) {
      known.insert(site.fqn);
    }
  }
  for (const std::vector<std::string>& together : options.auto_units->order) {
    for (const std::string& fqn : together) {
      TORCH_CHECK(known.count(fqn), "fsdp: auto_units: order names '", fqn,
                  "', which is no parameter below this module, or belongs to an inner unit");
    }
  }
}

c10::Device shard_device(const Options& options, const std::vector<FoundParameter>& parameters,
                         const Survey& surveyed) {
  if (options.device) {
    TORCH_CHECK(*options.device != c10::kMeta, "fsdp: Options::device must not be meta");
    return *options.device;
  }
  if (parameters.empty()) {
    return surveyed.inner.front()->options().device;
  }
  c10::Device device = parameters.front().tensor.device();
  TORCH_CHECK(device != c10::kMeta, "fsdp: parameter '", parameters.front().fqn(),
              "' is on the meta device: set Options::device to say where its shards shall live");
  return device;
}

// One group for each dtype, requires_grad and precision, in order of first appearance.
std::vector<std::vector<ShardedParameter>> group_parameters(const std::vector<FoundParameter>& parameters,
                                                            const std::vector<std::string>& full_precision_paths) {
  using Key = std::tuple<at::ScalarType, bool, bool>;
  std::vector<std::pair<Key, std::vector<ShardedParameter>>> groups;
  for (const FoundParameter& parameter : parameters) {
    ShardedParameter sharded;
    sharded.tensor = parameter.tensor;
    sharded.fqn = parameter.fqn();
    for (const ParameterSite& site : parameter.sites) {
      sharded.full_precision |= is_at_or_below_any(site.module, full_precision_paths);
    }
    for (size_t i = 1; i < parameter.sites.size(); ++i) {
      sharded.other_fqns.push_back(parameter.sites[i].fqn);
    }
    Key key{parameter.tensor.scalar_type(), parameter.tensor.requires_grad(), sharded.full_precision};
    auto it = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == key; });
    if (it == groups.end()) {
      it = groups.insert(groups.end(), {key, {}});
    }
    it->second.push_back(std::move(sharded));
  }
  std::vector<std::vector<ShardedParameter>> result;
  for (auto& group : groups) {
    result.push_back(std::move(group.second));
  }
  return result;
}

// Paths of modules that inner fully_shard calls have annotated.
std::vector<std::string> annotated_paths(const Survey& surveyed) {
  std::vector<std::string> paths;
  for (const void* module : annotated_modules(surveyed)) {
    const auto& known = surveyed.tree.paths.find(module);
    if (known != surveyed.tree.paths.end()) {
      paths.insert(paths.end(), known->second.begin(), known->second.end());
    }
  }
  return paths;
}

void warn_if_one_unit(const Engine& engine, const torch::nn::Module* module) {
  bool has_children = module && !module->children().empty();
  if (engine.units().size() == 1 && has_children && engine.mesh().size() > 1 &&
      reshards_after_forward(engine.units().front()->options().strategy)) {
    TORCH_WARN(
        "fsdp: one unit holds the whole model, so all of its parameters are gathered at once and sharding saves "
        "only optimizer and gradient memory. Set Options::auto_wrap_policy or annotate inner modules first");
  }
}

std::string join_fqns(const UnitPlan& plan) {
  const std::string& fqn = plan.origin.modules.front().fqn;
  return fqn.empty() ? "root" : fqn;
}

void add_units(Engine& engine, const std::vector<UnitPlan>& plans, const Options& options,
               const std::vector<std::string>& full_precision) {
  auto record = options.auto_units ? std::make_shared<UseRecord>(*options.auto_units) : nullptr;
  for (const UnitPlan& plan : plans) {
    Unit& unit = engine.add_unit(plan.origin, unit_options(options), group_parameters(plan.parameters, full_precision));
    unit.is_root = plan.is_root;
    if (record) {
      engine.cut_later(unit, record);
    }
  }
  if (record && !options.auto_units->order.empty()) {
    record->visit_in_given_order();
    engine.cut_units(record.get());
  }
}

std::shared_ptr<ShardedModule> build(torch::nn::Module& root, const std::vector<UnitPlan>& plans,
                                     const Survey& surveyed, const Options& options) {
  const std::string name = plans.empty() ? "root" : join_fqns(plans.front());
  EngineOptions shared{.mesh = choose_mesh(options, name),
                       .use_orig_params = options.use_orig_params,
                       .keep_gradient_memory = options.keep_gradient_memory,
                       .device = shard_device(options, surveyed.unassigned, surveyed),
                       .overlap = overlap_options(options)};
  check_reshard_group(options, shared.mesh, name);
  for (const Engine* inner : surveyed.inner) {
    check_agrees(shared, *inner);
    shared.mesh = merge_meshes(shared.mesh, inner->mesh(), inner->units().front()->name());
  }
  const auto& ranks = shared.mesh.world ? shared.mesh.world : shared.mesh.shard;
  shared.model = surveyed.inner.empty() ? number_of_model(ranks) : surveyed.inner.front()->options().model;
  auto engine = std::make_shared<Engine>(shared);
  const std::vector<std::string> full_precision = paths_of_classes(root, options.full_precision_classes);
  if (options.buffer_dtype) {
    std::vector<std::string> except = annotated_paths(surveyed);
    except.insert(except.end(), full_precision.begin(), full_precision.end());
    cast_buffers(root, *options.buffer_dtype, except, *engine);
  }
  for (Engine* inner : surveyed.inner) {
    std::shared_ptr<Engine> keep = inner->shared_from_this();
    engine->absorb(*inner);
    unregister_engine(*inner);
  }
  rename_inner_units(*engine, surveyed.tree);
  add_units(*engine, plans, options, full_precision);
  register_engine(engine);
  return std::make_shared<ShardedModule>(engine);
}

}  // namespace

std::shared_ptr<ShardedModule> fully_shard(torch::nn::Module& module, const Options& options) {
  seams::self_check();
  check_unit_options(options, module_class_name(module));
  check_auto_units(options, module_class_name(module));
  Survey surveyed = survey(module);
  TORCH_CHECK(!surveyed.tree.parameters.empty(), "fsdp: fully_shard was called on a module of class ",
              module_class_name(module), " that has no parameters: an empty unit");
  check_not_annotated(surveyed, module);
  check_inner_units(surveyed);
  check_one_device(surveyed.unassigned);
  check_all_shardable(surveyed.unassigned);
  check_order(options, surveyed.unassigned);
  auto plans = options.auto_units
                   ? assign_singly(module, surveyed.unassigned)
                   : assign_units(module, options.auto_wrap_policy, surveyed.unassigned, annotated_modules(surveyed));
  auto sharded = build(module, plans, surveyed, options);
  warn_if_one_unit(sharded->engine(), &module);
  return sharded;
}

std::shared_ptr<ShardedModule> fully_shard(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                                           const Options& options) {
  seams::self_check();
  TORCH_CHECK(!modules.empty(), "fsdp: fully_shard was called with an empty list of modules");
  TORCH_CHECK(!options.auto_wrap_policy && !options.auto_units,
              "fsdp: auto_wrap_policy and auto_units cannot be used with a list of modules: their "
              "parameters become one unit. Annotate inner modules first");
  // A stand-in for the parent that siblings do not have here; its names last until an outer module is annotated.
  torch::nn::Module parent;
  UnitPlan plan;
  for (size_t i = 0; i < modules.size(); ++i) {
    TORCH_CHECK(modules[i], "fsdp: fully_shard: module ", i, " of the list is null");
    auto same = [&](const AnnotatedModule& other) { return other.identity == modules[i].get(); };
    TORCH_CHECK(std::none_of(plan.origin.modules.begin(), plan.origin.modules.end(), same), "fsdp: module ", i,
                " of class ", module_class_name(*modules[i]), " stands twice in the list");
    plan.origin.modules.push_back({std::to_string(i), modules[i].get()});
    parent.register_module(std::to_string(i), modules[i]);
  }
  check_unit_options(options, "the list of modules");
  Survey surveyed = survey(parent);
  for (const auto& module : modules) {
    check_not_annotated(surveyed, *module);
  }
  check_inner_units(surveyed);
  TORCH_CHECK(!surveyed.unassigned.empty(),
              "fsdp: fully_shard was called on modules without parameters, or of which "
              "all parameters are sharded already: an empty unit");
  check_one_device(surveyed.unassigned);
  check_all_shardable(surveyed.unassigned);
  plan.parameters = surveyed.unassigned;
  return build(parent, {plan}, surveyed, options);
}

}  // namespace fsdp
