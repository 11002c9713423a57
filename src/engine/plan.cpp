#include "engine/plan.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <sstream>

#include "engine/engine.h"

namespace fsdp {
namespace {

std::string flag_text(const std::optional<bool>& flag) { return flag ? (*flag ? "true" : "false") : "unset"; }

void describe_flat(std::ostream& out, const FlatParameter& flat) {
  const FlatDtypes& dtypes = flat.dtypes();
  out << "  flat parameter: dtype " << dtypes.shard << ", compute " << dtypes.compute << ", reduce " << dtypes.reduce
      << ", requires_grad " << (flat.requires_grad() ? "true" : "false") << ", sharding factor "
      << flat.position().factor << "\n";
  for (const ShardedParameter& parameter : flat.parameters()) {
    out << "    parameter '" << parameter.fqn << "' of shape " << at::IntArrayRef(parameter.sizes) << ", strides "
        << at::IntArrayRef(parameter.strides) << "\n";
  }
}

std::string hash_of(const std::string& text) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(text.data(), text.size()));
  return std::string(reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest));
}

// The first line in which the texts differ, of each of them.
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

}  // namespace

std::string plan_text(const Engine& engine) {
  std::ostringstream out;
  out << "world size " << engine.communicator().size() << "\n"
      << "use_orig_params " << (engine.options().use_orig_params ? "true" : "false") << "\n"
      << "device type " << engine.options().device.type() << "\n";
  for (const auto& unit : engine.units()) {
    const UnitOptions& options = unit->options();
    out << "unit '" << unit->name() << "': " << to_string(options.strategy) << ", reshard_after_forward "
        << flag_text(options.reshard_after_forward) << "\n";
    for (const auto& flat : unit->flat_parameters()) {
      describe_flat(out, *flat);
    }
  }
  return out.str();
}

void compare_plans(Engine& engine) {
  Communicator& communicator = engine.communicator();
  if (communicator.size() == 1) {
    return;
  }
  std::string text = plan_text(engine);
  std::vector<std::string> hashes = communicator.all_gather_bytes(hash_of(text), {"plan hash", 0, Pass::kSetup});
  bool equal = true;
  for (const std::string& hash : hashes) {
    equal &= hash == hashes.front();
  }
  if (equal) {
    return;
  }
  std::vector<std::string> texts = communicator.all_gather_bytes(text, {"plan", 0, Pass::kSetup});
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] != texts[0]) {
      auto [first, other] = first_difference(texts[0], texts[rank]);
      TORCH_CHECK(false, "fsdp: rank ", communicator.rank(),
                  ": the ranks do not shard the same model in the same way. First difference: rank 0 has [", first,
                  "], rank ", rank, " has [", other, "]");
    }
  }
}

}  // namespace fsdp
