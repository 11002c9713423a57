#include "engine/unit_names.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace fsdp::engine {
namespace {

std::string join_names(const std::vector<AnnotatedModule>& modules) {
  std::vector<std::string> fqns;
  for (const AnnotatedModule& module : modules) {
    // A child module named "root" must not get the name of the root unit.
    fqns.push_back(module.fqn.empty() ? "root" : module.fqn == "root" ? "root." : module.fqn);
  }
  return c10::Join("+", fqns);
}

}  // namespace

std::vector<std::string> UnitOrigin::fqns() const {
  std::vector<std::string> fqns;
  std::transform(modules.begin(), modules.end(), std::back_inserter(fqns),
                 [](const auto& module) { return module.fqn; });
  return fqns;
}

UnitNames::UnitNames(UnitOrigin origin) : origin_(std::move(origin)), unit_(join_names(origin_.modules)) {}

std::string UnitNames::flat_parameter(size_t index) const {
  return index == 0 ? c10::str(unit_, ".flat_param") : c10::str(unit_, ".flat_param_", index + 1);
}

CollectiveId UnitNames::next_collective(Pass pass, int64_t model) {
  return {model == 1 ? unit_ : c10::str(unit_, " (model ", model, ")"), generations_[static_cast<size_t>(pass)]++,
          pass};
}

void UnitNames::rename_modules(const std::vector<std::string>& fqns) {
  for (size_t i = 0; i < origin_.modules.size(); ++i) origin_.modules[i].fqn = fqns.at(i);
}

void UnitNames::name_unit(const std::string& first_parameter, const std::string& last_parameter) {
  unit_ = !origin_.automatic                  ? join_names(origin_.modules)
          : first_parameter == last_parameter ? first_parameter
                                              : first_parameter + ".." + last_parameter;
}

}  // namespace fsdp::engine
