// Diagnostics::describe_units.
#include <c10/util/StringUtil.h>

#include <iomanip>
#include <sstream>

#include "engine/engine.h"
#include "fsdp/diagnostics.h"

namespace fsdp {
namespace {

std::string shape_text(const std::vector<int64_t>& sizes) {
  std::ostringstream out;
  out << at::IntArrayRef(sizes);
  return out.str();
}

// "rank 0 [0, 12), rank 1 [12, 15)"
std::string owners_text(const flat::FlatLayout& layout, int64_t parameter) {
  std::ostringstream out;
  if (layout.sharding_factor() == 1) return "every rank";
  for (int64_t rank = 0; rank < layout.sharding_factor(); ++rank) {
    flat::ParameterSlice part = layout.slice(parameter, rank);
    if (part.numel() > 0) {
      out << (out.tellp() > 0 ? ", " : "") << "rank " << rank << " [" << part.begin << ", " << part.end << ")";
    }
  }
  return out.tellp() > 0 ? out.str() : "no rank (no elements)";
}

void describe_flat(std::ostream& out, const flat::FlatParameter& flat) {
  const flat::FlatLayout& layout = flat.layout();
  out << "  " << (flat.requires_grad() ? "trainable" : "frozen") << " " << c10::toString(flat.dtypes().shard);
  if (flat.dtypes().compute != flat.dtypes().shard) {
    out << " (gathered in " << c10::toString(flat.dtypes().compute) << ")";
  }
  out << (layout.cut() == ShardCut::kRows ? " by rows" : "") << ": " << layout.unpadded_numel() << " elements, padding "
      << layout.padding() << ", shard " << layout.shard_numel() << " x " << layout.sharding_factor() << "\n";
  for (int64_t i = 0; i < layout.num_parameters(); ++i) {
    const flat::ShardedParameter& parameter = flat.parameters()[i];
    out << "    " << parameter.fqn;
    for (const std::string& other : parameter.other_fqns) out << " = " << other;
    out << (flat.requires_grad() && !parameter.requires_grad ? " (frozen)" : "");
    out << " " << shape_text(parameter.sizes) << " at " << layout.offset(i) << ": " << owners_text(layout, i) << "\n";
  }
}

}  // namespace

std::string Diagnostics::describe_units() const {
  std::ostringstream out;
  const engine::Engine& current = engine_->current();
  const ProcessMesh& mesh = current.mesh();
  out << current.units().size() << " units over " << mesh.size() << " ranks, "
      << (mesh.is_2d() ? c10::str(mesh.replicate->size(), " replicas of shard groups of ", mesh.shard->size(), ", ")
                       : "")
      << "use_orig_params " << (current.options().use_orig_params ? "true" : "false") << "\n";
  for (const auto& unit : current.units()) {
    out << "unit '" << unit->name() << "' " << to_string(unit->options().strategy) << (unit->is_root() ? " (root)" : "")
        << (unit->pending_cut() ? ", to be cut with others" : "")
        << (unit->stays_gathered() ? ", gathered from forward to backward" : "") << "\n";
    for (const auto& flat : unit->flat_parameters()) describe_flat(out, *flat);
  }
  return out.str();
}

}  // namespace fsdp
