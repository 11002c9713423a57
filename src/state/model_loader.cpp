#include "state/model_loader.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <set>
#include <utility>

#include "base/device_stream.h"
#include "engine/engine.h"
#include "state/split_tensors.h"
#include "torch_seams/shard_version.h"

namespace fsdp::state {

namespace {

std::set<std::string> names_of(const TensorSource& source) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : source.tensors()) names.insert(name);
  return names;
}

}  // namespace

void settle_shards(const ShardedModule& model) {
  engine::Engine& engine = model.engine();
  engine.gatherer().reshard_all();
  for (engine::Unit* unit : engine.tree().all()) engine.gatherer().prepare_write_to_shards(*unit);
  if (engine.options().memory.apart()) {
    base::DeviceEvent gathered;
    gathered.record(engine.streams().gather);
    gathered.synchronize();
  }
}

ModelLoader::ModelLoader(std::vector<ShardedModule*> models, const NamedTensors& unsharded, const TensorSource& source,
                         const Rename& rename, const std::vector<SplitTensor>& split, const Aliases& aliases)
    : models_(std::move(models)),
      unsharded_(by_tensor(unsharded)),
      split_(without_state(split)),
      source_(source),
      names_(names_of(source), rename) {
  for (const ShardedModule* model : models_) parts_.push_back(with_aliases(held_parts(*model), aliases));
}

ModelLoader::Target ModelLoader::target_of(const HeldPart& part) {
  return {part.names, {part.dtype(), part.sizes, part.strides}, part.begin, part.end};
}
ModelLoader::Target ModelLoader::target_of(const std::vector<std::string>& names, const at::Tensor& whole) {
  return {names, {whole.scalar_type(), whole.sizes().vec(), {}}, 0, whole.numel()};
}
ModelLoader::Target ModelLoader::target_of(const SplitTensor& tensor) {
  const auto [begin, end] = held_elements(tensor);
  return {{tensor.name}, {tensor.rows.scalar_type(), tensor.sizes, {}}, begin, end};
}

LoadReport ModelLoader::match() {
  LoadReport report;
  for (const auto& of_model : parts_) {
    for (const HeldPart& part : of_model) match(target_of(part), report);
  }
  for (const auto& [names, whole] : unsharded_) match(target_of(names, whole), report);
  for (const SplitTensor& tensor : split_) match(target_of(tensor), report);
  for (const GivenName& unexpected : names_.unexpected()) report.unexpected.push_back(unexpected.name);
  return report;
}

void ModelLoader::match(const Target& target, LoadReport& report) {
  const std::vector<GivenName> found = names_.find(target.names);
  if (found.empty()) {
    report.missing.push_back(target.names.front());
    return;
  }
  const std::vector<Mismatch> wrong = mismatches(target, found);
  report.mismatched.insert(report.mismatched.end(), wrong.begin(), wrong.end());
  if (wrong.empty()) {
    note_loaded(report, target.names.front(), found.front());
    given_[target.names.front()] = found.front().given;
  }
}

std::vector<Mismatch> ModelLoader::mismatches(const Target& target, const std::vector<GivenName>& found) const {
  std::vector<Mismatch> wrong;
  const WantedElements wanted{target.begin, target.end, target.tensor.strides};
  for (const auto& [name, given] : found) {
    const SourceTensor& tensor = source_.tensors().at(given);
    const bool alike = tensor.dtype == target.tensor.dtype && tensor.sizes == target.tensor.sizes;
    if (!alike) {
      wrong.push_back({name, shown(tensor), shown(target.tensor)});
    } else if (const std::string lack = lacking(source_, given, wanted); !lack.empty()) {
      wrong.push_back({name, shown(tensor) + " without " + lack,
                       c10::str("elements [", target.begin, ", ", target.end, "), which ",
                                models_.front()->engine().mesh().where(), " holds")});
    } else if (wrong.empty() && given != found.front().given &&
               !source_.same_elements(found.front().given, given, wanted)) {
      wrong.push_back(other_values(name, found.front().name));
    }
  }
  return wrong;
}

void ModelLoader::read(const Target& target, const at::Tensor& out) const {
  read_elements(source_, given_.at(target.names.front()), {target.begin, target.end, target.tensor.strides}, out);
}

void ModelLoader::load(const LoadReport& agreed) {
  const at::NoGradGuard no_grad;
  const std::set<std::string> loaded(agreed.loaded.begin(), agreed.loaded.end());
  for (size_t i = 0; i < models_.size(); ++i) {
    settle_shards(*models_[i]);
    for (const HeldPart& part : parts_[i]) {
      if (loaded.count(part.fqn) == 0) continue;
      read(target_of(part), part.values().detach());
      seams::bump_version(part.leaf);
      models_[i]->page_out();
    }
  }
  for (auto& [names, value] : unsharded_) {
    if (loaded.count(names.front()) == 0) continue;
    const at::Tensor whole = at::empty({value.numel()}, value.options().requires_grad(false));
    read(target_of(names, value), whole);
    value.copy_(whole.view(value.sizes()));
  }
  for (const SplitTensor& tensor : split_) {
    if (loaded.count(tensor.name) == 0) continue;
    read(target_of(tensor), tensor.rows.detach().view(-1));
    seams::bump_version(tensor.rows);
  }
}

}  // namespace fsdp::state
