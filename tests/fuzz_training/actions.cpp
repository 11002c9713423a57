#include "fuzz_training/actions.h"

#include <limits>
#include <stdexcept>

#include "engine/engine.h"
#include "fsdp/state_dict.h"
#include "fuzz_training/one_process_run.h"
#include "fuzz_training/program.h"
#include "fuzz_training/sharded_run.h"

namespace fsdp::fuzz {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void nothing(OneProcessRun&) {}

// ---------------------------------------------------------------- forwards without gradients

void forward_sharded(ShardedRun& run) {
  run.note("output", forward_alone(run.training(), run.net(), run.rank(), run.step()));
}
void forward_in_one_process(OneProcessRun& run) {
  run.as_each_rank(
      [&](int64_t rank) { run.note(rank, "output", forward_alone(run.training(), run.net(), rank, run.step())); });
}
void evaluate_sharded(ShardedRun& run) {
  run.net().eval();
  forward_sharded(run);
  run.net().train();
}
void evaluate_in_one_process(OneProcessRun& run) {
  run.net().eval();
  forward_in_one_process(run);
  run.net().train();
}

// ---------------------------------------------------------------- gathers

void unshard(ShardedRun& run) { run.sharded().unshard(); }
void unshard_async(ShardedRun& run) { run.sharded().unshard(/*async_op=*/true); }
void reshard(ShardedRun& run) { run.sharded().reshard(); }

// Every other unit, so that units of both kinds follow one another. None while units have yet to be made.
std::vector<engine::Unit*> every_other_unit(ShardedRun& run) {
  std::vector<engine::Unit*> units;
  const auto& all = run.sharded().engine().units();
  for (size_t i = 0; i < all.size(); i += 2) {
    if (!all[i]->pending_cut()) units.push_back(all[i].get());
  }
  return units;
}

void switch_after_backward(ShardedRun& run) {
  for (engine::Unit* unit : every_other_unit(run)) {
    engine::set_reshard_after_backward(run.sharded().engine(), {unit}, unit->stays_after_backward());
  }
}

void switch_after_forward(ShardedRun& run) {
  for (engine::Unit* unit : every_other_unit(run)) {
    if (!reshards_after_forward(unit->options().strategy)) continue;
    engine::set_reshard_after_forward(run.sharded().engine(), {unit}, unit->stays_gathered());
  }
}

// Records the parameters in the dtype in which they are used.
void note_parameters(ShardedRun& run) {
  for (const auto& [name, parameter] : sharded_parameters_of(run.net())) run.note(name, parameter);
}
void note_parameters(OneProcessRun& run) {
  for (const auto& [name, parameter] : sharded_parameters_of(run.net())) run.note(name, parameter);
}

void read_sharded(ShardedRun& run) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : sharded_parameters_of(run.net())) run.note(name, parameter.sum());
}
void read_in_one_process(OneProcessRun& run) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : sharded_parameters_of(run.net())) run.note(name, parameter.sum());
}

void read_first_sharded(ShardedRun& run) {
  const torch::NoGradGuard no_grad;
  run.note("first", sharded_parameters_of(run.net()).front().second.sum());
}
void read_first_in_one_process(OneProcessRun& run) {
  const torch::NoGradGuard no_grad;
  run.note("first", sharded_parameters_of(run.net()).front().second.sum());
}

void summon(ShardedRun& run) {
  run.sharded().summon_full_params({.writeback = false}, [&] { note_parameters(run); });
}

void pin(ShardedRun& run) {
  run.sharded().pin({}, [&] { note_parameters(run); });
}

void visit_each(ShardedRun& run) {
  run.sharded().for_each_full_parameter([&](const std::string& fqn, const at::Tensor& full) { run.note(fqn, full); });
}

void note_gradients(OneProcessRun& run) {
  for (const auto& [name, parameter] : sharded_parameters_of(run.net())) run.note(name, parameter.grad());
}
void summon_gradients(ShardedRun& run) {
  run.sharded().summon_full_params({.writeback = false, .with_grads = true}, [&] {
    for (const auto& [name, parameter] : sharded_parameters_of(run.net())) run.note(name, parameter.grad());
  });
}

void norm_sharded(ShardedRun& run) {
  run.note("seen by reductions", run.sharded().reduced_grad_norm());
  run.note("2", run.sharded().grad_norm());
  run.note("infinite", run.sharded().grad_norm(kInfinity));
}
void norm_in_one_process(OneProcessRun& run) {
  run.note("seen by reductions", at::scalar_tensor(run.gradient_norm(2), at::kDouble));
  run.note("2", at::scalar_tensor(run.gradient_norm(2), at::kDouble));
  run.note("infinite", at::scalar_tensor(run.gradient_norm(kInfinity), at::kDouble));
}

// ---------------------------------------------------------------- writes

void scale_parameters(const NetImpl& net) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : trainable_parameters_of(net)) parameter.mul_(0.96875);
}
void write(ShardedRun& run) {
  run.sharded().with_full_params([&] { scale_parameters(run.net()); });
}
void write_through(ShardedRun& run) { scale_parameters(run.net()); }
void write_in_one_process(OneProcessRun& run) { scale_parameters(run.net()); }

void write_shards(ShardedRun& run) {
  const torch::NoGradGuard no_grad;
  for (const auto& leaf : run.sharded().parameters()) {
    if (leaf.requires_grad()) leaf.mul_(0.96875);
  }
}

void update_whole(ShardedRun& run) {
  run.sharded().update_whole_parameters(
      [](const WholeParameter& parameter) { parameter.value.sub_(parameter.gradient, 1.0 / 64); });
}
void descend(OneProcessRun& run) { run.descend(); }

void evaluate_in_full_precision(ShardedRun& run) {
  run.sharded().set_full_precision(true);
  evaluate_sharded(run);
  run.sharded().set_full_precision(false);
}

// ---------------------------------------------------------------- state dicts, there and back

void full_state(ShardedRun& run) {
  const auto values = full_state_dict(run.sharded(), run.net());
  for (const auto& [name, value] : values) run.note(name, value);
  load_full_state_dict(run.sharded(), run.net(), values);
}
void full_state_in_one_process(OneProcessRun& run) {
  run.as_each_rank([&](int64_t rank) {
    for (const auto& entry : run.net().named_parameters()) run.note(rank, entry.key(), entry.value());
    for (const auto& entry : run.net().named_buffers()) run.note(rank, entry.key(), entry.value());
  });
}

void sharded_state(ShardedRun& run) {
  auto values = sharded_state_dict(run.sharded(), run.net());
  for (auto& [name, tensor] : values) {
    for (auto& part : tensor.parts) part.values = part.values.clone();
  }
  load_sharded_state_dict(run.sharded(), run.net(), values);
}

void optimizer_state(ShardedRun& run) {
  const auto state = full_optimizer_state(run.sharded(), run.state());
  load_full_optimizer_state(run.sharded(), run.state(), state);
}

void local_state(ShardedRun& run) {
  auto values = local_state_dict(run.sharded(), run.net());
  for (auto& [name, shard] : values.shards) shard.shard = shard.shard.clone();
  load_local_state_dict(run.sharded(), run.net(), values);
}

}  // namespace

const std::vector<Action>& all_actions() {
  static const std::vector<Action> actions = {
      {"forward", "{ NoGradGuard no_grad; net->forward(x); }", true, false, forward_sharded, forward_in_one_process},
      {"evaluate", "net->eval(); { NoGradGuard no_grad; net->forward(x); } net->train();", true, false,
       evaluate_sharded, evaluate_in_one_process},
      {"unshard", "sharded->unshard();", true, false, unshard, nothing},
      {"unshard_async", "sharded->unshard(true);", true, false, unshard_async, nothing},
      {"reshard", "sharded->reshard();", true, false, reshard, nothing},
      {"switch_after_backward", "for (m : every other unit's) sharded->set_reshard_after_backward(*m, !on);", true,
       false, switch_after_backward, nothing},
      {"switch_after_forward", "for (m : every other unit's) sharded->set_reshard_after_forward(*m, !on);", true, false,
       switch_after_forward, nothing},
      {"read", "{ NoGradGuard no_grad; for (p : net->parameters()) p.sum(); }", true, false, read_sharded,
       read_in_one_process},
      {"read_first", "{ NoGradGuard no_grad; net->parameters()[0].sum(); }", true, false, read_first_sharded,
       read_first_in_one_process},
      {"summon", "sharded->summon_full_params({.writeback = false}, read);", true, false, summon, note_parameters},
      {"pin", "sharded->pin({}, read);", true, false, pin, note_parameters},
      {"visit_each", "sharded->for_each_full_parameter(read);", true, false, visit_each, note_parameters},
      {"summon_gradients", "sharded->summon_full_params({.writeback = false, .with_grads = true}, read);", false, true,
       summon_gradients, note_gradients},
      {"norm", "sharded->reduced_grad_norm(); sharded->grad_norm();", false, true, norm_sharded, norm_in_one_process},
      {"write", "sharded->with_full_params([] { for (p : net->parameters()) p.mul_(0.96875); });", false, false, write,
       write_in_one_process},
      {"write_through", "{ NoGradGuard no_grad; for (p : net->parameters()) p.mul_(0.96875); }", false, false,
       write_through, write_in_one_process},
      {"write_shards", "{ NoGradGuard no_grad; for (p : sharded->parameters()) p.mul_(0.96875); }", false, false,
       write_shards, write_in_one_process},
      {"update_whole", "sharded->update_whole_parameters(descend);", false, true, update_whole, descend},
      {"evaluate_fully", "sharded->set_full_precision(true); evaluate; sharded->set_full_precision(false);", false,
       false, evaluate_in_full_precision, evaluate_in_one_process},
      {"full_state", "load_full_state_dict(full_state_dict());", false, false, full_state, full_state_in_one_process},
      {"sharded_state", "load_sharded_state_dict(sharded_state_dict());", false, false, sharded_state, nothing},
      {"local_state", "load_local_state_dict(local_state_dict());", false, false, local_state, nothing},
      {"optimizer_state", "load_full_optimizer_state(full_optimizer_state());", false, false, optimizer_state, nothing},
  };
  return actions;
}

const Action& action_of(const std::string& name) {
  for (const Action& action : all_actions()) {
    if (action.name == name) return action;
  }
  throw std::runtime_error("unknown action '" + name + "'");
}

}  // namespace fsdp::fuzz
