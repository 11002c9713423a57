#include "engine/requires_grad.h"

#include <algorithm>

#include "engine/capture_hooks.h"
#include "engine/unit.h"

namespace fsdp::engine {
namespace {

void check_may_follow(Unit& unit, size_t index) {
  const flat::FlatParameter& flat = *unit.flat_parameters()[index];
  const std::string& first = flat.parameters().front().fqn;
  const FlatGradient* gradient = unit.gradients().kept(index);
  TORCH_CHECK(!gradient || !gradient->accumulating(), "fsdp: ", unit.where(),
              ": requires_grad cannot be changed while gradients are accumulated without communication (parameter '",
              first, "' or another of its FlatParameter). Change it after the backward that reduces them");
  for (int64_t i = 1; i < flat.layout().num_parameters() && !unit.context().options.use_orig_params; ++i) {
    TORCH_CHECK(flat.wanted_requires_grad(i) == flat.wanted_requires_grad(0), "fsdp: ", unit.where(),
                ": requires_grad of parameter '", flat.parameters()[static_cast<size_t>(i)].fqn,
                "' was changed and differs from that of '", first,
                "', with which it shares a leaf. Change all parameters of '", unit.names().flat_parameter(index),
                "', or set Options::use_orig_params");
  }
}

void follow(Unit& unit, size_t index) {
  flat::FlatParameter& flat = *unit.flat_parameters()[index];
  flat.follow_requires_grad();
  if (flat.requires_grad()) unit.gradients().make_missing(index);
  for (flat::ShardedParameter& parameter : flat.parameters()) {
    if (parameter.requires_grad && !parameter.capture_hook) hook_capture(parameter);
  }
}

}  // namespace

bool requires_grad_changed(const Unit& unit) {
  return std::any_of(unit.flat_parameters().begin(), unit.flat_parameters().end(),
                     [](const auto& flat) { return flat->requires_grad_changed(); });
}

void follow_requires_grad(Unit& unit) {
  const auto& flats = unit.flat_parameters();
  for (size_t i = 0; i < flats.size(); ++i) {
    if (flats[i]->requires_grad_changed()) check_may_follow(unit, i);
  }
  for (size_t i = 0; i < flats.size(); ++i) {
    if (flats[i]->requires_grad_changed()) follow(unit, i);
  }
}

}  // namespace fsdp::engine
