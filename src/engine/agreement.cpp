#include "engine/agreement.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <functional>
#include <sstream>

#include "base/text_digest.h"
#include "engine/unit_tree.h"
#include "schedule/residency.h"
#include "schedule/use_record.h"

namespace fsdp::engine {
namespace {

std::string reshard_text(const std::optional<ReshardAfterForward>& reshard) {
  return !reshard                ? "unset"
         : reshard->group_size() ? c10::str(*reshard->group_size())
         : reshard->on()         ? "true"
                                 : "false";
}

std::string limit_text(size_t max_gathered_units) {
  return max_gathered_units == schedule::kNoLimit ? "none" : std::to_string(max_gathered_units);
}

std::string check_text(const CollectiveCheck& check) {
  return check.level != CollectiveCheckLevel::kSampled
             ? to_string(check.level)
             : c10::str("sampled, the first ", check.first_steps, " steps and every ", check.every);
}

std::string bytes_text(const std::optional<int64_t>& bytes) { return bytes ? std::to_string(*bytes) : "unset"; }

void describe_overlap(std::ostream& out, const OverlapOptions& options) {
  out << "backward_prefetch " << to_string(options.backward_prefetch) << "\n"
      << "forward_prefetch " << (options.forward_prefetch ? "true" : "false") << "\n"
      << "limit of gathered units " << limit_text(options.max_gathered_units) << "\n"
      << "one_communicator " << (options.one_communicator ? "true" : "false") << "\n";
}

void describe_flat(std::ostream& out, const flat::FlatParameter& flat) {
  const flat::FlatDtypes& dtypes = flat.dtypes();
  out << "  flat parameter: dtype " << dtypes.shard << ", compute " << dtypes.compute << ", reduce " << dtypes.reduce
      << ", gradient " << dtypes.gradient << ", sharding factor " << flat.position().factor << "\n";
  for (const flat::ShardedParameter& parameter : flat.parameters()) {
    out << "    parameter '" << parameter.fqn << "' of shape " << at::IntArrayRef(parameter.sizes) << ", strides "
        << at::IntArrayRef(parameter.strides) << ", cut in dimension " << parameter.shard_dim << ", requires_grad "
        << (parameter.requires_grad ? "true" : "false") << "\n";
  }
}

// Returns, from each text, the first line in which they differ.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_a(a), lines_b(b);
  std::string line_a, line_b;
  while (true) {
    bool more_a = static_cast<bool>(std::getline(lines_a, line_a));
    bool more_b = static_cast<bool>(std::getline(lines_b, line_b));
    if (!more_a || !more_b || line_a != line_b) {
      auto trimmed = [](bool more, const std::string& line) {
        return more ? line.substr(std::min(line.find_first_not_of(' '), line.size())) : "(nothing more)";
      };
      return {trimmed(more_a, line_a), trimmed(more_b, line_b)};
    }
  }
}

// Returns the facts as text, one line for each.
std::string describe_sharding(const UnitContext& context, const UnitTree& tree) {
  std::ostringstream out;
  const EngineOptions& tree_options = context.options;
  const ProcessMesh& mesh = tree_options.mesh;
  out << "world size " << mesh.size() << (mesh.is_2d() ? c10::str(", shard groups of ", mesh.shard->size()) : "")
      << "\n"
      << "use_orig_params " << (tree_options.use_orig_params ? "true" : "false") << "\n"
      << "shard_cut " << to_string(tree_options.shard_cut) << "\n"
      << "device type " << context.device().type() << "\n";
  describe_overlap(out, tree_options.overlap);
  out << "collective_check " << check_text(tree_options.collective_check) << "\n";
  for (const auto& unit : tree.units()) {
    const UnitOptions& options = unit->options();
    out << "unit '" << unit->name() << "': " << to_string(options.strategy) << ", reshard_after_forward "
        << reshard_text(options.reshard_after_forward) << ", reshard_after_backward "
        << (unit->stays_after_backward() ? "false" : "true") << ", unshard_in_backward "
        << (unit->switches().unshard_in_backward ? "true" : "false") << "\n";
    if (const PendingCut* pending = unit->pending_cut()) {
      const AutoUnits& cut = pending->record->options();
      out << "  auto_units target_bytes " << bytes_text(cut.target_bytes) << ", memory_bound "
          << bytes_text(cut.memory_bound) << "\n";
    }
    for (const auto& flat : unit->flat_parameters()) describe_flat(out, *flat);
  }
  return out.str();
}

// `where`: this rank. `rank_of`: returns the number among all ranks of a rank in the group.
void compare_over(Communicator& group, const std::string& text, const std::string& where,
                  const std::function<int(int)>& rank_of) {
  if (group.size() == 1) return;
  std::vector<std::string> hashes =
      group.all_gather_bytes(base::digest_of(text), {"digest of the sharding", 0, Pass::kSetup});
  if (std::equal(hashes.begin() + 1, hashes.end(), hashes.begin())) return;
  std::vector<std::string> texts = group.all_gather_bytes(text, {"sharding", 0, Pass::kSetup});
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] != texts[0]) {
      auto [first, other] = first_difference(texts[0], texts[rank]);
      TORCH_CHECK(false, "fsdp: ", where,
                  ": the ranks do not shard the same model in the same way. First difference: rank ", rank_of(0),
                  " has [", first, "], rank ", rank_of(static_cast<int>(rank)), " has [", other, "]");
    }
  }
}

}  // namespace

void compare_sharding(const UnitContext& context, const UnitTree& tree) {
  const ProcessMesh& mesh = context.options.mesh;
  std::string text = describe_sharding(context, tree);
  if (mesh.world) {
    compare_over(*mesh.world, text, mesh.where(), [&](int rank) { return mesh.world->world_rank(rank); });
    return;
  }
  int factor = mesh.shard->size();
  compare_over(*mesh.shard, text, mesh.where(), [&](int rank) { return mesh.replicate->rank() * factor + rank; });
  compare_over(*mesh.replicate, text, mesh.where(), [&](int rank) { return rank * factor + mesh.shard->rank(); });
}

}  // namespace fsdp::engine
