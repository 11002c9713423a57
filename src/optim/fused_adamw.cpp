#include "optim/fused_adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/allocation_tag.h"
#include "optim/named_state.h"
#include "optim/one_group_state.h"
#include "torch_seams/shard_version.h"

namespace fsdp::optim {

FusedAdamW::FusedAdamW(std::vector<at::Tensor> parameters, const FusedAdamWOptions& options)
    : options_(options), parameters_(std::move(parameters)), states_(parameters_.size()) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& p = parameters_[i];
    TORCH_CHECK(p.is_leaf() && p.is_contiguous() && p.is_floating_point(), "FusedAdamW: parameter ", i,
                " must be a leaf, contiguous, and of a floating dtype, but has sizes ", p.sizes(), " and dtype ",
                p.scalar_type());
  }
}

void FusedAdamW::step(double gradient_scale) {
  const at::NoGradGuard no_grad;
  // The kernel requires tensors of one device and dtype.
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, c10::ScalarType>, Batch> batches;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    if (!parameter.grad().defined()) continue;
    const c10::Device device = parameter.device();
    Batch& batch = batches[{device.type(), device.index(), parameter.scalar_type()}];
    add(batch, i);
    if (part_done_ && batch.nbytes >= part_nbytes_) {
      update(std::exchange(batch, {}), gradient_scale);
      part_done_();
    }
  }
  for (auto& [key, batch] : batches) {
    if (!batch.parameters.empty()) update(std::move(batch), gradient_scale);
  }
  if (part_done_) part_done_();
}

void FusedAdamW::after_each_part(std::function<void()> done, int64_t nbytes) {
  part_done_ = std::move(done);
  part_nbytes_ = nbytes;
}

void FusedAdamW::add(Batch& batch, size_t index) {
  const at::Tensor& parameter = parameters_[index];
  State& state = states_[index];
  if (!state.steps.defined()) {
    base::AllocationTag tag(base::AllocationPurpose::kOptimizerState);
    state = {at::zeros({}, parameter.options().dtype(at::kFloat)), at::zeros_like(parameter),
             at::zeros_like(parameter)};
  }
  batch.parameters.push_back(parameter);
  batch.gradients.push_back(parameter.grad().to(parameter.scalar_type()));  // casts only if the dtypes differ
  batch.means.push_back(state.mean);
  batch.square_means.push_back(state.square_mean);
  batch.steps.push_back(state.steps);
  batch.nbytes += static_cast<int64_t>(parameter.nbytes());
}

class FusedAdamW::Named final : public OneGroupState {
 public:
  explicit Named(FusedAdamW& optimizer) : OneGroupState(kName, optimizer.parameters_), optimizer_(optimizer) {}

  std::optional<LeafState> leaf(const at::Tensor& leaf) const override {
    const std::optional<size_t> at = position(leaf);
    if (!at || !optimizer_.states_[*at].steps.defined()) return std::nullopt;
    const State& state = optimizer_.states_[*at];
    return LeafState{{{"exp_avg", state.mean}, {"exp_avg_sq", state.square_mean}},
                     {{"step", state.steps.item<double>()}}};
  }

  void set_leaf(const at::Tensor& leaf, const std::optional<LeafState>& given) override {
    State& state = optimizer_.states_[own_position(leaf)];
    if (!given) {
      state = {};
      return;
    }
    state = taken(leaf, *given);
  }

  void check_leaf(const at::Tensor& leaf, const LeafState& given) const override { taken(leaf, given); }

  std::map<std::string, double> options(size_t group) const override {
    check_group(group);
    const FusedAdamWOptions& options = optimizer_.options_;
    return {{"lr", options.learning_rate},
            {"beta1", options.beta1},
            {"beta2", options.beta2},
            {"eps", options.epsilon},
            {"weight_decay", options.weight_decay},
            {"amsgrad", 0.0},
            {"decoupled_weight_decay", 1.0}};
  }

  void set_options(size_t group, const std::map<std::string, double>& given) override {
    check_group(group);
    optimizer_.options_ = taken(given);
  }

  void check_options(size_t group, const std::map<std::string, double>& given) const override {
    check_group(group);
    taken(given);
  }

 private:
  static constexpr const char* kName = "FusedAdamW";

  static State taken(const at::Tensor& leaf, const LeafState& given) {
    NamedState named(kName, leaf, given);
    State state{at::full({}, named.take_scalar("step"), leaf.options().dtype(at::kFloat).requires_grad(false)),
                named.take_tensor("exp_avg"), named.take_tensor("exp_avg_sq")};
    named.check_all_taken();
    return state;
  }
  static FusedAdamWOptions taken(const std::map<std::string, double>& given) {
    NamedOptions named(kName, given);
    named.take_fixed("amsgrad", 0.0);
    named.take_fixed("decoupled_weight_decay", 1.0);
    const FusedAdamWOptions options{named.take("lr"), named.take("beta1"), named.take("beta2"), named.take("eps"),
                                    named.take("weight_decay")};
    named.check_all_taken();
    return options;
  }

  FusedAdamW& optimizer_;
};

std::unique_ptr<OptimizerState> FusedAdamW::named_state() { return std::make_unique<Named>(*this); }

int64_t FusedAdamW::state_nbytes() const {
  size_t nbytes = 0;
  for (const State& state : states_) {
    for (const at::Tensor& tensor : {state.steps, state.mean, state.square_mean}) {
      nbytes += tensor.defined() ? tensor.nbytes() : 0;
    }
  }
  return static_cast<int64_t>(nbytes);
}

void FusedAdamW::update(Batch batch, double gradient_scale) const {
  std::optional<at::Tensor> divisor;
  if (gradient_scale != 1.0 && batch.parameters.front().scalar_type() == at::kDouble) {
    at::_foreach_mul_(batch.gradients, gradient_scale);  // the kernel's divisor is fp32
  } else if (gradient_scale != 1.0) {
    divisor = at::full({}, 1.0 / gradient_scale, batch.steps.front().options());
  }
  at::_foreach_add_(batch.steps, 1);
  at::_fused_adamw_(batch.parameters, batch.gradients, batch.means, batch.square_means, /*max_exp_avg_sqs=*/{},
                    batch.steps, options_.learning_rate, options_.beta1, options_.beta2, options_.weight_decay,
                    options_.epsilon,
                    /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/divisor, /*found_inf=*/std::nullopt);
  for (const at::Tensor& parameter : batch.parameters) {
    seams::bump_version(parameter);  // the kernel does not, so gathers would miss the write
  }
}

}  // namespace fsdp::optim
