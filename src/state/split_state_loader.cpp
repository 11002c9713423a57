#include "state/split_state_loader.h"

#include <ATen/core/grad_mode.h>

#include <iterator>

#include "state/split_tensors.h"
#include "torch_seams/shard_version.h"

namespace fsdp::state {

namespace {

std::string renamed(const std::string& name, const Rename& rename) { return rename ? rename(name) : name; }

SourceTensor whole_of(const SplitTensor& tensor) { return {tensor.rows.scalar_type(), tensor.sizes, {}}; }

}  // namespace

SplitStateLoader::SplitStateLoader(const std::vector<SplitTensor>& split, const SavedOptimizer& saved,
                                   const Rename& rename)
    : states_(with_state(split)), saved_(saved), rename_(rename), names_(saved.parameters(), rename) {}

LoadReport SplitStateLoader::match() {
  LoadReport report;
  for (const SplitTensor& state : states_) match(state, report);
  add_unexpected(report);
  return report;
}

void SplitStateLoader::match(const SplitTensor& state, LoadReport& report) {
  const std::vector<GivenName> found = names_.find({state.name});
  const std::string name = full_name(state);
  const std::string stored = found.empty() ? "" : state_name(found.front().given, state.state);
  const auto tensor = saved_.tensors->tensors().find(stored);
  if (tensor == saved_.tensors->tensors().end()) {
    report.missing.push_back(name);
  } else if (const SourceTensor want = whole_of(state);
             tensor->second.dtype != want.dtype || tensor->second.sizes != want.sizes) {
    report.mismatched.push_back({name, shown(tensor->second), shown(want)});
  } else {
    note_loaded(report, name, {name, stored});
    given_[name] = stored;
  }
}

void SplitStateLoader::add_unexpected(LoadReport& report) const {
  std::set<std::string> expected;
  for (const SplitTensor& state : states_) expected.insert(full_name(state));
  for (const auto& [given, numbers] : saved_.scalars) {
    std::set<std::string> states = saved_.names_of(given);
    for (const auto& [name, number] : numbers) states.insert(name);
    for (const std::string& state : states) {
      const std::string name = state_name(renamed(given, rename_), state);
      if (expected.count(name) == 0) report.unexpected.push_back(name);
    }
  }
}

void SplitStateLoader::load(const LoadReport& agreed) {
  const at::NoGradGuard no_grad;
  const std::set<std::string> loaded(agreed.loaded.begin(), agreed.loaded.end());
  for (const SplitTensor& state : states_) {
    if (loaded.count(full_name(state)) == 0) continue;
    const auto [begin, end] = held_elements(state);
    read_elements(*saved_.tensors, given_.at(full_name(state)), {begin, end, {}}, state.rows.detach().view(-1));
    seams::bump_version(state.rows);
  }
}

SavedOptimizer take_saved(SavedOptimizer& saved, const std::set<std::string>& names, const Rename& rename) {
  SavedOptimizer taken{saved.tensors, {}, {}};
  for (auto it = saved.scalars.begin(); it != saved.scalars.end();) {
    const auto next = std::next(it);
    if (names.count(renamed(it->first, rename)) > 0) taken.scalars.insert(saved.scalars.extract(it));
    it = next;
  }
  return taken;
}

}  // namespace fsdp::state
