// ShardedGradScaler: dynamic loss scaling for training in fp16, over shards.
//
//   fsdp::ShardedGradScaler scaler;
//   for (…) { sharded->zero_grad(); scaler.scale(model->loss(batch)).backward();
//             scaler.unscale_(*sharded); sharded->clip_grad_norm_(1.0);   // optional
//             scaler.step(*sharded, optimizer); scaler.update(); }
//
// The semantics are those of torch.amp.GradScaler: the loss is multiplied by a scale so that small gradients survive
// fp16, and gradients are divided by it before the optimizer uses them. A step with any gradient that is not finite is
// skipped and lowers the scale; many good steps in a row raise it. In addition, all ranks make the same decision,
// whichever rank has the non-finite value, and also if a rank holds no elements or has no gradients.
//
// torch keeps a state for each optimizer; this scaler keeps one for each tree of ShardedModules: several optimizers of
// one model step in one `step_optimizer`. One scaler may serve several models. A step is skipped only for a model with
// non-finite gradients, but update() lowers the scale if any model had them.
//
// Threads: one thread uses a scaler. All ranks make the same calls in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "fsdp/fully_shard.h"

namespace fsdp {

// The constructor throws if a value is out of range.
struct GradScalerOptions {
  double init_scale = 65536.0;     // kept in fp32, in its range of normal positive numbers
  double growth_factor = 2.0;      // finite, above 1
  double backoff_factor = 0.5;     // between 0 and 1, both excluded
  int64_t growth_interval = 2000;  // steps without back-off between two growths; at least 1
  // false: scale() returns its argument, step() always steps, and all other functions do nothing.
  bool enabled = true;
};

// The state that a checkpoint stores. The same on all ranks.
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

  // Returns the outputs multiplied by the scale, in their own dtype and with their graph. Floating dtypes only. Does
  // not communicate.
  at::Tensor scale(const at::Tensor& outputs);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  // Multiplies the gradients of the shards by 1 / scale (computed in fp64, rounded to fp32) in place, in any floating
  // dtype, and finds out whether any of them on any rank is infinite or NaN. Call it to use gradients before the step,
  // after all of them were computed; otherwise step() calls it. `others_not_finite`: whether this rank found non-finite
  // values in gradients that do not belong to the shards; they count like gradients of the shards. Collective: one
  // exchange of a byte.
  // Errors: scale() was never called, or unscale_ or step of this model was called before without update().
  void unscale_(ShardedModule& sharded, bool others_not_finite = false);
  // Does the same for the stages of one model that the ranks of a pipeline hold (Pipeline::unscale_). `stages`: those
  // of this rank. All stages get the same answer. It is enough that the rank that computes the loss has called scale().
  // Collective over `pipeline`, too.
  void unscale_(const std::vector<ShardedModule*>& stages, Communicator& pipeline);

  // Replaces unscale_() if the optimizer itself divides by scale(), as FusedAdamW's step(1 / scale()) does. Writes no
  // gradients, and does not read gradients whose norm the reductions computed. Returns the norm of the gradients
  // divided by scale(), over all ranks: ShardedModule::reduced_grad_norm(). A norm that is not finite counts as
  // non-finite gradients. The `step_optimizer` of step() then gets the gradients as backward left them. If the scaler
  // is disabled, this only returns the norm. `others_not_finite`, collective and errors are as in unscale_, which must
  // not be called as well.
  double unscaled_grad_norm(ShardedModule& sharded, bool others_not_finite = false);

  // Calls `step_optimizer` unless a gradient of the model is not finite on any rank. Unscales first, which is
  // collective, if neither unscale_ nor unscaled_grad_norm was called. Returns whether it stepped; the result is the
  // same on all ranks.
  // Errors: scale() was never called, or step of this model was called before without update().
  bool step(ShardedModule& sharded, const std::function<void()>& step_optimizer);
  // Like the above, with an object that has step(), such as an optimizer of torch::optim.
  template <typename Optimizer, typename = decltype(std::declval<Optimizer&>().step())>
  bool step(ShardedModule& sharded, Optimizer& optimizer) {
    return step(sharded, std::function<void()>([&optimizer] { optimizer.step(); }));
  }

  // Ends an iteration, after the steps of all models. If any model had gradients that were not finite, scale becomes
  // scale * backoff_factor and the growth tracker 0. Otherwise the tracker is incremented; at growth_interval, scale
  // becomes scale * growth_factor and the tracker 0. The scale stays within the normal numbers of fp32: it does not
  // grow beyond the largest, and backs off to the smallest at most. Does not communicate.
  // Errors: scale() was never called, or no model was unscaled since the last update().
  void update();
  // Ends an iteration with this scale, which must be the same on all ranks; the tracker is unchanged. Valid without a
  // step.
  void update(double new_scale);

  // The current scale, or 1 if disabled.
  double scale() const { return enabled_ ? state_.scale : 1.0; }
  int64_t growth_tracker() const { return enabled_ ? state_.growth_tracker : 0; }
  bool enabled() const { return enabled_; }

  // The state to save, after update(). Empty if disabled.
  std::optional<GradScalerState> state_dict() const;
  // Restores a saved state. Does nothing if disabled. Errors: an empty state, or values out of range.
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
  PerModel& unchecked_model(ShardedModule& sharded, const char* what);
  void unscale(ShardedModule& sharded, PerModel& model, bool others_not_finite);
  void back_off();
  void grow();

  bool enabled_;
  bool scaled_ = false;  // whether scale() was ever called
  GradScalerState state_;
  std::map<std::weak_ptr<engine::Engine>, PerModel, std::owner_less<>> models_;  // models used in this iteration
};

}  // namespace fsdp
