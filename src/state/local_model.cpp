// Local state dicts of models: flat shards in their layout.
#include <ATen/core/grad_mode.h>

#include <memory>
#include <set>
#include <utility>

#include "engine/engine.h"
#include "fsdp/state_dict.h"
#include "state/equal_bits.h"
#include "state/host_copy.h"
#include "state/load_together.h"
#include "state/local_state.h"
#include "state/model_loader.h"
#include "state/tensor_source.h"
#include "torch_seams/shard_version.h"

namespace fsdp {

namespace {

// Records which of the expected names `given` contains, and which other names.
class Expected {
 public:
  explicit Expected(LoadReport& report) : report_(report) {}
  // Returns the given value, or null, and records it as missing, if there is none.
  template <typename Map>
  const typename Map::mapped_type* find(const Map& given, const std::string& name) {
    names_.insert(name);
    const auto found = given.find(name);
    if (found == given.end()) report_.missing.push_back(name);
    return found == given.end() ? nullptr : &found->second;
  }
  template <typename Map>
  void note_unexpected(const Map& given) {
    for (const auto& [name, value] : given) {
      if (names_.count(name) == 0) report_.unexpected.push_back(name);
    }
  }
  // Records a tensor as loaded or mismatched; returns whether it is loaded.
  bool compare(const std::string& name, const at::Tensor& given, const at::Tensor& here) {
    const bool alike = given.defined() && given.scalar_type() == here.scalar_type() && given.sizes() == here.sizes();
    if (alike) {
      report_.loaded.push_back(name);
    } else {
      report_.mismatched.push_back({name, state::shown(given), state::shown(here)});
    }
    return alike;
  }
  // Changes the last loaded entry to a mismatch.
  void note_other_values(const std::string& name, const std::string& first) {
    report_.loaded.pop_back();
    report_.mismatched.push_back(state::other_values(name, first));
  }

 private:
  LoadReport& report_;
  std::set<std::string> names_;
};

class LocalModelLoader final : public state::Loader {
 public:
  LocalModelLoader(const state::KeyedModels& models, state::NamedTensors unsharded, const LocalStateDict& values)
      : models_(models), values_(values), shards_(state::flat_shards(models)), unsharded_(std::move(unsharded)) {}

  LoadReport match() override {
    LoadReport report;
    Expected expected(report);
    for (const state::FlatShard& shard : shards_) {
      const LocalShard* given = expected.find(values_.shards, shard.name);
      if (!given) continue;
      if (const auto differs = state::difference(shard.name, given->layout, shard.layout)) {
        report.mismatched.push_back(*differs);
      } else {
        expected.compare(shard.name, given->shard, shard.flat->shard());
      }
    }
    for (const state::SharedTensor& tensor : state::by_tensor(unsharded_)) match(tensor, expected);
    expected.note_unexpected(values_.shards);
    expected.note_unexpected(values_.unsharded);
    return report;
  }

  void load(const LoadReport& agreed) override {
    const at::NoGradGuard no_grad;
    const std::set<std::string> loaded(agreed.loaded.begin(), agreed.loaded.end());
    for (const state::KeyedModel& keyed : models_) state::settle_shards(keyed.model);
    for (const state::FlatShard& shard : shards_) {
      if (loaded.count(shard.name) == 0) continue;
      shard.flat->shard().detach().copy_(values_.shards.at(shard.name).shard);
      seams::bump_version(shard.flat->shard());
      shard.model->page_out();
    }
    for (auto& [name, value] : unsharded_) {
      if (loaded.count(name) > 0) value.copy_(values_.unsharded.at(name));
    }
  }

 private:
  // Matches a tensor under all of its names; values given under several names must be the same.
  void match(const state::SharedTensor& tensor, Expected& expected) const {
    const at::Tensor* first = nullptr;
    for (const std::string& name : tensor.names) {
      const at::Tensor* given = expected.find(values_.unsharded, name);
      if (!given || !expected.compare(name, *given, tensor.value)) continue;
      if (first && !state::equal_bits(*first, *given)) expected.note_other_values(name, tensor.names.front());
      if (!first) first = given;
    }
  }

  state::KeyedModels models_;
  const LocalStateDict& values_;
  std::vector<state::FlatShard> shards_;
  state::NamedTensors unsharded_;
};

}  // namespace

namespace state {

LocalStateDict local_values(const KeyedModels& models, const NamedTensors& unsharded,
                            const ShardedStateOptions& options) {
  const at::NoGradGuard no_grad;
  LocalStateDict values;
  for (const FlatShard& shard : flat_shards(models)) {
    values.shards[shard.name] = {shard.layout, offloaded(shard.flat->shard().detach(), options.offload_to_cpu)};
  }
  for (const auto& [name, value] : unsharded) {
    values.unsharded[name] = offloaded(value.detach(), options.offload_to_cpu);
  }
  return values;
}

std::unique_ptr<Loader> local_loader(const KeyedModels& models, const NamedTensors& unsharded,
                                     const LocalStateDict& values) {
  return std::make_unique<LocalModelLoader>(models, unsharded, values);
}

}  // namespace state

LocalStateDict local_state_dict(const ShardedModule& model, const torch::nn::Module& module,
                                const ShardedStateOptions& options) {
  return state::local_values({{model}}, state::unsharded_tensors(model, module), options);
}

LoadReport load_local_state_dict(ShardedModule& model, torch::nn::Module& module, const LocalStateDict& values,
                                 bool strict) {
  const std::string what = "load_local_state_dict";
  return state::load_together(state::exchange_over(model.engine().mesh(), what), what, strict, [&] {
    return state::local_loader({{model}}, state::unsharded_tensors(model, module), values);
  });
}

}  // namespace fsdp
