#include "deferred/operator_traits.h"

#include <string>
#include <string_view>
#include <unordered_set>

namespace fsdp::deferred {
namespace {

bool is_fill(const std::string& name) {
  static const std::unordered_set<std::string> names = {"aten::normal_", "aten::uniform_",    "aten::exponential_",
                                                        "aten::cauchy_", "aten::log_normal_", "aten::geometric_",
                                                        "aten::random_", "aten::bernoulli_",  "aten::zero_",
                                                        "aten::fill_",   "aten::copy_"};
  return names.count(name) > 0;
}

bool is_of_the_object(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::requires_grad_", "aten::detach_",
      "aten::retain_grad",    "aten::retains_grad",
      "aten::_version",       "aten::is_leaf",
      "aten::output_nr",      "aten::record_stream",
      "aten::set_data",       "aten::_has_compatible_shallow_copy_type"};
  return names.count(name) > 0;
}

bool needs_only_shapes(std::string_view name) {
  constexpr std::string_view kLike = "_like", kNew = "aten::new_";
  return name.substr(0, kNew.size()) == kNew ||
         (name.size() > kLike.size() && name.substr(name.size() - kLike.size()) == kLike);
}

}  // namespace

OperatorTraits traits_of(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return {.draws = op.hasTag(at::Tag::nondeterministic_seeded),
          .fills = is_fill(name),
          .only_shapes = needs_only_shapes(name),
          .of_the_object = is_of_the_object(name)};
}

}  // namespace fsdp::deferred
