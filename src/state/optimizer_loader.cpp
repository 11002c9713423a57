#include "state/optimizer_loader.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/engine.h"
#include "state/refusal.h"

namespace fsdp::state {

namespace {

std::string shown(const Numbers& numbers) { return nlohmann::json(numbers).dump(); }

// Returns the optimizer's own tensor, if it has one that fits: loading then needs no memory, and values that are not
// loaded remain. Otherwise returns a new tensor of zeros.
at::Tensor tensor_for(const at::Tensor& leaf, c10::ScalarType dtype, const std::optional<LeafState>& before,
                      const std::string& name) {
  if (before) {
    const auto own = before->tensors.find(name);
    if (own != before->tensors.end() && own->second.scalar_type() == dtype && own->second.is_contiguous() &&
        own->second.sizes() == leaf.sizes() && own->second.device() == leaf.device()) {
      return own->second;
    }
  }
  return at::zeros(leaf.sizes(), leaf.options().dtype(dtype).requires_grad(false));
}

}  // namespace

OptimizerLoader::OptimizerLoader(const ShardedModule& model, OptimizerState& optimizer, const SavedOptimizer& saved,
                                 const Rename& rename, bool with_options)
    : OptimizerLoader(held_parts(model), model.engine().mesh().where(), optimizer, saved, rename, with_options) {}

OptimizerLoader::OptimizerLoader(std::vector<HeldPart> of_model, std::string where, OptimizerState& optimizer,
                                 const SavedOptimizer& saved, const Rename& rename, bool with_options)
    : optimizer_(optimizer),
      saved_(saved),
      groups_(held_leaves(std::move(of_model), optimizer)),
      where_(std::move(where)),
      with_options_(with_options),
      names_(saved.parameters(), rename) {}

// ---------------------------------------------------------------- does it fit?

LoadReport OptimizerLoader::match() {
  LoadReport report;
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (const HeldLeaf& leaf : groups_[group]) append(match(leaf), report);
    match_options(group, report);
  }
  for (const auto& [name, given] : names_.unexpected()) {
    // A parameter without state, such as a frozen one in a group, has nothing that could be lost.
    if (saved_.scalars.count(given) > 0) report.unexpected.push_back(name);
  }
  return report;
}

LoadReport OptimizerLoader::match(const HeldLeaf& leaf) {
  LoadReport report;
  const Numbers* numbers = nullptr;
  for (const HeldPart& part : leaf.parts) match(part, &numbers, report);
  const std::string refused = refusal(leaf);
  if (refused.empty()) return report;
  for (const std::string& fqn : report.loaded) {
    report.mismatched.push_back({fqn, refused, "state of this optimizer"});
    given_.erase(fqn);
  }
  report.loaded.clear();
  report.renamed.clear();
  return report;
}

std::string OptimizerLoader::refusal(const HeldLeaf& leaf) const {
  std::map<std::string, c10::ScalarType> dtypes;
  const Numbers* scalars = nullptr;
  for (const HeldPart& part : leaf.parts) {
    const auto given = given_.find(part.fqn);
    const auto numbers = given == given_.end() ? saved_.scalars.end() : saved_.scalars.find(given->second);
    if (numbers == saved_.scalars.end()) continue;
    scalars = &numbers->second;
    for (const std::string& name : saved_.names_of(given->second)) {
      dtypes[name] = saved_.tensors->tensors().at(state_name(given->second, name)).dtype;
    }
  }
  return scalars ? refusal_of(optimizer_, leaf.leaf, dtypes, *scalars) : "";
}

void OptimizerLoader::match(const HeldPart& part, const Numbers** of_leaf, LoadReport& report) {
  const std::vector<GivenName> found = find(part);
  if (found.empty()) {
    report.missing.push_back(part.fqn);
    return;
  }
  const std::string& given = found.front().given;
  const auto numbers = saved_.scalars.find(given);
  std::optional<Mismatch> wrong = mismatch(part, given);
  for (size_t i = 1; i < found.size() && !wrong; ++i) wrong = difference(part, found.front(), found[i]);
  if (!wrong && numbers != saved_.scalars.end() && *of_leaf && **of_leaf != numbers->second) {
    wrong = {part.fqn, shown(numbers->second), shown(**of_leaf) + " as others in its leaf: use_orig_params loads it"};
  }
  if (wrong) {
    report.mismatched.push_back(*wrong);
    return;
  }
  if (numbers != saved_.scalars.end() && !*of_leaf) *of_leaf = &numbers->second;
  note_loaded(report, part.fqn, found.front());
  given_[part.fqn] = given;
}

std::optional<Mismatch> OptimizerLoader::mismatch(const HeldPart& part, const std::string& given) const {
  for (const std::string& name : saved_.names_of(given)) {
    const std::string stored = state_name(given, name);
    const SourceTensor& tensor = saved_.tensors->tensors().at(stored);
    const std::string here = state_name(part.fqn, name);
    if (tensor.sizes != part.sizes) return Mismatch{here, shown(tensor), shown({tensor.dtype, part.sizes, {}})};
    const std::string lack = lacking(*saved_.tensors, stored, {part.begin, part.end, part.strides});
    if (!lack.empty()) {
      return Mismatch{here, shown(tensor) + " without " + lack,
                      c10::str("elements [", part.begin, ", ", part.end, "), which ", where_, " holds")};
    }
  }
  return std::nullopt;
}

std::vector<GivenName> OptimizerLoader::find(const HeldPart& part) {
  const std::vector<GivenName> found = names_.find(part.names);
  std::vector<GivenName> with_state;
  for (const GivenName& name : found) {
    if (saved_.scalars.count(name.given) > 0) with_state.push_back(name);
  }
  return with_state.empty() ? found : with_state;
}

std::optional<Mismatch> OptimizerLoader::difference(const HeldPart& part, const GivenName& first,
                                                    const GivenName& other) const {
  const auto numbers = saved_.scalars.find(first.given), others = saved_.scalars.find(other.given);
  if (numbers == saved_.scalars.end()) return std::nullopt;  // neither has state
  const std::set<std::string> names = saved_.names_of(first.given);
  if (numbers->second != others->second || names != saved_.names_of(other.given)) {
    return other_values(other.name + "'s state", first.name);
  }
  if (const auto wrong = mismatch(part, other.given)) return wrong;
  for (const std::string& name : names) {
    const std::string one = state_name(first.given, name), second = state_name(other.given, name);
    const auto& tensors = saved_.tensors->tensors();
    if (tensors.at(one).dtype != tensors.at(second).dtype ||
        !saved_.tensors->same_elements(one, second, {part.begin, part.end, part.strides})) {
      return other_values(state_name(other.name, name), first.name);
    }
  }
  return std::nullopt;
}

// Matches the options of the one saved group that contained all parameters of this group.
void OptimizerLoader::match_options(size_t group, LoadReport& report) {
  std::map<std::string, std::string> fqns;  // by given name, the name here
  for (const HeldLeaf& leaf : groups_[group]) {
    for (const HeldPart& part : leaf.parts) {
      for (const GivenName& found : names_.find(part.names)) fqns.emplace(found.given, part.fqn);
    }
  }
  std::map<const ParameterGroup*, std::string> groups;  // each with one of its parameters
  for (const ParameterGroup& saved : saved_.groups) {
    for (const std::string& given : saved.parameters) {
      if (const auto found = fqns.find(given); found != fqns.end()) groups.emplace(&saved, found->second);
    }
  }
  if (groups.empty()) return;
  if (!with_options_) {
    for (const auto& [saved, fqn] : groups) takes(group, saved->options, report);
    return;
  }
  if (groups.size() == 1) {
    const Numbers& options = groups.begin()->first->options;
    if (takes(group, options, report)) options_[group] = &options;
    return;
  }
  report.mismatched.push_back({c10::str("parameter group ", group),
                               "several: '" + groups.begin()->second + "' and '" + std::next(groups.begin())->second +
                                   "' were in different parameter groups",
                               "one"});
}

bool OptimizerLoader::takes(size_t group, const Numbers& options, LoadReport& report) const {
  const std::string refused = refusal_of(optimizer_, group, options);
  if (refused.empty()) return true;
  report.mismatched.push_back({c10::str("parameter group ", group), refused, shown(optimizer_.options(group))});
  return false;
}

// ---------------------------------------------------------------- loading

void OptimizerLoader::load(const LoadReport& agreed) {
  const at::NoGradGuard no_grad;
  const std::set<std::string> loaded(agreed.loaded.begin(), agreed.loaded.end());
  const auto is_loaded = [&](const HeldPart& part) { return loaded.count(part.fqn) > 0; };
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (const HeldLeaf& leaf : groups_[group]) {
      if (!std::any_of(leaf.parts.begin(), leaf.parts.end(), is_loaded)) continue;
      const std::optional<LeafState> state = read(leaf, loaded);
      // State of a leaf without elements is never saved. Adagrad, which creates its state in the constructor, cannot
      // work without it.
      if (state || leaf.leaf.numel() > 0) optimizer_.set_leaf(leaf.leaf, state);
    }
    if (const auto found = options_.find(group); found != options_.end()) optimizer_.set_options(group, *found->second);
  }
}

std::optional<LeafState> OptimizerLoader::read(const HeldLeaf& leaf, const std::set<std::string>& loaded) const {
  const std::optional<LeafState> before = optimizer_.leaf(leaf.leaf);
  std::optional<LeafState> state;
  for (const HeldPart& part : leaf.parts) {
    if (loaded.count(part.fqn) == 0) continue;
    const auto numbers = saved_.scalars.find(given_.at(part.fqn));
    if (numbers == saved_.scalars.end()) continue;
    if (!state) state.emplace().scalars = numbers->second;
    read_tensors(leaf, part, before, *state);
  }
  return state;
}

void OptimizerLoader::read_tensors(const HeldLeaf& leaf, const HeldPart& part, const std::optional<LeafState>& before,
                                   LeafState& state) const {
  const std::string& given = given_.at(part.fqn);
  for (const std::string& name : saved_.names_of(given)) {
    const std::string stored = state_name(given, name);
    at::Tensor& tensor = state.tensors[name];
    if (!tensor.defined()) tensor = tensor_for(leaf.leaf, saved_.tensors->tensors().at(stored).dtype, before, name);
    read_elements(*saved_.tensors, stored, {part.begin, part.end, part.strides},
                  tensor.view(-1).narrow(0, part.leaf_offset, part.numel()));
  }
}

}  // namespace fsdp::state
