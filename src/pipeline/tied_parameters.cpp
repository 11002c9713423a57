#include "pipeline/tied_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/device_stream.h"

namespace fsdp::pipeline {
namespace {

using nlohmann::json;

at::Tensor leaf_of(const ShardedModule& sharded, const std::string& name) {
  for (auto& [known, leaf] : sharded.named_parameters()) {
    if (known == name) return leaf;
  }
  return {};
}

// A copy on one rank, for the rank that holds the other one.
json facts_of(const StageRunner& stage, const std::string& name) {
  const at::Tensor leaf = leaf_of(stage.sharded(), name);
  for (const ShardSlice& slice : stage.sharded().shard_slices()) {
    if (slice.fqn != name) continue;
    TORCH_CHECK(leaf.defined(), "fsdp: Pipeline: tied parameter '", name, "' of stage ", stage.index(),
                " has no leaf of its own; tied parameters need Options::use_orig_params");
    const at::Tensor values = leaf.detach().to(at::kDouble);
    return {{"stage", stage.index()},
            {"sizes", slice.sizes},
            {"elements", {slice.begin, slice.end}},
            {"sum", values.sum().item<double>()},
            {"squares", (values * values).sum().item<double>()}};
  }
  return {};
}

json copies_of(const std::map<int, StageRunner>& stages, const std::string& name) {
  json copies = json::array();
  for (const auto& [index, stage] : stages) {
    if (json facts = facts_of(stage, name); !facts.is_null()) copies.push_back(std::move(facts));
  }
  return copies;
}

void check_alike(const std::string& name, const json& first, const json& second) {
  TORCH_CHECK(first["sizes"] == second["sizes"] && first["elements"] == second["elements"],
              "fsdp: Pipeline: tied parameter '", name, "' is sharded differently in its two stages: stage ",
              first["stage"].get<int>(), " has elements ", first["elements"].dump(), " of sizes ",
              first["sizes"].dump(), ", stage ", second["stage"].get<int>(), " ", second["elements"].dump(), " of ",
              second["sizes"].dump(), ". Make it a unit of its own in both");
  TORCH_CHECK(first["sum"] == second["sum"] && first["squares"] == second["squares"],
              "fsdp: Pipeline: tied parameter '", name, "' has other values in stage ", first["stage"].get<int>(),
              " than in stage ", second["stage"].get<int>(), "; both copies need the same initial values");
}

at::Tensor& gradient_of(const at::Tensor& leaf) {
  at::Tensor& gradient = leaf.mutable_grad();
  if (!gradient.defined()) gradient = at::zeros_like(leaf);
  return gradient;
}

}  // namespace

// A copy, and the rank of the pipeline that holds it.
struct TiedParameters::Copy {
  json facts;
  int rank = 0;
  int stage() const { return facts["stage"]; }
};

TiedParameters::TiedParameters(const std::vector<std::string>& names, const std::map<int, StageRunner>& stages,
                               int rank, std::shared_ptr<Communicator> group)
    : group_(std::move(group)) {
  if (names.empty()) return;
  json own = json::object();
  for (const std::string& name : names) own[name] = copies_of(stages, name);
  std::vector<json> of_ranks;
  for (const std::string& text : group_->all_gather_bytes(own.dump(), {"tied parameters", 0, Pass::kSetup})) {
    of_ranks.push_back(json::parse(text));
  }
  for (const std::string& name : names) {
    std::vector<Copy> copies;
    for (size_t other = 0; other < of_ranks.size(); ++other) {
      for (const json& facts : of_ranks[other][name]) copies.push_back({facts, static_cast<int>(other)});
    }
    ties_.push_back(make_tie(name, std::move(copies), stages, rank));
  }
}

TiedParameters::Tie TiedParameters::make_tie(const std::string& name, std::vector<Copy> copies,
                                             const std::map<int, StageRunner>& stages, int rank) {
  TORCH_CHECK(copies.size() == 2, "fsdp: Pipeline: tied parameter '", name,
              "' must be in two stages, under the same name; it is in ", copies.size());
  if (copies[1].stage() < copies[0].stage()) std::swap(copies[0], copies[1]);
  check_alike(name, copies[0].facts, copies[1].facts);
  Tie tie{name, {copies[0].rank, copies[1].rank}, {}, {}};
  for (size_t side = 0; side < 2; ++side) {
    if (copies[side].rank == rank) tie.leaves[side] = leaf_of(stages.at(copies[side].stage()).sharded(), name);
  }
  return tie;
}

void TiedParameters::begin_step() {
  const at::NoGradGuard no_grad;
  ++step_;
  for (Tie& tie : ties_) {
    for (int side = 0; side < 2; ++side) {
      tie.earlier[side].reset();
      if (!tie.leaves[side].defined() || !tie.leaves[side].grad().defined()) continue;
      // In place, since the engine takes a gradient that is replaced for one that the user has cleared.
      tie.earlier[side] = tie.leaves[side].grad().clone();
      tie.leaves[side].mutable_grad().zero_();
    }
  }
}

at::Tensor TiedParameters::of_other(const Tie& tie, int side) {
  if (tie.leaves[1 - side].defined()) return gradient_of(tie.leaves[1 - side]);
  const CollectiveId id{"gradient of tied '" + tie.name + "'", step_, Pass::kReduce};
  // The message may still be on its way when the sum replaces the gradient.
  const at::Tensor own = gradient_of(tie.leaves[side]).clone();
  at::Tensor other = at::empty_like(own);
  const auto send = [&] { group_->send(own, tie.ranks[1 - side], id); };
  // The streams of two ranks that both send first would wait for each other.
  const bool sends_first = side == 0 || !base::has_streams(own.device());
  if (sends_first) send();
  group_->recv(other, tie.ranks[1 - side], id)->wait();
  if (!sends_first) send();
  return other;
}

// Both sums are there before one of them replaces a gradient, since both copies may be on this rank. The order of two
// summands makes no difference.
void TiedParameters::add_up() {
  const at::NoGradGuard no_grad;
  for (Tie& tie : ties_) {
    at::Tensor sums[2];
    for (int side = 0; side < 2; ++side) {
      if (tie.leaves[side].defined()) sums[side] = gradient_of(tie.leaves[side]) + of_other(tie, side);
    }
    for (int side = 0; side < 2; ++side) {
      if (!tie.leaves[side].defined()) continue;
      at::Tensor& gradient = tie.leaves[side].mutable_grad();
      gradient.copy_(sums[side]);
      if (tie.earlier[side].defined()) gradient.add_(std::exchange(tie.earlier[side], {}));
    }
  }
}

void TiedParameters::without_second_copies(const std::function<void()>& body) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, at::Tensor>> hidden;  // gradients, and their values
  for (const Tie& tie : ties_) {
    if (!tie.leaves[1].defined() || !tie.leaves[1].grad().defined()) continue;
    at::Tensor gradient = tie.leaves[1].mutable_grad();
    hidden.emplace_back(gradient, gradient.clone());
    gradient.zero_();
  }
  body();
  for (auto& [gradient, values] : hidden) gradient.copy_(values);
}

}  // namespace fsdp::pipeline
