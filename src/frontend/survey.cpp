#include "frontend/survey.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>

#include "deferred/deferred_storage.h"
#include "flat/shardable.h"
#include "fsdp/wrap_policy.h"
#include "schedule/module_path.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp::frontend {
namespace {

std::string quoted_list(const std::vector<std::string>& names) {
  constexpr size_t kShown = 20;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) text += (i ? ", '" : "'") + names[i] + "'";
  return names.size() > kShown ? c10::str(text, " and ", names.size() - kShown, " more") : text;
}

engine::Unit* unit_holding(const at::Tensor& tensor) {
  seams::StorageOwner* owner = seams::has_sharded_key(tensor) ? seams::storage_owner(tensor) : nullptr;
  return owner ? engine::unit_of(*owner) : nullptr;
}

// Finds the parameters that the options name, and the parameters below the modules that they name.
void find_ignored(const Options& options, Survey& result) {
  result.ignored.insert(result.ignored.end(), options.ignored_parameters.begin(), options.ignored_parameters.end());
  for (const auto& module : options.ignored_modules) {
    TORCH_CHECK(module, "fsdp: a module of Options::ignored_modules is null");
    std::vector<at::Tensor> below = module->parameters();
    result.ignored.insert(result.ignored.end(), below.begin(), below.end());
    auto path = result.tree.paths.find(module.get());
    if (path != result.tree.paths.end()) {
      result.ignored_paths.insert(result.ignored_paths.end(), path->second.begin(), path->second.end());
    }
  }
  for (const at::Tensor& parameter : result.ignored) {
    TORCH_CHECK(parameter.defined(), "fsdp: a tensor of Options::ignored_parameters is undefined");
    const FoundParameter* found = result.tree.find(parameter);
    TORCH_CHECK(!unit_holding(parameter), "fsdp: parameter '", found ? found->fqn() : "",
                "' is to be ignored, but belongs to unit '", unit_holding(parameter)->name(),
                "' already: ignore it in the first fully_shard call above it");
  }
}

void find_inner(Survey& result) {
  std::unordered_set<const engine::Engine*> known;
  for (const FoundParameter& parameter : result.tree.parameters) {
    engine::Unit* unit = unit_holding(parameter.tensor);
    if (unit && known.insert(&unit->engine()).second) {
      result.inner.push_back(&unit->engine());
      const std::vector<at::Tensor>& ignored = unit->engine().tree().ignored();
      result.ignored.insert(result.ignored.end(), ignored.begin(), ignored.end());
    }
  }
}

}  // namespace

Survey survey(const torch::nn::Module& root, const Options& options) {
  Survey result;
  result.tree = survey_modules(root);
  find_inner(result);
  find_ignored(options, result);
  std::unordered_set<const void*> ignored;
  for (const at::Tensor& parameter : result.ignored) ignored.insert(parameter.unsafeGetTensorImpl());
  for (const FoundParameter& parameter : result.tree.parameters) {
    if (unit_holding(parameter.tensor) || ignored.count(parameter.tensor.unsafeGetTensorImpl())) continue;
    TORCH_CHECK(!seams::has_sharded_key(parameter.tensor) || deferred::find(parameter.tensor), "fsdp: parameter '",
                parameter.fqn(), "' belongs to a sharded module that was destroyed");
    result.unassigned.push_back(parameter);
  }
  return result;
}

std::unordered_set<const void*> annotated_modules(const Survey& surveyed) {
  std::unordered_set<const void*> modules;
  for (const engine::Engine* engine : surveyed.inner) {
    for (const auto& unit : engine->units()) {
      for (const engine::AnnotatedModule& module : unit->names().modules()) modules.insert(module.identity);
    }
  }
  return modules;
}

void check_not_annotated(const Survey& surveyed, const torch::nn::Module& module) {
  const auto was_called_on = [&](const engine::Engine* engine) {
    return std::find(engine->tree().roots().begin(), engine->tree().roots().end(), &module) !=
           engine->tree().roots().end();
  };
  if (annotated_modules(surveyed).count(&module) == 0 &&
      std::none_of(surveyed.inner.begin(), surveyed.inner.end(), was_called_on)) {
    return;
  }
  std::vector<std::string> fqns;
  for (const FoundParameter& parameter : survey_modules(module).parameters) fqns.push_back(parameter.fqn());
  TORCH_CHECK(false, "fsdp: fully_shard was called twice on the same module of class ", module_class_name(module),
              "; its parameters ", quoted_list(fqns),
              " are sharded already, and the options of another call would be ignored");
}

std::vector<std::string> annotated_paths(const Survey& surveyed) {
  std::vector<std::string> paths;
  for (const void* module : annotated_modules(surveyed)) {
    const auto& known = surveyed.tree.paths.find(module);
    if (known != surveyed.tree.paths.end()) paths.insert(paths.end(), known->second.begin(), known->second.end());
  }
  return paths;
}

void check_inner_units(const Survey& surveyed) {
  const ModuleTree& tree = surveyed.tree;
  for (const FoundParameter& parameter : tree.parameters) {
    engine::Unit* unit = unit_holding(parameter.tensor);
    if (!unit) continue;
    for (const ParameterSite& site : parameter.sites) {
      bool inside = false;
      for (const engine::AnnotatedModule& module : unit->names().modules()) {
        auto path = tree.paths.find(module.identity);
        inside |= path != tree.paths.end() &&
                  std::any_of(path->second.begin(), path->second.end(),
                              [&](const std::string& at) { return schedule::is_at_or_below(site.module, at); });
      }
      TORCH_CHECK(inside, "fsdp: parameter '", site.fqn, "' (first registered as '", parameter.fqn(),
                  "') already belongs to unit '", unit->name(),
                  "', which does not contain this registration: a parameter cannot be in two units. Annotate the "
                  "modules that share it together, fully_shard({a, b}, options), or only a module above both");
    }
  }
}

void rename_inner_units(engine::Engine& engine, const ModuleTree& tree) {
  for (const auto& unit : engine.units()) {
    std::vector<std::string> module_fqns;
    for (const engine::AnnotatedModule& module : unit->names().modules()) {
      auto path = tree.paths.find(module.identity);
      TORCH_CHECK(path != tree.paths.end(), "fsdp: unit '", unit->name(),
                  "' was annotated on a module that is not below the module of this fully_shard call");
      module_fqns.push_back(path->second.front());
    }
    unit->rename(module_fqns, [&](const at::Tensor& tensor) {
      std::vector<std::string> fqns;
      for (const ParameterSite& site : tree.find(tensor)->sites) fqns.push_back(site.fqn);
      return fqns;
    });
  }
}

namespace {

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

// The memory range of the elements of a parameter or a buffer.
struct MemoryRange {
  const void* space;  // null for memory; otherwise the storage of deferred tensors, which have no memory
  uintptr_t begin;
  uintptr_t end;
  std::string fqn;
  bool is_parameter;
  auto place() const { return std::pair(space, begin); }
};

void add_range(const at::Tensor& tensor, const std::string& fqn, bool is_parameter, std::vector<MemoryRange>& ranges) {
  if (!tensor.has_storage() || tensor.numel() == 0 || tensor.is_meta()) return;
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const void* space = deferred::find(tensor);
  auto begin = space ? static_cast<uintptr_t>(tensor.storage_offset() * tensor.element_size())
                     : reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  ranges.push_back(
      {space, begin, begin + static_cast<uintptr_t>((last + 1) * tensor.element_size()), fqn, is_parameter});
}

void check_apart(const MemoryRange& first, const MemoryRange& second) {
  TORCH_CHECK(!first.is_parameter || !second.is_parameter, "fsdp: parameters '", first.fqn, "' and '", second.fqn,
              "' lie over the same memory but are two tensors: sharded, they would no "
              "longer share values. Register one tensor under both names, or clone one of them");
  const MemoryRange &parameter = first.is_parameter ? first : second, &buffer = first.is_parameter ? second : first;
  TORCH_CHECK(
      false, "fsdp: buffer '", buffer.fqn, "' lies over the memory of parameter '", parameter.fqn,
      "': sharded, the parameter would change and the buffer keep its old values. Make it from the parameter in "
      "forward, or register a clone");
}

// Two tensors over the same memory are tied in one process; if sharded, they would silently diverge.
void check_no_overlap(const std::vector<FoundParameter>& parameters, const torch::nn::Module& root) {
  std::vector<MemoryRange> ranges;
  for (const FoundParameter& parameter : parameters) {
    add_range(parameter.tensor, parameter.fqn(), /*is_parameter=*/true, ranges);
  }
  for (const auto& buffer : root.named_buffers()) {
    if (buffer.value().defined() && !unit_holding(buffer.value())) {
      add_range(buffer.value(), buffer.key(), /*is_parameter=*/false, ranges);
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const MemoryRange& a, const MemoryRange& b) { return a.place() < b.place(); });
  // Buffers may overlap each other. So each range is compared with the parameter and the buffer before it that reach
  // furthest.
  const MemoryRange* furthest[2] = {nullptr, nullptr};
  for (const MemoryRange& range : ranges) {
    for (const MemoryRange*& before : furthest) {
      const bool reaches = before && before->space == range.space && range.begin < before->end;
      if (reaches && (before->is_parameter || range.is_parameter)) check_apart(*before, range);
    }
    const MemoryRange*& same_kind = furthest[range.is_parameter];
    if (!same_kind || same_kind->space != range.space || same_kind->end < range.end) same_kind = &range;
  }
}

}  // namespace

void check_unassigned(const Survey& surveyed, const torch::nn::Module& root) {
  check_one_device(surveyed.unassigned);
  for (const FoundParameter& parameter : surveyed.unassigned) flat::check_shardable(parameter.tensor, parameter.fqn());
  check_no_overlap(surveyed.unassigned, root);
}

}  // namespace fsdp::frontend
