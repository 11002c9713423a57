#include "fsdp/grad_scaler.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "engine/engine.h"
#include "optim/agree.h"

namespace fsdp {
namespace {

using Fp32 = std::numeric_limits<float>;

void check_scale(const char* name, double scale) {
  TORCH_CHECK(scale >= Fp32::min() && scale <= Fp32::max(), "fsdp: ShardedGradScaler: ", name, " is ", scale,
              ", but must be a normal positive number of fp32");
}

void check_state(const char* scale_name, const GradScalerState& state) {
  check_scale(scale_name, state.scale);
  TORCH_CHECK(std::isfinite(state.growth_factor) && state.growth_factor > 1,
              "fsdp: ShardedGradScaler: growth_factor is ", state.growth_factor, ", but must be finite and above 1");
  TORCH_CHECK(state.backoff_factor > 0 && state.backoff_factor < 1, "fsdp: ShardedGradScaler: backoff_factor is ",
              state.backoff_factor, ", but must be between 0 and 1");
  TORCH_CHECK(state.growth_interval >= 1, "fsdp: ShardedGradScaler: growth_interval is ", state.growth_interval,
              ", but must be at least 1");
  TORCH_CHECK(state.growth_tracker >= 0, "fsdp: ShardedGradScaler: growth_tracker is ", state.growth_tracker,
              ", but must not be negative");
}

double in_fp32(double value) { return static_cast<float>(value); }

// Multiplies this rank's gradients in place by 1 / `scale`. Returns whether any of them is not finite.
bool unscale_gradients(ShardedModule& sharded, double scale) {
  const at::NoGradGuard no_grad;
  sharded.engine().passes().settle_gradients();
  std::map<at::ScalarType, std::vector<at::Tensor>> gradients;  // the kernel requires one dtype
  for (const at::Tensor& leaf : sharded.parameters()) {
    if (const at::Tensor& gradient = leaf.grad(); gradient.defined() && gradient.numel() > 0) {
      gradients[gradient.scalar_type()].push_back(gradient);
    }
  }
  const auto options = at::TensorOptions(at::kFloat).device(sharded.engine().options().memory.shard_device());
  const at::Tensor inverse = at::full({}, 1.0 / scale, options);
  at::Tensor found = at::zeros({}, options);
  for (auto& [dtype, tensors] : gradients) at::_amp_foreach_non_finite_check_and_unscale_(tensors, found, inverse);
  return found.item<float>() != 0;
}

void check_none_stepped(ShardedModule& sharded) {
  TORCH_CHECK(
      !sharded.engine().gradients().settings().unit_reduced_hook,
      "fsdp: ShardedGradScaler: optimizers that step inside "
      "backward (set_unit_reduced_hook) have used gradients that were still scaled; remove that hook or the scaler");
}

}  // namespace

ShardedGradScaler::ShardedGradScaler(const GradScalerOptions& options) : enabled_(options.enabled) {
  state_ = {options.init_scale, options.growth_factor, options.backoff_factor, options.growth_interval, 0};
  check_state("init_scale", state_);
  state_.scale = in_fp32(state_.scale);
}

at::Tensor ShardedGradScaler::scale(const at::Tensor& outputs) {
  if (!enabled_) return outputs;
  TORCH_CHECK(outputs.defined() && outputs.is_floating_point(), "fsdp: ShardedGradScaler: scale takes tensors of ",
              "floating dtypes, not ", outputs.defined() ? c10::toString(outputs.scalar_type()) : "an undefined one");
  scaled_ = true;
  const at::Tensor factor = at::full({}, state_.scale, outputs.options().dtype(at::kFloat).requires_grad(false));
  return (outputs * factor).to(outputs.scalar_type());
}

std::vector<at::Tensor> ShardedGradScaler::scale(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& output : outputs) result.push_back(scale(output));
  return result;
}

void ShardedGradScaler::unscale_(ShardedModule& sharded, bool others_not_finite) {
  if (!enabled_) return;
  unscale(sharded, model_to_check(sharded, "unscale_"), others_not_finite);
}

void ShardedGradScaler::unscale_(const std::vector<ShardedModule*>& stages, Communicator& pipeline) {
  if (!enabled_) return;
  std::vector<PerModel*> states;
  for (ShardedModule* stage : stages) states.push_back(&unchecked_model(*stage, "unscale_"));
  bool found_inf = false;
  for (size_t i = 0; i < stages.size(); ++i) {
    unscale(*stages[i], *states[i], false);
    found_inf |= states[i]->found_inf;
  }
  const std::string own{scaled_ ? '1' : '0', found_inf ? '1' : '0'};
  for (const std::string& theirs : pipeline.all_gather_bytes(own, {"ShardedGradScaler", 0, Pass::kUser})) {
    scaled_ |= theirs.at(0) == '1';
    found_inf |= theirs.at(1) == '1';
  }
  check_scaled("unscale_");
  for (PerModel* state : states) state->found_inf = found_inf;
}

void ShardedGradScaler::unscale(ShardedModule& sharded, PerModel& state, bool others_not_finite) {
  check_none_stepped(sharded);
  const bool mine = unscale_gradients(sharded, state_.scale) || others_not_finite;
  state = {Stage::kChecked, true};  // if the exchange fails, no step may use gradients that are already unscaled
  state.found_inf = optim::any_rank(sharded.engine(), mine, "ShardedGradScaler");
}

double ShardedGradScaler::unscaled_grad_norm(ShardedModule& sharded, bool others_not_finite) {
  if (!enabled_) return sharded.reduced_grad_norm().item<double>();
  PerModel& state = model_to_check(sharded, "unscaled_grad_norm");
  check_none_stepped(sharded);
  const double norm = sharded.reduced_grad_norm().item<double>();
  state = {Stage::kChecked, true};
  state.found_inf = optim::any_rank(sharded.engine(), !std::isfinite(norm) || others_not_finite, "ShardedGradScaler");
  return norm / state_.scale;
}

bool ShardedGradScaler::step(ShardedModule& sharded, const std::function<void()>& step_optimizer) {
  if (!enabled_) {
    step_optimizer();
    return true;
  }
  check_scaled("step");
  PerModel& state = model(sharded);
  TORCH_CHECK(state.stage != Stage::kStepped,
              "fsdp: ShardedGradScaler: step() has already been called on this model since the last update()");
  if (state.stage == Stage::kReady) unscale(sharded, state, false);
  const bool good = !state.found_inf;
  if (good) step_optimizer();
  state.stage = Stage::kStepped;
  return good;
}

void ShardedGradScaler::update() {
  if (!enabled_) return;
  check_scaled("update");
  bool recorded = false, found_inf = false;
  for (const auto& [engine, state] : models_) {
    recorded |= state.stage != Stage::kReady;
    found_inf |= state.found_inf;
  }
  TORCH_CHECK(recorded, "fsdp: ShardedGradScaler: no gradients were checked since the last update(): call step()");
  found_inf ? back_off() : grow();
  models_.clear();
}

void ShardedGradScaler::update(double new_scale) {
  if (!enabled_) return;
  check_scaled("update");
  check_scale("new_scale", new_scale);
  state_.scale = in_fp32(new_scale);
  models_.clear();
}

void ShardedGradScaler::back_off() {
  state_.scale = std::max<double>(in_fp32(state_.scale * state_.backoff_factor), Fp32::min());
  state_.growth_tracker = 0;
}

void ShardedGradScaler::grow() {
  if (++state_.growth_tracker < state_.growth_interval) return;
  const double grown = state_.scale * state_.growth_factor;
  state_.scale = grown <= Fp32::max() ? in_fp32(grown) : state_.scale;
  state_.growth_tracker = 0;
}

std::optional<GradScalerState> ShardedGradScaler::state_dict() const {
  return enabled_ ? std::optional(state_) : std::nullopt;
}

void ShardedGradScaler::load_state_dict(const std::optional<GradScalerState>& state) {
  if (!enabled_) return;
  TORCH_CHECK(state, "fsdp: ShardedGradScaler: the state is empty: was it saved by a scaler that is not enabled?");
  check_state("scale", *state);
  state_ = *state;
  state_.scale = in_fp32(state_.scale);
}

void ShardedGradScaler::check_scaled(const char* what) const {
  TORCH_CHECK(scaled_, "fsdp: ShardedGradScaler: ", what,
              "() was called before scale(): multiply the loss by the scale ", "with scale() before backward");
}

ShardedGradScaler::PerModel& ShardedGradScaler::model_to_check(ShardedModule& sharded, const char* what) {
  check_scaled(what);
  return unchecked_model(sharded, what);
}

ShardedGradScaler::PerModel& ShardedGradScaler::unchecked_model(ShardedModule& sharded, const char* what) {
  PerModel& state = model(sharded);
  TORCH_CHECK(state.stage != Stage::kChecked, "fsdp: ShardedGradScaler: ", what,
              "(): unscale_() or unscaled_grad_norm() has already been called on this model since the last update()");
  TORCH_CHECK(state.stage != Stage::kStepped, "fsdp: ShardedGradScaler: ", what, "() is being called after step()");
  return state;
}

ShardedGradScaler::PerModel& ShardedGradScaler::model(ShardedModule& sharded) {
  return models_[sharded.engine().weak_from_this()];
}

}  // namespace fsdp
