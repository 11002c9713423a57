#include "fuzz_training/one_process_run.h"

#include <cmath>

#include "fuzz_training/actions.h"
#include "fuzz_training/program.h"

namespace fsdp::fuzz {
namespace {

std::map<std::string, at::Tensor> copy_buffers(const NetImpl& net) {
  std::map<std::string, at::Tensor> copies;
  for (const auto& entry : net.named_buffers()) copies[entry.key()] = entry.value().clone();
  return copies;
}

// Returns the case without activation checkpointing, because the reference uses no feature of the library.
Case plain(Case training) {
  for_each_layer(training.model.layers, [](Layer& layer, int) { layer.checkpoint = false; });
  return training;
}

std::vector<at::Tensor> tensors_of(const std::vector<std::pair<std::string, at::Tensor>>& named) {
  std::vector<at::Tensor> result;
  for (const auto& [name, tensor] : named) result.push_back(tensor);
  return result;
}

}  // namespace

OneProcessRun::OneProcessRun(const Case& training, const LeafNames& leaves)
    : training_(plain(training)),
      leaves_(leaves),
      net_(training_.model),
      parameters_(sharded_parameters_of(*net_)),
      optimizer_(make_optimizer(training_, tensors_of(parameters_))),
      state_(state_of(*optimizer_)),
      ranks_(training_.ranks) {
  buffers_.assign(ranks_, copy_buffers(*net_));
  expected_.of_rank.resize(std::max(training_.ranks, training_.ranks_later));
}

void OneProcessRun::move_to(int64_t ranks) {
  ranks_ = ranks;
  const auto first = buffers_[0];
  buffers_.clear();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    auto& copies = buffers_.emplace_back();
    for (const auto& [name, buffer] : first) copies[name] = buffer.clone();
  }
  zero("sharded");
}

void OneProcessRun::as_each_rank(const std::function<void(int64_t rank)>& body) {
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    {
      torch::NoGradGuard no_grad;
      for (auto& entry : net_->named_buffers()) entry.value().set_data(buffers_[rank].at(entry.key()).clone());
    }
    body(rank);
    buffers_[rank] = copy_buffers(*net_);
  }
}

void OneProcessRun::run_step(int64_t step) {
  step_ = step;
  const Step& plan = training_.steps[step];
  zero(plan.zero);
  run_actions("before", plan.before);
  for (size_t pass = 0; pass < plan.passes.size(); ++pass) run_pass(pass);
  complete_leaves();
  note_gradients();
  run_actions("ready", plan.ready);
  clip(plan);
  if (plan.optimize) optimizer_->step();
  note_parameters();
  as_each_rank([&](int64_t rank) { note_buffers(*net_, when(), expected_.of_rank[rank]); });
  run_actions("after", plan.after);
}

void OneProcessRun::zero(const std::string& how) {
  if (how == "skip") return;
  optimizer_->zero_grad(how != "sharded_zeros" && how != "module_zeros");
}

// Like ranks, completes the forwards of all ranks before the actions and the backward.
void OneProcessRun::run_pass(int64_t pass) {
  const Pass& plan = training_.steps[step_].passes[pass];
  std::vector<std::unique_ptr<RankPass>> runs;
  as_each_rank([&](int64_t rank) {
    const Place place{rank, step_, pass};
    runs.push_back(std::make_unique<RankPass>(training_, *net_, place, expected_.of_rank[rank]));
  });
  run_actions("pass " + std::to_string(pass), plan.between);
  const int64_t divisor = training_.sharding.divide > 0 ? training_.sharding.divide : ranks_;
  for (const auto& run : runs) {
    run->finish(
        [&](const at::Tensor& loss, bool retain_graph) { (loss / double(divisor)).backward({}, retain_graph); });
  }
}

void OneProcessRun::run_actions(const std::string& where, const std::vector<std::string>& actions) {
  for (size_t i = 0; i < actions.size(); ++i) {
    action_ = when() + ", " + where + ", action " + std::to_string(i) + " (" + actions[i] + ")";
    action_of(actions[i]).in_one_process(*this);
  }
}

void OneProcessRun::complete_leaves() {
  std::map<std::string, at::Tensor> by_name(parameters_.begin(), parameters_.end());
  for (const auto& names : leaves_) {
    bool any = false;
    for (const auto& name : names) any = any || by_name.at(name).grad().defined();
    for (const auto& name : names) {
      at::Tensor& parameter = by_name.at(name);
      if (any && !parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    }
  }
}

double OneProcessRun::gradient_norm(double type) const {
  double sum = 0, largest = 0;
  for (const auto& [name, parameter] : parameters_) {
    if (!parameter.grad().defined() || parameter.numel() == 0) continue;
    const at::Tensor sizes = parameter.grad().abs();
    sum += sizes.pow(type).sum().item<double>();
    largest = std::max(largest, sizes.max().item<double>());
  }
  return std::isinf(type) ? largest : std::pow(sum, 1 / type);
}

void OneProcessRun::clip(const Step& step) {
  if (step.clip <= 0) return;
  const double norm = gradient_norm(step.clip_type);
  expected_.of_all.add(when() + ": norm", at::scalar_tensor(norm, at::kDouble));
  const double factor = step.clip / (norm + 1e-6);
  if (factor >= 1) return;
  for (const auto& [name, parameter] : parameters_) {
    if (parameter.grad().defined()) parameter.grad().mul_(factor);
  }
}

void OneProcessRun::note_gradients() {
  for (const auto& [name, parameter] : parameters_) {
    expected_.of_all.add(when() + ": gradient of " + name, parameter.grad());
  }
}

void OneProcessRun::note_parameters() {
  for (const auto& [name, parameter] : parameters_) {
    expected_.of_all.add(when() + ": parameter " + name, parameter);
    const auto state = state_->leaf(parameter);
    if (!state) continue;
    for (const auto& [key, tensor] : state->tensors) {
      expected_.of_all.add(when() + ": state " + key + " of " + name, tensor);
    }
    for (const auto& [key, number] : state->scalars) {
      expected_.of_all.add(when() + ": state " + key + " of " + name, at::scalar_tensor(number, at::kDouble));
    }
  }
}

void OneProcessRun::descend() {
  const torch::NoGradGuard no_grad;
  for (auto& [name, parameter] : parameters_) {
    if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 1.0 / 64);
  }
}

void OneProcessRun::note_whole_parameters(const std::string& when) {
  for (const auto& [name, parameter] : parameters_) expected_.of_all.add(when + ": whole parameter " + name, parameter);
}

}  // namespace fsdp::fuzz
