// Optimizer state by parameter number, and by parameter name.
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <utility>

#include "fsdp/state_dict.h"
#include "state/refusal.h"

namespace fsdp {

namespace {

std::vector<std::string> without_prefix(const std::vector<std::string>& fqns, const std::string& prefix) {
  std::vector<std::string> names;
  std::set<std::string> known;
  for (const std::string& fqn : fqns) {
    TORCH_CHECK(fqn.rfind(prefix, 0) == 0, "rekey_optimizer_state: '", fqn, "' does not begin with '", prefix, "'");
    names.push_back(fqn.substr(prefix.size()));
    TORCH_CHECK(known.insert(names.back()).second, "rekey_optimizer_state: '", names.back(), "' occurs twice");
  }
  return names;
}

const std::string& name_of(const std::vector<std::string>& names, int64_t number) {
  TORCH_CHECK(0 <= number && number < static_cast<int64_t>(names.size()), "rekey_optimizer_state: parameter ", number,
              " of ", names.size(), ": give the names of all parameters, in the optimizer's order");
  return names[static_cast<size_t>(number)];
}

int64_t number_of(const std::map<std::string, int64_t>& numbers, const std::string& name) {
  const auto found = numbers.find(name);
  TORCH_CHECK(found != numbers.end(), "rekey_optimizer_state: no number is given for parameter '", name, "'");
  return found->second;
}

std::vector<at::Tensor> all_leaves(const OptimizerState& optimizer) {
  std::vector<at::Tensor> leaves;
  for (const std::vector<at::Tensor>& group : optimizer.groups()) {
    leaves.insert(leaves.end(), group.begin(), group.end());
  }
  return leaves;
}

void check_groups(const std::vector<IndexedOptimizerState::Group>& here,
                  const std::vector<IndexedOptimizerState::Group>& given) {
  TORCH_CHECK(here.size() == given.size(), "load_indexed_optimizer_state: ", given.size(),
              " parameter groups are given, the optimizer has ", here.size());
  for (size_t i = 0; i < here.size(); ++i) {
    TORCH_CHECK(here[i].parameters == given[i].parameters, "load_indexed_optimizer_state: parameter group ", i,
                " has the parameters ", given[i].parameters, ", the optimizer has ", here[i].parameters);
  }
}

void check(const std::string& refusal, const char* what, int64_t number) {
  TORCH_CHECK(refusal.empty(), "load_indexed_optimizer_state: the entry for ", what, " ", number, " is ", refusal);
}

}  // namespace

IndexedOptimizerState indexed_optimizer_state(const OptimizerState& optimizer) {
  IndexedOptimizerState state;
  int64_t number = 0;
  for (const std::vector<at::Tensor>& leaves : optimizer.groups()) {
    IndexedOptimizerState::Group group{{}, optimizer.options(state.groups.size())};
    for (const at::Tensor& leaf : leaves) {
      if (auto kept = optimizer.leaf(leaf)) state.state[number] = std::move(*kept);
      group.parameters.push_back(number++);
    }
    state.groups.push_back(std::move(group));
  }
  return state;
}

void load_indexed_optimizer_state(OptimizerState& optimizer, const IndexedOptimizerState& state) {
  const at::NoGradGuard no_grad;
  check_groups(indexed_optimizer_state(optimizer).groups, state.groups);
  const std::vector<at::Tensor> leaves = all_leaves(optimizer);
  for (const auto& [number, of_parameter] : state.state) {
    TORCH_CHECK(0 <= number && number < static_cast<int64_t>(leaves.size()), "load_indexed_optimizer_state: state of ",
                "parameter ", number, ", but the optimizer has ", leaves.size());
    const at::Tensor& leaf = leaves[static_cast<size_t>(number)];
    check(state::refusal_of(optimizer, leaf, state::dtypes_of(of_parameter), of_parameter.scalars), "parameter",
          number);
  }
  for (size_t group = 0; group < state.groups.size(); ++group) {
    check(state::refusal_of(optimizer, group, state.groups[group].options), "parameter group",
          static_cast<int64_t>(group));
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto given = state.state.find(static_cast<int64_t>(i));
    std::optional<LeafState> copy;
    if (given != state.state.end()) {
      copy = given->second;
      for (auto& [name, tensor] : copy->tensors)
        tensor = tensor.to(leaves[i].device(), tensor.scalar_type(), false, true);
    }
    optimizer.set_leaf(leaves[i], copy);
  }
  for (size_t group = 0; group < state.groups.size(); ++group) {
    optimizer.set_options(group, state.groups[group].options);
  }
}

FullOptimizerState rekey_optimizer_state(const IndexedOptimizerState& state, const std::vector<std::string>& fqns,
                                         const std::string& prefix) {
  const std::vector<std::string> names = without_prefix(fqns, prefix);
  FullOptimizerState named;
  for (const auto& [number, of_parameter] : state.state) named.state[name_of(names, number)] = of_parameter;
  for (const IndexedOptimizerState::Group& group : state.groups) {
    named.groups.push_back({{}, group.options});
    for (int64_t number : group.parameters) named.groups.back().parameters.push_back(name_of(names, number));
  }
  return named;
}

IndexedOptimizerState rekey_optimizer_state(const FullOptimizerState& state, const std::vector<std::string>& fqns,
                                            const std::string& prefix) {
  std::map<std::string, int64_t> numbers;
  for (const std::string& name : without_prefix(fqns, prefix)) {
    numbers.emplace(name, static_cast<int64_t>(numbers.size()));
  }
  IndexedOptimizerState indexed;
  for (const auto& [name, of_parameter] : state.state) indexed.state[number_of(numbers, name)] = of_parameter;
  for (const ParameterGroup& group : state.groups) {
    indexed.groups.push_back({{}, group.options});
    for (const std::string& name : group.parameters) {
      indexed.groups.back().parameters.push_back(number_of(numbers, name));
    }
    std::sort(indexed.groups.back().parameters.begin(), indexed.groups.back().parameters.end());
  }
  return indexed;
}

}  // namespace fsdp
