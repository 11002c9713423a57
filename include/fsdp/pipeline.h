// Pipelines over sharded stages (FSDP paper, section 7.1): each rank of a pipeline holds a part of the model, its
// stage, and micro-batches pass through the stages one after the other. The data-parallel ranks of a stage shard its
// parameters.
//
//   auto mesh = fsdp::DeviceMesh::make(world, {{"pp", 2}, {"dp_shard", -1}});
//   const bool first = mesh.rank("pp") == 0;
//   auto layers = make_layers(first);                     // this stage's part of the model
//   fsdp::Options options;
//   options.mesh = mesh.data_parallel();
//   options.sharding_strategy = fsdp::ShardingStrategy::kShardGradOp;
//   auto sharded = fsdp::fully_shard(*layers, options);
//   auto schedule = fsdp::make_pipeline_schedule("1F1B", 2, 1, 8);
//   fsdp::Pipeline pipeline(mesh, schedule, {{mesh.rank("pp"), sharded, [&](const auto& inputs, int micro_batch) {
//     auto hidden = layers->forward(first ? batch[micro_batch] : inputs[0]);
//     return std::vector<at::Tensor>{first ? hidden : loss_of(hidden, labels[micro_batch])};
//   }}});
//   for (…) { sharded->zero_grad(); auto losses = pipeline.step(); pipeline.clip_grad_norm_(1.0); optimizer.step(); }
//
// Gradients. The runner scales nothing: the gradient of a step is that of the sum of the losses that the last stage
// returns, so each loss carries its weight (1 / micro-batches for a mean). It is reduced over the data-parallel ranks
// as everywhere, by default once, in the last backward pass of each stage.
//
// Passes for weight gradients alone (I and W of the zero-bubble schedules). What is left for W are the products of
// linear, addmm, mm and matmul with weights that are leaves, or with their transposes, as in torch::nn::Linear; all
// other gradients are computed in I, after which the graph is freed. Of each product its two factors are kept until W,
// which needs no gathered parameters.
//
// Memory. A stage whose units stay gathered after forward (SHARD_GRAD_OP, as the paper advises) gathers them once in a
// step, and holds its parameters and the sum of their gradients unsharded meanwhile. With FULL_SHARD, each pass gathers
// anew. Of each micro-batch in flight a stage keeps its graph and its inputs. The memory of what it sends is freed as
// soon as the other stage has it; on a device with streams, that of the last four tensors in each direction is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/backward_options.h"
#include "fsdp/device_mesh.h"
#include "fsdp/grad_scaler.h"
#include "fsdp/pipeline_schedule.h"
#include "fsdp/sharded_module.h"

namespace fsdp {

// Computes a stage's outputs for one micro-batch (0, 1, …) from its inputs: the outputs of the stage before, in order,
// none for the first stage. The first output of the last stage is the loss, a scalar; those that follow are only
// returned to the caller. Runs with gradients recorded in Pipeline::step. Outputs must be defined and of a stage that
// is not the last one there must be at least one.
using StageForward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs, int micro_batch)>;

// A stage that this rank holds.
struct PipelineStage {
  int index = 0;  // in the order of the model
  std::shared_ptr<ShardedModule> sharded;
  StageForward forward;
};

struct PipelineOptions {
  // The FQNs of all parameters of the model. If given, the stages must hold each exactly once together (tied ones
  // twice); else only twice is an error. FQNs are those of the stages' modules, which should be named as in the whole
  // model.
  std::vector<std::string> parameters = {};
  // The FQNs of parameters that two stages share under the same name: an embedding of the first that is the head of the
  // last. Each stage has a copy, with the same initial values, as a unit of its own, or otherwise cut in the same way.
  // After each step that reduces gradients, those of the two copies are added up, so that the copies stay equal. Needs
  // Options::use_orig_params.
  std::vector<std::string> tied_parameters = {};
  // true: each backward pass reduces gradients, which are then accumulated sharded, at the price of a reduction for
  // each micro-batch (see BackwardOptions::requires_gradient_sync).
  bool sync_each_micro_batch = false;
  // false, with sync_each_micro_batch: the backward passes before the last one leave out the reduction over the
  // replicas of a hybrid mesh (see BackwardOptions::requires_all_reduce).
  bool all_reduce_each_micro_batch = true;
};

// A pass of the last step on this rank.
struct PipelinePass {
  PipelineAction action;
  double begin = 0, end = 0;  // seconds since the step began; waits for messages lie before the pass
};

// Runs the stages that one rank holds. All ranks of the mesh make the same calls. Threads: one at a time, the one that
// trains.
class Pipeline {
 public:
  // `schedule`: with or without communication; it must be of as many ranks as the mesh has in `pp`. `stages`: those
  // that the schedule gives to this rank, in any order. Collective; throws on all ranks, naming the ranks and the
  // difference, if ranks pass different schedules or options, if a parameter is in two stages, or if one of
  // `options.parameters` is in none.
  Pipeline(DeviceMesh mesh, const PipelineSchedule& schedule, std::vector<PipelineStage> stages,
           const PipelineOptions& options = {});
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  // Runs all micro-batches forward and backward. `backward`: of the last backward pass of each stage (earlier ones do
  // not communicate, unless sync_each_micro_batch). Returns the last stage's outputs by micro-batch, detached, on ranks
  // that hold it; nothing elsewhere. If a stage throws, the groups of all ranks end, with an error that names this rank
  // and the action.
  std::vector<std::vector<at::Tensor>> step(const BackwardOptions& backward = {});

  // Runs all micro-batches forward, without gradients. Returns the same.
  std::vector<std::vector<at::Tensor>> evaluate();

  // The norm of the gradients of all stages, tied parameters counted once, and clipping by it: see
  // ShardedModule::grad_norm and clip_grad_norm_. Collective over all ranks of the mesh.
  at::Tensor grad_norm(double norm_type = 2.0, bool error_if_nonfinite = false);
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);

  // Divides the gradients of all stages by the scaler's scale, and finds out whether any gradient of the model is not
  // finite, with the same answer on all ranks: all or none of the stages then step. For fp16, after step() and before
  // clipping; the last stage's forward returns scaler.scale(loss) first, and the plain loss after it, to see it. Then
  // call scaler.step() on each rank with one of its stages and an optimizer of all of them, and scaler.update().
  // Collective over all ranks of the mesh. Errors: those of ShardedGradScaler::unscale_.
  void unscale_(ShardedGradScaler& scaler);

  // -- of the last step on this rank --
  const std::vector<PipelinePass>& passes() const;
  // The share of the step, 0 to 1, in which a rank of the pipeline ran no pass, on average: the measured counterpart of
  // PipelineSimulation::bubble. Collective over the pipeline.
  double bubble() const;
  // The largest number of micro-batches whose graphs were alive at the same time, for each stage of this rank, in the
  // order of the model.
  std::vector<int> most_in_flight() const;

 private:
  class Runner;
  std::unique_ptr<Runner> runner_;
};

}  // namespace fsdp
