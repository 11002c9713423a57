// ShardedGradScaler: dynamic loss scaling for training in fp16, over shards.
//
//   fsdp::ShardedGradScaler scaler;
//   for (…) { sharded->zero_grad(); scaler.scale(model->loss(batch)).backward();
//             scaler.unscale_(*sharded); sharded->clip_grad_norm_(1.0);   // optional
//             scaler.step(*sharded, optimizer); scaler.update(); }
//
// The semantics are those of torch.amp.GradScaler: the loss is multiplied by a scale so that small gradients survive
// fp16; gradients are divided by it before the optimizer sees them; a step in which any of them is not finite is
// skipped and lowers the scale, many good steps in a row raise it. What is new is that all ranks decide alike,
// whichever rank holds the number that is not finite, and also when a rank holds nothing or has no gradients.
//
// Where torch keeps a state for each optimizer, this keeps one for each tree of ShardedModules: several optimizers of
// one model step in one `step_optimizer`. One scaler may serve several models; a step is skipped for a model with
// numbers that are not finite, and update() lowers the scale if any model had them.
//
// Threads: one thread uses a scaler. All ranks make the same calls in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/fully_shard.h"

namespace fsdp {

// Values out of range are errors of the constructor.
struct GradScalerOptions {
  double init_scale = 65536.0;     // kept in fp32, in its range of normal positive numbers
  double growth_factor = 2.0;      // finite, above 1
  double backoff_factor = 0.5;     // between 0 and 1, both excluded
  int64_t growth_interval = 2000;  // steps without back-off between two growths; at least 1
  // false: scale() returns what it is given, step() always steps, everything else does nothing.
  bool enabled = true;
};

// What a checkpoint keeps. The same on all ranks.
struct GradScalerState {
  double scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  int64_t growth_tracker = 0;  // good steps since the last growth or back-off
};

class ShardedGradScaler {
 public:
  explicit ShardedGradScaler(const GradScalerOptions& options = {});

  // Outputs times the scale, in their own dtype and with their graph. Floating dtypes only. Touches no other rank.
  at::Tensor scale(const at::Tensor& outputs);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  // Multiplies the gradients of the shards by 1 / scale (formed in fp64, rounded to fp32) in place, whatever their
  // floating dtype, and finds out whether any of them on any rank is infinite or NaN. For those who look at gradients
  // before the step, once all of them are in; step() does it otherwise. `others_not_finite`: whether this rank found
  // such numbers in gradients that are not of the shards, which then count as these do. Collective: one exchange of a
  // byte.
  // Errors: scale() was never called, or unscale_ or step of this model came before without update().
  void unscale_(ShardedModule& sharded, bool others_not_finite = false);

  // Instead of unscale_(), for those who divide by scale() in the optimizer's own pass, as FusedAdamW's
  // step(1 / scale()) does: writes no gradient, and reads none that reductions have seen. Returns the norm of the
  // gradients divided by scale(), over all ranks: ShardedModule::reduced_grad_norm(). A norm that is not finite counts
  // as gradients that are not. `step_optimizer` of step() finds gradients as backward left them. Disabled: the norm
  // alone. `others_not_finite`, collective, errors: as those of unscale_, which may not be called as well.
  double unscaled_grad_norm(ShardedModule& sharded, bool others_not_finite = false);

  // Calls `step_optimizer` unless a gradient of the model on any rank is not finite. Unscales first, which is
  // collective, if neither unscale_ nor unscaled_grad_norm was called. Returns whether it stepped, the same on all
  // ranks.
  // Errors: scale() was never called, or step of this model came before without update().
  bool step(ShardedModule& sharded, const std::function<void()>& step_optimizer);
  // The same with an object that has step(): an optimizer of torch::optim, say.
  template <typename Optimizer>
  requires requires(Optimizer& optimizer) { optimizer.step(); }
  bool step(ShardedModule& sharded, Optimizer& optimizer) {
    return step(sharded, std::function<void()>([&optimizer] { optimizer.step(); }));
  }

  // Ends an iteration, after the steps of all models. Any model with gradients that were not finite: scale becomes
  // scale * backoff_factor, and the growth tracker 0. Otherwise the tracker counts one up, and at growth_interval scale
  // becomes scale * growth_factor and the tracker 0. The scale stays within the normal numbers of fp32: growth that
  // would leave them does not happen, back-off stops at the smallest. Touches no other rank.
  // Errors: scale() was never called, or no model was unscaled since the last update().
  void update();
  // Ends an iteration with this scale instead, the same on all ranks; the tracker stays as it is. Valid without a step.
  void update(double new_scale);

  // The current scale; 1 when disabled.
  double scale() const { return enabled_ ? state_.scale : 1.0; }
  int64_t growth_tracker() const { return enabled_ ? state_.growth_tracker : 0; }
  bool enabled() const { return enabled_; }

  // To be saved after update(). Empty when disabled.
  std::optional<GradScalerState> state_dict() const;
  // Does nothing when disabled. Errors: an empty state, or values out of range.
  void load_state_dict(const std::optional<GradScalerState>& state);

 private:
  enum class Stage : uint8_t { kReady, kChecked, kStepped };
  struct PerModel {
    Stage stage = Stage::kReady;
    bool found_inf = false;
  };

  void check_scaled(const char* what) const;
  PerModel& model(ShardedModule& sharded);
  PerModel& model_to_check(ShardedModule& sharded, const char* what);
  void unscale(ShardedModule& sharded, PerModel& model, bool others_not_finite);
  void back_off();
  void grow();

  bool enabled_;
  bool scaled_ = false;  // whether scale() was ever called
  GradScalerState state_;
  std::map<std::weak_ptr<Engine>, PerModel, std::owner_less<>> models_;  // of this iteration
};

}  // namespace fsdp
