#include "planner/target/provenance.h"

#include <algorithm>
#include <array>

namespace fsdp::planner {
namespace {

constexpr std::array kProvenanceNames = {"specified", "measured", "calibrated", "guess"};

}  // namespace

std::string to_string(Provenance provenance) { return kProvenanceNames.at(static_cast<size_t>(provenance)); }

std::optional<Provenance> find_provenance(const std::string& text) {
  const auto found = std::find(kProvenanceNames.begin(), kProvenanceNames.end(), text);
  if (found == kProvenanceNames.end()) return std::nullopt;
  return static_cast<Provenance>(found - kProvenanceNames.begin());
}

std::vector<std::string> provenance_names() { return {kProvenanceNames.begin(), kProvenanceNames.end()}; }

}  // namespace fsdp::planner
