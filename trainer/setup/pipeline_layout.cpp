#include "setup/pipeline_layout.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "base/error_message.h"
#include "config/errors.h"

namespace fsdp::trainer {

namespace {

constexpr int kStagesOfInterleaved = 2;  // of a rank, as in torchtitan

// As in torchtitan, embedding and head count as some blocks.
int64_t counted_blocks(const ParallelismConfig& parallelism, int64_t blocks) {
  return blocks + parallelism.pipeline_first_stage_less_layers + parallelism.pipeline_last_stage_less_layers;
}

int64_t stages_a_rank(const ParallelismConfig& parallelism, int64_t blocks) {
  if (!parallelism.pipeline_layers_per_stage) {
    return stages_per_rank_of(parallelism.pipeline_schedule).value_or(kStagesOfInterleaved);
  }
  const int64_t of_stage = *parallelism.pipeline_layers_per_stage;
  const int64_t counted = counted_blocks(parallelism, blocks), stages = (counted + of_stage - 1) / of_stage;
  const int64_t ranks = parallelism.pipeline_degree;
  if (stages % ranks == 0) return stages / ranks;
  throw ConfigError(c10::str("key \"pipeline_parallel_layers_per_stage\": ", of_stage, " makes ", stages,
                             " stage(s) of ", counted, " blocks, as which the model's ", blocks,
                             ", embedding and head ",
                             "count; their number must be a multiple of \"pipeline_parallel_degree\", ", ranks));
}

// Throws if a stage would have nothing to compute.
std::vector<models::StagePart> parts_of(const ParallelismConfig& parallelism, int64_t blocks, int64_t stages) {
  try {
    return models::stage_parts(blocks, stages, parallelism.pipeline_first_stage_less_layers,
                               parallelism.pipeline_last_stage_less_layers);
  } catch (const c10::Error&) {
    throw ConfigError(c10::str("key \"pipeline_parallel_degree\": ", parallelism.pipeline_degree, " makes ", stages,
                               " stages with \"pipeline_parallel_schedule\" \"", parallelism.pipeline_schedule,
                               "\", but the model has ", blocks, " blocks, of which \"pipeline_parallel_first_stage_",
                               "less_layers\" and \"pipeline_parallel_last_stage_less_layers\" leave too few for ",
                               "some stage: accepted are fewer stages, or smaller values of these keys"));
  }
}

PipelineSchedule schedule_of(const Config& config, int64_t stages_per_rank) {
  const ParallelismConfig& parallelism = config.parallelism;
  try {
    return with_communication(make_pipeline_schedule(
        parallelism.pipeline_schedule, static_cast<int>(parallelism.pipeline_degree), static_cast<int>(stages_per_rank),
        static_cast<int>(config.steps.gradient_accumulation_steps)));
  } catch (const c10::Error& error) {
    throw ConfigError(c10::str("key \"pipeline_parallel_schedule\": \"", parallelism.pipeline_schedule,
                               "\" does not fit \"pipeline_parallel_degree\" ", parallelism.pipeline_degree, ", ",
                               stages_per_rank, " stage(s) a rank and \"gradient_accumulation_steps\" ",
                               config.steps.gradient_accumulation_steps,
                               " (micro-batches): ", base::message_of(error)));
  }
}

double simulated_bubble(const PipelineLayout& layout, const ParallelismConfig& parallelism) {
  std::vector<StageCosts> costs;
  for (const models::StagePart& part : layout.parts) {
    int64_t blocks = part.end - part.begin;
    if (part.is_first) blocks += parallelism.pipeline_first_stage_less_layers;
    if (part.is_last) blocks += parallelism.pipeline_last_stage_less_layers;
    const auto cost = static_cast<double>(std::max<int64_t>(blocks, 1));
    costs.push_back({.forward = cost, .input_gradient = cost, .weight_gradient = cost});
  }
  return simulate_pipeline(layout.schedule, costs).bubble;
}

// Tied embeddings are exchanged between the first and the last stage leaf by leaf.
void check_tied(const Config& config, const models::StagedLM& model) {
  if (model.tied_parameter().empty() || config.sharding.use_orig_params) return;
  throw ConfigError(c10::str("key \"use_orig_params\": false does not fit \"pipeline_parallel_degree\" ",
                             config.parallelism.pipeline_degree, ", because the model's embedding is also its head; ",
                             "accepted: true"));
}

}  // namespace

std::optional<PipelineLayout> pipeline_layout(const Config& config, const TrainedModel& model) {
  const ParallelismConfig& parallelism = config.parallelism;
  if (parallelism.pipeline_degree == 1) return std::nullopt;
  const models::StagedLM* staged = model.staged();
  if (!staged) {
    throw ConfigError(c10::str("key \"pipeline_parallel_degree\": ", parallelism.pipeline_degree,
                               " does not apply: the model is ", model.module().name(),
                               ", and only causal language models can be cut into stages; accepted: 1"));
  }
  check_tied(config, *staged);
  const int64_t blocks = staged->num_blocks(), a_rank = stages_a_rank(parallelism, blocks);
  PipelineLayout layout{.schedule = schedule_of(config, a_rank),
                        .parts = parts_of(parallelism, blocks, a_rank * parallelism.pipeline_degree)};
  layout.bubble = simulated_bubble(layout, parallelism);
  return layout;
}

std::string part_text(const models::StagePart& part) {
  std::vector<std::string> words;
  if (part.is_first) words.emplace_back("embedding");
  const int64_t blocks = part.end - part.begin;
  if (blocks == 1) words.push_back(c10::str("block ", part.begin));
  if (blocks > 1) words.push_back(c10::str("blocks ", part.begin, " to ", part.end - 1));
  if (part.is_last) words.emplace_back("head");
  return c10::Join(", ", words);
}

}  // namespace fsdp::trainer
