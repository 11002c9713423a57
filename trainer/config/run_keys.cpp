#include "config/config_keys.h"

namespace fsdp::trainer {

std::vector<ConfigKey> checkpoint_keys() {
  const std::string section = "Checkpoints";
  return {
      {.section = section,
       .name = "save_steps",
       .member = {&Config::checkpoints, &CheckpointsConfig::save_steps},
       .meaning =
           "Steps from one checkpoint to the next. Checkpoints are folders output_dir/checkpoint-STEP, from which "
           "training can resume on any number of ranks. The last step is always saved, and so is the step at which "
           "a rank receives SIGTERM, SIGINT, SIGHUP, SIGUSR1 or SIGUSR2; training then ends with status 143. A "
           "failed save is reported, and training continues. All hosts must see the same output_dir. null: no "
           "checkpoints.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "save_total_limit",
       .member = {&Config::checkpoints, &CheckpointsConfig::save_total_limit},
       .meaning = "How many checkpoints to keep, the latest ones: after each save, older ones in output_dir are "
                  "removed. null: all.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "async_save",
       .member = {&Config::checkpoints, &CheckpointsConfig::async_save},
       .meaning = "Whether checkpoints are written while training continues: training waits only until shards and "
                  "optimizer state are copied. The copy takes as much host memory as they do, until it is written. A "
                  "save that begins while another is in progress waits for it."},
      {.section = section,
       .name = "resume_from_checkpoint",
       .member = {&Config::checkpoints, &CheckpointsConfig::resume_from_checkpoint},
       .meaning =
           "The checkpoint to resume from: its path, or `latest` for the one of the last step in output_dir. If "
           "there is none yet, `latest` starts training from the beginning, and the log says so. With `latest`, "
           "damaged checkpoints are reported and renamed to damaged-checkpoint-STEP, and training resumes from the "
           "newest intact one. To continue a PyTorch run, convert its checkpoint with `fsdp convert` first. Config "
           "values that have changed since the save are used, and named in the log. metrics.jsonl is continued: of "
           "two lines for one step, the later one counts. null: training starts from the beginning."},
  };
}

std::vector<ConfigKey> divergence_keys() {
  const std::string section = "Divergence";
  return {
      {.section = section,
       .name = "collective_check",
       .member = {&Config::divergence, &DivergenceConfig::collective_check},
       .meaning =
           "When ranks compare the collectives that they issue, so that diverging ranks are stopped and named. "
           "`sampled`: in the first `collective_check_first_steps` passes that reduce gradients and in every "
           "`collective_check_every`-th. Gloo and shared memory always compare, so that all three values are the same "
           "there."},
      {.section = section,
       .name = "collective_check_first_steps",
       .member = {&Config::divergence, &DivergenceConfig::collective_check_first_steps},
       .meaning = "With collective_check `sampled`: passes at the beginning in which ranks compare.",
       .range = kAtLeastZero},
      {.section = section,
       .name = "collective_check_every",
       .member = {&Config::divergence, &DivergenceConfig::collective_check_every},
       .meaning =
           "With collective_check `sampled`: after the first `collective_check_first_steps` passes, ranks compare in "
           "each pass whose number, counted from 0, is a multiple of this. 0: in none.",
       .range = kAtLeastZero},
      {.section = section,
       .name = "watchdog_seconds",
       .member = {&Config::divergence, &DivergenceConfig::watchdog_seconds},
       .meaning = "Seconds that a rank waits for others before it names the late ones on stderr, with the unit and "
                  "their last operation. 0: never. null: 30 seconds.",
       .range = Range{.lower = 0, .upper = 1800, .upper_open = true}},
      {.section = section,
       .name = "collective_dump",
       .member = {&Config::divergence, &DivergenceConfig::collective_dump},
       .meaning = "Whether a rank whose communication fails writes its last 64 collectives to "
                  "output_dir/collectives_rank<R>.txt."},
  };
}

std::vector<ConfigKey> output_keys() {
  const std::string section = "Output";
  return {
      {.section = section,
       .name = "output_dir",
       .member = {&Config::output, &OutputConfig::output_dir},
       .meaning =
           "Folder for metrics.jsonl, run.json (config and number of ranks, for `fsdp report`), resolved_config.json, "
           "checkpoint-STEP/ and final/; created when missing."},
      {.section = section,
       .name = "overwrite_output_dir",
       .member = {&Config::output, &OutputConfig::overwrite_output_dir},
       .meaning =
           "Whether a run that does not resume from a checkpoint in output_dir may replace the output of an earlier "
           "run there: its checkpoints are removed, final/ is replaced when it is written, and the metrics are "
           "cleared. `false`: existing checkpoints are an error, and so is an existing final/ with `save_final`; an "
           "existing metrics.jsonl is kept as metrics-1.jsonl, metrics-2.jsonl, …."},
      {.section = section,
       .name = "logging_steps",
       .member = {&Config::output, &OutputConfig::logging_steps},
       .meaning = "Steps from one line of metrics to the next; the last step is always logged.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "report_to",
       .member = {&Config::output, &OutputConfig::report_to},
       .meaning = "Where metrics go in addition to metrics.jsonl. `csv`: output_dir/metrics.csv, one row per line. "
                  "`tensorboard`: event files in output_dir/runs. Both are complete after each line, and a run that "
                  "resumes from a checkpoint continues them."},
      {.section = section,
       .name = "do_eval",
       .member = {&Config::output, &OutputConfig::do_eval},
       .meaning = "Whether the loss on `eval_dataset` is computed after training."},
      {.section = section,
       .name = "save_final",
       .member = {&Config::output, &OutputConfig::save_final},
       .meaning = "Whether the trained model is written to output_dir/final as a Hugging Face folder, with the "
                  "tokenizer's files of model_path, if that is given."},
      {.section = section,
       .name = "max_shard_size",
       .member = {&Config::output, &OutputConfig::max_shard_size},
       .meaning = "Largest size of one safetensors file of `save_final`, in bytes of tensors, such as `5GB` or "
                  "`200MiB`. A larger model is split into several files with an index. A tensor that is larger gets "
                  "a file of its own."},
      {.section = section,
       .name = "trace_path",
       .member = {&Config::trace, &TraceConfig::path},
       .meaning =
           "File for a trace of some steps on all ranks, for ui.perfetto.dev: computation, gathers, reductions, "
           "waits and gathers held back by `limit_all_gathers`, by unit, and memory by category. `fsdp report` shows "
           "one of the steps. null: no trace."},
      {.section = section,
       .name = "trace_first_step",
       .member = {&Config::trace, &TraceConfig::first_step},
       .meaning = "First step to trace, counted from 1 at the start of training or, when resumed, at the "
                  "checkpoint. The first steps are unlike the others, because the order of units is not known "
                  "yet.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "trace_steps",
       .member = {&Config::trace, &TraceConfig::steps},
       .meaning = "How many steps are traced; fewer if training ends earlier.",
       .range = kAtLeastOne},
  };
}

}  // namespace fsdp::trainer
