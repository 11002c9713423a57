#include "config/config_keys.h"
#include "fsdp/pipeline_schedule.h"

namespace fsdp::trainer {

std::vector<ConfigKey> parallelism_keys() {
  const std::string section = "Parallelism";
  return {
      {.section = section,
       .name = "data_parallel_replicate_degree",
       .member = {&Config::parallelism, &ParallelismConfig::replicate_degree},
       .meaning =
           "Copies of the model, or of each stage of a pipeline. More than one needs a hybrid strategy, whose "
           "`sharding_factor` it replaces, or, for all data-parallel ranks, no_shard. null: as `sharding_factor` "
           "and `sharding_strategy` say.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "data_parallel_shard_degree",
       .member = {&Config::parallelism, &ParallelismConfig::shard_degree},
       .meaning =
           "Another name of `sharding_factor`: ranks that share one copy. If both are given, they must be equal.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "pipeline_parallel_degree",
       .member = {&Config::parallelism, &ParallelismConfig::pipeline_degree},
       .meaning = "Ranks of a pipeline, a divisor of the number of ranks. Above 1, a causal language model is cut into "
                  "stages, one or several for each rank of the pipeline, and the passes of "
                  "`gradient_accumulation_steps` are micro-batches that go through the stages one after the other. The "
                  "ranks left for each stage are data-parallel, or tensor-parallel. With shard_grad_op, stages gather "
                  "their parameters "
                  "once in a step; with full_shard, in each pass.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "pipeline_parallel_schedule",
       .member = {&Config::parallelism, &ParallelismConfig::pipeline_schedule},
       .meaning = "Order of the passes of a pipeline, as in torch.distributed.pipelining. `GPipe` and `1F1B` take one "
                  "stage a rank, `ZBVZeroBubble` two, the others any number (docs/parallelism.md).",
       .choices = pipeline_schedule_names()},
      {.section = section,
       .name = "pipeline_parallel_layers_per_stage",
       .member = {&Config::parallelism, &ParallelismConfig::pipeline_layers_per_stage},
       .meaning = "Blocks of each stage, from which the number of stages follows; it must be a multiple of "
                  "`pipeline_parallel_degree`. null: one stage a rank with `GPipe` and `1F1B`, two with the others.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "pipeline_parallel_first_stage_less_layers",
       .member = {&Config::parallelism, &ParallelismConfig::pipeline_first_stage_less_layers},
       .meaning = "Blocks that the first stage has less than others, because it has the embedding.",
       .range = kAtLeastZero},
      {.section = section,
       .name = "pipeline_parallel_last_stage_less_layers",
       .member = {&Config::parallelism, &ParallelismConfig::pipeline_last_stage_less_layers},
       .meaning = "Blocks that the last stage has less than others, because it has the head and the loss.",
       .range = kAtLeastZero},
      {.section = section,
       .name = "tensor_parallel_degree",
       .member = {&Config::parallelism, &ParallelismConfig::tensor_degree},
       .meaning = "Neighbouring ranks that split the weights of each layer, which must be of a causal language model, "
                  "and read the same samples. A divisor of the number of ranks, at most the number of heads of keys. "
                  "The other ranks shard each part, or hold stages of a pipeline.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "enable_sequence_parallel",
       .member = {&Config::parallelism, &ParallelismConfig::sequence_parallel},
       .meaning = "Whether ranks that split weights (`tensor_parallel_degree`) also split the sequence between layers: "
                  "norms, residuals and experts take a part of the positions each. As many bytes are sent as without, "
                  "and fewer activations are kept. `tensor_parallel_degree` must divide `max_seq_length`."},
  };
}

}  // namespace fsdp::trainer
