#include "fuzz_training/program.h"

#include <stdexcept>

namespace fsdp::fuzz {
namespace {

torch::Tensor batch_of(const Model& model, const Place& place, int64_t number) {
  const double phase = 1.3 * place.rank + 2.9 * place.step + 0.4 * place.pass + 5.1 * number;
  return torch::sin(torch::arange(model.batch * model.width, at::kDouble) * 0.7 + phase)
      .view({model.batch, model.width});
}

Call call_of(const Model& model, const Place& place, int64_t number) {
  torch::Tensor ids = torch::arange(model.batch) * 3 + place.rank + 2 * place.step + number;
  return {place.rank, place.step, ids};
}

}  // namespace

RankPass::RankPass(const Case& training, NetImpl& net, const Place& place, Record& record)
    : pass_(training.steps[place.step].passes[place.pass]),
      training_(training),
      net_(net),
      place_(place),
      record_(record) {
  for (int64_t number = 0; number < pass_.forwards; ++number) losses_.push_back(loss_of(number));
}

torch::Tensor RankPass::loss_of(int64_t number) {
  const std::string name = place_.name() + ", forward " + std::to_string(number);
  torch::Tensor x = batch_of(training_.model, place_, number);
  x.set_requires_grad(pass_.backward == "penalty");
  torch::Tensor y = net_.forward(x, call_of(training_.model, place_, number));
  record_.add(name + ": output", y);
  torch::Tensor loss = (y * batch_of(training_.model, place_, number + 7)).sum() + y.pow(2).mean();
  if (pass_.backward == "penalty") {
    auto gradient = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    loss = loss + 0.5 * gradient.pow(2).sum();
  }
  const auto parameters = trainable_parameters_of(net_);
  for (const auto& parameter : parameters) {
    if (pass_.outside == "no") break;
    loss = loss + 0.05 * parameter.pow(2).sum();
    if (pass_.outside == "first") break;
  }
  record_.add(name + ": loss", loss);
  return loss;
}

void RankPass::note_own_gradients() {
  const auto parameters = trainable_parameters_of(net_);
  const auto gradients = torch::autograd::grad({losses_[0]}, parameters, {}, /*retain_graph=*/true,
                                               /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < gradients.size(); ++i) {
    record_.add(place_.name() + ": own gradient " + std::to_string(i), gradients[i]);
  }
}

void RankPass::finish(const Backward& backward) {
  if (pass_.backward == "grad") note_own_gradients();
  if (pass_.backward == "each") {
    for (const auto& loss : losses_) backward(loss, false);
    return;
  }
  torch::Tensor sum = losses_[0];
  for (size_t i = 1; i < losses_.size(); ++i) sum = sum + losses_[i];
  if (pass_.backward == "twice") backward(sum, true);
  backward(sum, false);
}

torch::Tensor forward_alone(const Case& training, NetImpl& net, int64_t rank, int64_t step) {
  torch::NoGradGuard no_grad;
  const Place place{rank, step, 9};
  return net.forward(batch_of(training.model, place, 0), call_of(training.model, place, 0));
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Case& training,
                                                        const std::vector<torch::Tensor>& leaves) {
  using namespace torch::optim;
  const std::string& name = training.optimizer;
  const double decay = training.weight_decay;
  constexpr double kRate = 0.02, kEps = 1e-3;
  if (name == "sgd") return std::make_unique<SGD>(leaves, SGDOptions(kRate).weight_decay(decay));
  if (name == "momentum" || name == "nesterov") {
    auto options = SGDOptions(kRate).weight_decay(decay).momentum(0.9).nesterov(name == "nesterov");
    return std::make_unique<SGD>(leaves, options);
  }
  if (name == "adam" || name == "amsgrad") {
    auto options = AdamOptions(kRate).weight_decay(decay).eps(kEps).amsgrad(name == "amsgrad");
    return std::make_unique<Adam>(leaves, options);
  }
  if (name == "adamw") return std::make_unique<AdamW>(leaves, AdamWOptions(kRate).weight_decay(decay).eps(kEps));
  if (name == "adagrad") return std::make_unique<Adagrad>(leaves, AdagradOptions(kRate).weight_decay(decay).eps(kEps));
  if (name == "rmsprop") {
    auto options = RMSpropOptions(kRate).weight_decay(decay).eps(kEps).momentum(0.5);
    return std::make_unique<RMSprop>(leaves, options);
  }
  throw std::runtime_error("unknown optimizer '" + name + "'");
}

void note_buffers(const NetImpl& net, const std::string& when, Record& record) {
  for (const auto& entry : net.named_buffers()) record.add(when + ": buffer " + entry.key(), entry.value());
}

}  // namespace fsdp::fuzz
