#include "config/config_keys.h"

namespace fsdp::trainer {

std::vector<ConfigKey> checkpoint_keys() {
  const std::string section = "Checkpoints";
  return {
      {.section = section,
       .name = "save_steps",
       .member = &Config::save_steps,
       .meaning =
           "Steps from one checkpoint to the next: folders output_dir/checkpoint-STEP from which training can go "
           "on, over any number of ranks. The last step is always saved, and so is the step at which a rank is "
           "sent SIGTERM, SIGINT, SIGHUP, SIGUSR1 or SIGUSR2, after which training ends (status 143). A save that "
           "fails is said, and training goes "
           "on. All hosts must see the same output_dir. null: none.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "save_total_limit",
       .member = &Config::save_total_limit,
       .meaning = "How many checkpoints are kept, those of the last steps: after each save, older ones in output_dir "
                  "are removed. null: all.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "async_save",
       .member = &Config::async_save,
       .meaning = "Whether checkpoints are written while training goes on: it waits only until shards and optimizer "
                  "state are copied, which takes their size in host memory again until they are written. A save that "
                  "begins while another is under way waits for it."},
      {.section = section,
       .name = "resume_from_checkpoint",
       .member = &Config::resume_from_checkpoint,
       .meaning =
           "A checkpoint to go on from: its path, or `latest` for the one of the last step in output_dir, with "
           "which training starts from the beginning (and says so) when there is none yet. `latest` goes on "
           "from the newest sound one: a damaged one is said, and set aside as damaged-checkpoint-STEP. A run of "
           "PyTorch goes on from what `fsdp convert` made of its checkpoint. Values of the config "
           "that have changed since are used, and named in the log. metrics.jsonl is continued: of two lines "
           "for one step the later counts. null: training starts from the beginning."},
  };
}

std::vector<ConfigKey> divergence_keys() {
  const std::string section = "Divergence";
  return {
      {.section = section,
       .name = "collective_check",
       .member = &Config::collective_check,
       .meaning =
           "When ranks compare what they communicate, so that ranks that diverge are stopped and named. "
           "`sampled`: in the first `collective_check_first_steps` passes that reduce gradients and in every "
           "`collective_check_every`-th. Over Gloo and shared memory, which compare always, all three are the same.",
       .choices = {"off", "sampled", "always"}},
      {.section = section,
       .name = "collective_check_first_steps",
       .member = &Config::collective_check_first_steps,
       .meaning = "With collective_check `sampled`: passes at the beginning in which ranks compare.",
       .range = kAtLeastZero},
      {.section = section,
       .name = "collective_check_every",
       .member = &Config::collective_check_every,
       .meaning =
           "With collective_check `sampled`: after them, ranks compare in each pass whose number, counted from 0, "
           "this divides. 0: in none.",
       .range = kAtLeastZero},
      {.section = section,
       .name = "watchdog_seconds",
       .member = &Config::watchdog_seconds,
       .meaning = "After a rank has waited this long for others, the late ones are named on stderr, with the unit and "
                  "what they did last. 0: never. null: 30 seconds.",
       .range = Range{.lower = 0, .upper = 1800, .upper_open = true}},
      {.section = section,
       .name = "collective_dump",
       .member = &Config::collective_dump,
       .meaning = "Whether a rank whose communication fails leaves its last 64 collectives in "
                  "output_dir/collectives_rank<R>.txt."},
  };
}

std::vector<ConfigKey> output_keys() {
  const std::string section = "Output";
  return {
      {.section = section,
       .name = "output_dir",
       .member = &Config::output_dir,
       .meaning =
           "Folder for metrics.jsonl, run.json (config and number of ranks, for `fsdp report`), resolved_config.json, "
           "checkpoint-STEP/ and final/; created when missing."},
      {.section = section,
       .name = "overwrite_output_dir",
       .member = &Config::overwrite_output_dir,
       .meaning =
           "Whether a run that does not go on from a checkpoint in output_dir may replace what an earlier run has "
           "left there: its checkpoints are removed, final/ is replaced when it is written, and metrics are "
           "emptied. `false`: checkpoints there, and with `save_final` a final/, are an error, and a metrics.jsonl "
           "is kept as metrics-1.jsonl, metrics-2.jsonl, …."},
      {.section = section,
       .name = "logging_steps",
       .member = &Config::logging_steps,
       .meaning = "Steps from one line of metrics to the next; the last step is always logged.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "report_to",
       .member = &Config::report_to,
       .meaning = "Where metrics go beside metrics.jsonl. `csv`: output_dir/metrics.csv, a row for each line. "
                  "`tensorboard`: event files in output_dir/runs. Both are whole after each line, and a run that goes "
                  "on from a checkpoint continues them.",
       .choices = {"csv", "tensorboard"}},
      {.section = section,
       .name = "do_eval",
       .member = &Config::do_eval,
       .meaning = "Whether the loss on `eval_dataset` is computed after training."},
      {.section = section,
       .name = "save_final",
       .member = &Config::save_final,
       .meaning = "Whether the trained model is written to output_dir/final as a Hugging Face folder, with the "
                  "tokenizer's files of model_path, if that is given."},
      {.section = section,
       .name = "max_shard_size",
       .member = &Config::max_shard_size,
       .meaning = "Bytes of tensors in one safetensors file of `save_final`, such as `5GB` or `200MiB`; with more of "
                  "them there are several, and an index. A larger tensor has a file of its own."},
      {.section = section,
       .name = "trace_path",
       .member = &Config::trace_path,
       .meaning =
           "File for a trace of some steps on all ranks, for ui.perfetto.dev: computation, gathers, reductions, "
           "waits and gathers held back by `limit_all_gathers`, by unit, and memory by category. `fsdp report` shows "
           "a step of it. null: no trace."},
      {.section = section,
       .name = "trace_first_step",
       .member = &Config::trace_first_step,
       .meaning = "First step to be traced, counted from 1 at the start or, when resumed, from the checkpoint. The "
                  "first steps are unlike the others: nothing is known of "
                  "the order of units yet.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "trace_steps",
       .member = &Config::trace_steps,
       .meaning = "How many steps are traced; fewer where training ends before.",
       .range = kAtLeastOne},
  };
}

}  // namespace fsdp::trainer
