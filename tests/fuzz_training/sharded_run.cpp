#include "fuzz_training/sharded_run.h"

#include "fsdp/checkpoint.h"
#include "fsdp/state_dict.h"
#include "fuzz_training/actions.h"
#include "fuzz_training/program.h"
#include "fuzz_training/shard_net.h"

namespace fsdp::fuzz {
namespace {

// The leaf that contains a slice, and the slice's offset in it. in() returns the same range of another tensor, such as
// the leaf's gradient.
struct Located {
  at::Tensor leaf;
  int64_t offset;
  at::Tensor in(const at::Tensor& of_leaf, int64_t count) const { return of_leaf.flatten().narrow(0, offset, count); }
};

Located locate(const ShardSlice& slice, const std::vector<std::pair<std::string, at::Tensor>>& leaves, bool orig) {
  for (const auto& [name, leaf] : leaves) {
    if (orig && name != slice.fqn) continue;
    const auto* first = static_cast<const char*>(leaf.const_data_ptr());
    const auto* place = static_cast<const char*>(slice.data.const_data_ptr());
    if (place >= first && place < first + leaf.nbytes()) return {leaf, (place - first) / int64_t(leaf.element_size())};
  }
  TORCH_CHECK(false, "no leaf holds the slice of ", slice.fqn);
}

}  // namespace

ShardedRun::ShardedRun(const Case& training, const std::shared_ptr<Communicator>& world, const ExecutionOrder& order,
                       Record& record)
    : training_(training), world_(world), record_(record), net_(make_net(training, world->rank())) {
  sharded_ = shard_net(training, *net_, world, order);
  optimizer_ = make_optimizer(training, sharded_->parameters());
  state_ = state_of(*optimizer_);
}

void ShardedRun::run_step(int64_t step) {
  step_ = step;
  const Step& plan = training_.steps[step];
  zero(plan.zero);
  run_actions("before", plan.before);
  for (size_t pass = 0; pass < plan.passes.size(); ++pass) run_pass(pass);
  note_gradients(when());
  run_actions("ready", plan.ready);
  clip(plan);
  if (plan.optimize) sharded_->with_offloaded_memory([&] { optimizer_->step(); });
  note_shards(when());
  note_buffers(*net_, when(), record_);
  run_actions("after", plan.after);
}

void ShardedRun::zero(const std::string& how) {
  if (how == "sharded") sharded_->zero_grad();
  if (how == "sharded_zeros") sharded_->zero_grad(false);
  if (how == "module") net_->zero_grad();
  if (how == "module_zeros") net_->zero_grad(false);
  if (how == "optimizer") optimizer_->zero_grad();
}

void ShardedRun::run_pass(int64_t pass) {
  const Pass& plan = training_.steps[step_].passes[pass];
  RankPass run(training_, *net_, {rank(), step_, pass}, record_);
  run_actions("pass " + std::to_string(pass), plan.between);
  run.finish([&](const at::Tensor& loss, bool retain_graph) {
    const BackwardOptions options{plan.sync, plan.all_reduce, plan.is_last};
    sharded_->backward(loss, options, retain_graph);
  });
}

void ShardedRun::run_actions(const std::string& where, const std::vector<std::string>& actions) {
  for (size_t i = 0; i < actions.size(); ++i) {
    action_ = when() + ", " + where + ", action " + std::to_string(i) + " (" + actions[i] + ")";
    action_of(actions[i]).sharded(*this);
  }
}

void ShardedRun::clip(const Step& step) {
  if (step.clip <= 0) return;
  record_.add(when() + ": norm", sharded_->clip_grad_norm_(step.clip, step.clip_type));
}

void ShardedRun::note_gradients(const std::string& when) {
  sharded_->wait_for_gradients();
  const auto leaves = sharded_->named_parameters();
  for (const ShardSlice& slice : sharded_->shard_slices()) {
    if (slice.begin == slice.end) continue;
    const Located place = locate(slice, leaves, training_.sharding.orig);
    const at::Tensor& gradient = place.leaf.grad();
    const at::Tensor part = gradient.defined() ? place.in(gradient, slice.end - slice.begin) : at::Tensor();
    record_.add_part(when + ": gradient of " + slice.fqn, part, {slice.begin, slice.end, slice.strides});
  }
}

void ShardedRun::note_shards(const std::string& when) {
  const auto leaves = sharded_->named_parameters();
  for (const ShardSlice& slice : sharded_->shard_slices()) {
    if (slice.begin == slice.end) continue;
    record_.add_part(when + ": parameter " + slice.fqn, slice.data, {slice.begin, slice.end, slice.strides});
    const Located place = locate(slice, leaves, training_.sharding.orig);
    const auto state = state_->leaf(place.leaf);
    if (!state) continue;
    for (const auto& [name, tensor] : state->tensors) {
      const at::Tensor part = place.in(tensor, slice.end - slice.begin);
      record_.add_part(when + ": state " + name + " of " + slice.fqn, part, {slice.begin, slice.end, slice.strides});
    }
    for (const auto& [name, number] : state->scalars) {
      record_.add(when + ": state " + name + " of " + slice.fqn, at::scalar_tensor(number, at::kDouble));
    }
  }
}

void ShardedRun::note_whole_parameters(const std::string& when) {
  sharded_->for_each_full_parameter(
      [&](const std::string& fqn, const at::Tensor& full) { record_.add(when + ": whole parameter " + fqn, full); });
}

LeafNames ShardedRun::leaf_names() const {
  LeafNames names;
  if (training_.sharding.orig) {
    for (const ShardSlice& slice : sharded_->shard_slices()) names.push_back({slice.fqn});
    return names;
  }
  for (const auto& [name, shard] : local_state_dict(*sharded_, *net_).shards) names.push_back(shard.layout.fqns);
  return names;
}

void ShardedRun::save(const std::string& folder) {
  save_checkpoint(folder, {*sharded_, *net_, state_.get()}, "{}", *world_);
}

void ShardedRun::load(const std::string& folder) { load_checkpoint(folder, {*sharded_, *net_, state_.get()}, *world_); }

}  // namespace fsdp::fuzz
