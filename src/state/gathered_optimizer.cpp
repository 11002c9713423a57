#include "state/gathered_optimizer.h"

#include <ATen/ops/zeros.h>

#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "engine/engine.h"
#include "engine/whole_parameters.h"
#include "formats/common/dtype.h"
#include "state/memory_sources.h"
#include "state/rank0_source.h"
#include "state/together.h"

namespace fsdp::state {
namespace {

using nlohmann::json;

// Describes the state of the parameters whose first element this rank holds: {FQN: {"scalars": {…}, "tensors": {NAME:
// dtype}}}.
json described_here(const std::vector<HeldPart>& parts, const OptimizerState& optimizer) {
  json all = json::object();
  for (const HeldPart& part : parts) {
    if (part.begin != 0 || part.numel() == 0 || part.replica != 0) continue;
    const auto kept = optimizer.leaf(part.leaf);
    if (!kept) continue;
    json tensors = json::object();
    for (const auto& [name, tensor] : kept->tensors) {
      tensors[name] = formats::safetensors_dtype(tensor.scalar_type());
    }
    all[part.fqn] = {{"scalars", kept->scalars}, {"tensors", tensors}};
  }
  return all;
}

// A state tensor, by name and dtype, of all parameters of a FlatParameter that have it.
struct StateTensor {
  std::string name;
  std::string dtype;
  auto operator<=>(const StateTensor&) const = default;
};

std::set<StateTensor> tensors_of(const flat::FlatParameter& flat, const json& described) {
  std::set<StateTensor> found;
  for (const flat::ShardedParameter& parameter : flat.parameters()) {
    if (const auto entry = described.find(parameter.fqn); entry != described.end()) {
      for (const auto& [name, dtype] : entry->at("tensors").items()) found.insert({name, dtype.get<std::string>()});
    }
  }
  return found;
}

bool has(const json& described, const std::string& fqn, const StateTensor& tensor) {
  const auto entry = described.find(fqn);
  return entry != described.end() && entry->at("tensors").value(tensor.name, "") == tensor.dtype;
}

// Returns the state tensor in the layout of the shard, with zeros for parameters that do not have it. `parts`: those of
// the FlatParameter.
at::Tensor part_of(const flat::FlatParameter& flat, const std::vector<HeldPart>& parts, const OptimizerState& optimizer,
                   const StateTensor& tensor) {
  const auto dtype = formats::dtype_from_safetensors(tensor.dtype).value();
  const at::Tensor all = at::zeros(flat.shard().sizes(), flat.shard().options().dtype(dtype).requires_grad(false));
  for (const HeldPart& part : parts) {
    const auto kept = part.numel() > 0 ? optimizer.leaf(part.leaf) : std::nullopt;
    if (!kept || kept->tensors.count(tensor.name) == 0) continue;
    const at::Tensor values = kept->tensors.at(tensor.name).detach().view(-1);
    flat.slice_of(all, part.index)
        .narrow(0, part.shard_offset, part.numel())
        .copy_(values.narrow(0, part.leaf_offset, part.numel()));
  }
  return all;
}

}  // namespace

json described_state(const std::vector<HeldPart>& parts, const OptimizerState& optimizer, const ProcessMesh& mesh) {
  const std::string what = "full_optimizer_state";
  json all = json::object();
  for (const std::string& text :
       together(exchange_over(mesh, what), what, [&] { return described_here(parts, optimizer).dump(); })) {
    all.update(json::parse(text));
  }
  return all;
}

void visit_state(ShardedModule& model, const OptimizerState& optimizer, const json& described,
                 const VisitState& visit) {
  std::unordered_map<const flat::FlatParameter*, std::vector<HeldPart>> parts;
  for (HeldPart& part : held_parts(model)) parts[part.flat].push_back(std::move(part));
  for (const auto& unit : model.engine().units()) {
    for (const auto& flat : unit->flat_parameters()) {
      for (const StateTensor& tensor : tensors_of(*flat, described)) {
        const at::Tensor full =
            engine::gather_parts(*unit, *flat, part_of(*flat, parts[flat.get()], optimizer, tensor));
        for (size_t i = 0; i < flat->parameters().size(); ++i) {
          const flat::ShardedParameter& parameter = flat->parameters()[i];
          if (!has(described, parameter.fqn, tensor)) continue;
          at::Tensor whole = flat->view_in(full, static_cast<int64_t>(i));
          if (parameter.part) {
            whole = model.engine().options().exchange->whole_of(whole, *parameter.part, parameter.fqn);
          }
          visit(parameter.fqn, tensor.name, whole);
        }
      }
    }
  }
}

SavedOptimizer saved_from(const FullOptimizerState& state) {
  SavedOptimizer saved;
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [fqn, of_parameter] : state.state) {
    for (const auto& [name, tensor] : of_parameter.tensors) tensors[state_name(fqn, name)] = tensor;
    saved.scalars[fqn] = of_parameter.scalars;
  }
  saved.tensors = std::make_shared<WholeTensors>(std::move(tensors));
  saved.groups = state.groups;
  return saved;
}

json text_of(const SavedOptimizer& saved) {
  return {{"tensors", Rank0Tensors::describe(*saved.tensors)},
          {"scalars", saved.scalars},
          {"groups", text_of(saved.groups)}};
}

}  // namespace fsdp::state
