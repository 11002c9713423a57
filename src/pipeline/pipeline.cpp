#include "fsdp/pipeline.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "optim/clip_scale.h"
#include "optim/norm_sum.h"
#include "optim/scale_gradients.h"
#include "pipeline/runner.h"
#include "pipeline/set_up_check.h"

namespace fsdp {
namespace {

// The norm of one stage's gradients, as it travels between ranks.
struct StageNorm {
  int64_t stage = 0;
  double norm = 0;
};

// A rank's passes in a step, in seconds.
struct PassTimes {
  double busy = 0;
  double end = 0;  // of the last one
};

// Returns the values of all ranks, in rank order. Collective.
template <typename T>
std::vector<T> gather_all(Communicator& group, const std::vector<T>& own, const char* name) {
  std::string bytes(own.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), own.data(), bytes.size());
  std::vector<T> all;
  for (const std::string& theirs : group.all_gather_bytes(bytes, {name, 0, Pass::kUser})) {
    const size_t before = all.size();
    all.resize(before + theirs.size() / sizeof(T));
    std::memcpy(all.data() + before, theirs.data(), theirs.size());
  }
  return all;
}

// Returns the norms of all stages, in the order of the model, so that all ranks add them up in the same order.
std::vector<StageNorm> gather_norms(Communicator& group, const std::vector<StageNorm>& own) {
  std::vector<StageNorm> all = gather_all(group, own, "norm of the gradients");
  std::sort(all.begin(), all.end(), [](const StageNorm& a, const StageNorm& b) { return a.stage < b.stage; });
  return all;
}

}  // namespace

Pipeline::Pipeline(DeviceMesh mesh, const PipelineSchedule& schedule, std::vector<PipelineStage> stages,
                   const PipelineOptions& options) {
  pipeline::check_stages(mesh, schedule, stages);
  PipelineSchedule complete = has_passes_only(schedule) ? with_communication(schedule) : schedule;
  check_pipeline_schedule(complete);
  pipeline::compare_ranks(mesh, complete, stages, options);
  runner_ = std::make_unique<Runner>(std::move(mesh), std::move(complete), std::move(stages), options);
}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

std::vector<std::vector<at::Tensor>> Pipeline::step(const BackwardOptions& backward) { return runner_->step(backward); }
std::vector<std::vector<at::Tensor>> Pipeline::evaluate() { return runner_->evaluate(); }

at::Tensor Pipeline::grad_norm(double norm_type, bool error_if_nonfinite) {
  std::vector<StageNorm> own;
  runner_->tied().without_second_copies([&] {
    for (const auto& [index, stage] : runner_->stages()) {
      own.push_back({index, stage.sharded().grad_norm(norm_type).item<double>()});
    }
  });
  optim::NormSum total(norm_type);
  for (const StageNorm& one : gather_norms(*runner_->mesh().group("pp"), own)) total.add(one.norm);
  TORCH_CHECK(!error_if_nonfinite || std::isfinite(total.norm()), "fsdp: Pipeline: the norm of the gradients is ",
              total.norm(), " (error_if_nonfinite is set)");
  return at::full({}, total.norm(), at::kDouble);
}

at::Tensor Pipeline::clip_grad_norm_(double max_norm, double norm_type, bool error_if_nonfinite) {
  TORCH_CHECK(max_norm > 0, "fsdp: Pipeline: clip_grad_norm_: max_norm ", max_norm, " must be positive");
  const at::NoGradGuard no_grad;
  at::Tensor norm = grad_norm(norm_type, error_if_nonfinite);
  const double scale = optim::clip_scale(max_norm, norm.item<double>());
  for (const auto& [index, stage] : runner_->stages()) optim::scale_gradients(stage.sharded().parameters(), scale);
  return norm;
}

void Pipeline::unscale_(ShardedGradScaler& scaler) {
  std::vector<ShardedModule*> stages;
  for (const auto& [index, stage] : runner_->stages()) stages.push_back(&stage.sharded());
  scaler.unscale_(stages, *runner_->mesh().group("pp"));
}

const std::vector<PipelinePass>& Pipeline::passes() const { return runner_->passes(); }

// The ranks begin a step together, and the last one to end its passes ends it.
double Pipeline::bubble() const {
  PassTimes own;
  for (const PipelinePass& pass : passes()) {
    own.busy += pass.end - pass.begin;
    own.end = std::max(own.end, pass.end);
  }
  const std::vector<PassTimes> all = gather_all(*runner_->mesh().group("pp"), std::vector<PassTimes>{own}, "bubble");
  PassTimes sum;
  for (const PassTimes& one : all) sum = {sum.busy + one.busy, std::max(sum.end, one.end)};
  return sum.end > 0 ? 1 - sum.busy / (static_cast<double>(all.size()) * sum.end) : 0;
}

std::vector<int> Pipeline::most_in_flight() const {
  std::vector<int> counts;
  for (const auto& [index, stage] : runner_->stages()) counts.push_back(stage.most_in_flight());
  return counts;
}

}  // namespace fsdp
