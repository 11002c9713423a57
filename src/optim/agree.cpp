#include "optim/agree.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/engine.h"

namespace fsdp::optim {

namespace {

bool any_in(Communicator* group, bool mine, const std::string& purpose) {
  if (!group) return mine;
  const std::string yes(1, '\1'), no(1, '\0');
  const auto answers = group->all_gather_bytes(mine ? yes : no, {purpose, 0, Pass::kUser});
  return std::find(answers.begin(), answers.end(), yes) != answers.end();
}

}  // namespace

bool any_rank(engine::Engine& engine, bool mine, const std::string& purpose) {
  const ProcessMesh& mesh = engine.mesh();
  mine = any_in(mesh.parts.get(), mine, purpose);
  if (mesh.world) return any_in(mesh.world.get(), mine, purpose);
  return any_in(mesh.replicate.get(), any_in(mesh.shard.get(), mine, purpose), purpose);
}

std::vector<std::vector<double>> of_all_ranks(Communicator& group, const std::vector<double>& mine,
                                              const std::string& purpose) {
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double));
  std::vector<std::vector<double>> all;
  for (const std::string& theirs : group.all_gather_bytes(bytes, {purpose, 0, Pass::kUser})) {
    TORCH_CHECK(theirs.size() == bytes.size(), "fsdp: ", purpose, ": ranks hold different numbers of parameters");
    all.emplace_back(mine.size());
    std::memcpy(all.back().data(), theirs.data(), theirs.size());
  }
  return all;
}

NormGroups norm_groups(const engine::Unit& unit, const flat::FlatParameter& flat) {
  return {unit.groups().shard.get(), flat.is_part() ? unit.context().options.mesh.parts.get() : nullptr};
}

namespace {

void add_up_in(Communicator* group, const std::vector<NormSum*>& sums, const std::string& purpose) {
  if (!group || group->size() == 1 || sums.empty()) return;
  std::vector<double> mine;
  for (NormSum* sum : sums) mine.push_back(std::exchange(sum->sum, 0));
  for (const std::vector<double>& theirs : of_all_ranks(*group, mine, purpose)) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i]->merge(theirs[i]);
  }
}

}  // namespace

void add_up(const NormGroups& groups, const std::vector<NormSum*>& sums, const std::string& purpose) {
  add_up_in(groups.shards, sums, purpose);
  add_up_in(groups.parts, sums, purpose);
}

}  // namespace fsdp::optim
