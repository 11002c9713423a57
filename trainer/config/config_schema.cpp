#include "config/config_schema.h"

namespace fsdp::trainer {

namespace {

constexpr Range kPositive{.lower = 0, .lower_open = true};
constexpr Range kAtLeastZero{.lower = 0};
constexpr Range kAtLeastOne{.lower = 1};
// Of normal positive numbers in fp32.
constexpr Range kScale{.lower = std::numeric_limits<float>::min(), .upper = std::numeric_limits<float>::max()};
constexpr Range kBeta{.lower = 0, .upper = 1, .upper_open = true};

// Written with the section as a running heading, so that the table below reads like its documentation.
std::vector<ConfigKey> model_and_data_keys() {
  const std::string section = "Model and data";
  return {
      {.section = section,
       .name = "model_path",
       .member = &Config::model_path,
       .meaning = "Hugging Face folder with the pretrained model: config.json and safetensors (one file, or several "
                  "with model.safetensors.index.json).",
       .required = true},
      {.section = section,
       .name = "dataset",
       .member = &Config::dataset,
       .meaning = "What to train on. `dummy`: 1024 samples of random tokens drawn from `seed` (`dummy:N`: N "
                  "samples). A file whose name ends in .bin: token ids, little-endian uint16, or uint32 when the "
                  "model's vocabulary has more than 65536 entries. Any other file: its bytes are the token ids. "
                  "Sample i is tokens [i*max_seq_length, (i+1)*max_seq_length)."},
      {.section = section,
       .name = "eval_dataset",
       .member = &Config::eval_dataset,
       .meaning = "What to evaluate on when `do_eval` is true; the same forms as `dataset`. `dummy` draws other "
                  "tokens than the training set's."},
      {.section = section,
       .name = "max_seq_length",
       .member = &Config::max_seq_length,
       .meaning = "Tokens in a sample. At most what the model can attend to.",
       .range = Range{.lower = 2}},
      {.section = section,
       .name = "train_batch_size",
       .member = &Config::train_batch_size,
       .meaning = "Samples that one rank takes for one forward and backward. The global batch is train_batch_size * "
                  "ranks * gradient_accumulation_steps samples.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "eval_batch_size",
       .member = &Config::eval_batch_size,
       .meaning = "Samples that one rank takes for one forward of the evaluation.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "shuffle",
       .member = &Config::shuffle,
       .meaning = "Whether training samples are permuted anew in each epoch: by torch.randperm with a generator "
                  "seeded with seed + epoch, as DistributedSampler does. Evaluation never shuffles."},
      {.section = section,
       .name = "seed",
       .member = &Config::seed,
       .meaning = "Seed of the dummy data, of shuffling and of the model's random operators.",
       .range = kAtLeastZero},
  };
}

std::vector<ConfigKey> optimization_keys() {
  const std::string section = "Optimization";
  return {
      {.section = section,
       .name = "max_steps",
       .member = &Config::max_steps,
       .meaning = "Optimizer steps to train for. The data is repeated as often as needed.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "gradient_accumulation_steps",
       .member = &Config::gradient_accumulation_steps,
       .meaning = "Forward and backward passes for one optimizer step; their losses are averaged. Gradients are "
                  "reduced over the ranks as `sync_each_batch` says.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "sync_each_batch",
       .member = &Config::sync_each_batch,
       .meaning = "With gradient_accumulation_steps above 1: `true` reduces gradients over the ranks in each pass and "
                  "adds them up as shards; `false` adds them up whole on each rank and communicates in the last pass "
                  "only, which takes the memory of all gradients."},
      {.section = section,
       .name = "all_reduce_each_batch",
       .member = &Config::all_reduce_each_batch,
       .meaning = "The same for the second stage of a hybrid strategy: `false` reduce-scatters gradients in the shard "
                  "group in each pass, and all-reduces them over the replicas in the last pass only."},
      {.section = section,
       .name = "gradient_divide_factor",
       .member = &Config::gradient_divide_factor,
       .meaning = "What the sum of the ranks' gradients is divided by. null: the number of ranks, for their mean.",
       .range = kPositive},
      {.section = section,
       .name = "learning_rate",
       .member = &Config::learning_rate,
       .meaning = "Learning rate of AdamW after warm-up.",
       .range = kAtLeastZero},
      {.section = section,
       .name = "lr_scheduler_type",
       .member = &Config::lr_scheduler_type,
       .meaning = "The learning rate after warm-up: `constant`, or falling to 0 at max_steps along a line or a half "
                  "cosine.",
       .choices = {"constant", "linear", "cosine"}},
      {.section = section,
       .name = "warmup_steps",
       .member = &Config::warmup_steps,
       .meaning = "Steps over which the learning rate rises linearly from 0, with every schedule (`constant` then is "
                  "Hugging Face's constant_with_warmup).",
       .range = kAtLeastZero},
      {.section = section,
       .name = "weight_decay",
       .member = &Config::weight_decay,
       .meaning = "Decoupled weight decay of AdamW, on all parameters.",
       .range = kAtLeastZero},
      {.section = section,
       .name = "adam_beta1",
       .member = &Config::adam_beta1,
       .meaning = "Decay of AdamW's running mean of gradients.",
       .range = kBeta},
      {.section = section,
       .name = "adam_beta2",
       .member = &Config::adam_beta2,
       .meaning = "Decay of AdamW's running mean of squared gradients.",
       .range = kBeta},
      {.section = section,
       .name = "adam_epsilon",
       .member = &Config::adam_epsilon,
       .meaning = "Added to AdamW's denominator.",
       .range = kAtLeastZero},
      {.section = section,
       .name = "clip_grad_norm",
       .member = &Config::clip_grad_norm,
       .meaning = "Largest 2-norm of the gradients of all parameters over all ranks; larger ones are scaled down. 0: "
                  "no clipping.",
       .range = kAtLeastZero},
  };
}

std::vector<ConfigKey> precision_keys() {
  const std::string section = "Precision";
  return {
      {.section = section,
       .name = "dtype",
       .member = &Config::dtype,
       .meaning = "dtype of compute and communication: parameters are gathered and used in it.",
       .choices = {"fp32", "bf16", "fp16"}},
      {.section = section,
       .name = "master_dtype",
       .member = &Config::master_dtype,
       .meaning = "dtype of the shards, their gradients and AdamW's state.",
       .choices = {"fp32", "bf16"},
       .unusable = {{"fp16",
                     "AdamW's mean of squared gradients is rounded to 0 in fp16 for gradients below 2e-4, and its "
                     "steps then are hundreds of times too long"}}},
      {.section = section,
       .name = "mixed_precision_reduce_dtype",
       .member = &Config::mixed_precision_reduce_dtype,
       .meaning = "dtype in which gradients are reduced over the ranks. null: that of `dtype`.",
       .choices = {"fp32", "bf16", "fp16"}},
      {.section = section,
       .name = "mixed_precision_buffer_dtype",
       .member = &Config::mixed_precision_buffer_dtype,
       .meaning = "dtype to which floating-point buffers of the model are cast. null: they stay as they are.",
       .choices = {"fp32", "bf16", "fp16"}},
      {.section = section,
       .name = "keep_low_precision_grads",
       .member = &Config::keep_low_precision_grads,
       .meaning = "Whether reduced gradients stay in the dtype of reduction instead of being cast to `master_dtype`. "
                  "AdamW takes either."},
      {.section = section,
       .name = "full_precision_classes",
       .member = &Config::full_precision_classes,
       .meaning = "Module classes whose parameters are gathered, used and reduced in `master_dtype`, such as RMSNorm."},
      {.section = section,
       .name = "full_precision_in_eval",
       .member = &Config::full_precision_in_eval,
       .meaning = "Whether the evaluation gathers and uses parameters in `master_dtype`."},
      {.section = section,
       .name = "fp16_init_scale",
       .member = &Config::fp16_init_scale,
       .meaning = "With fp16 as `dtype` or `mixed_precision_reduce_dtype`: what losses are multiplied by at first.",
       .range = kScale},
      {.section = section,
       .name = "fp16_growth_interval",
       .member = &Config::fp16_growth_interval,
       .meaning = "With fp16: steps without overflow after which the loss scale is doubled. A step with overflow is "
                  "skipped and halves it.",
       .range = kAtLeastOne},
  };
}

std::vector<ConfigKey> device_keys() {
  const std::string section = "Devices and communication";
  return {
      {.section = section,
       .name = "device",
       .member = &Config::device,
       .meaning = "What ranks compute on. `cpu`. `cuda`: the GPU whose index is the rank's on its host (LOCAL_RANK); "
                  "each rank needs one of its own. `auto`: `cuda` where there are enough GPUs for the ranks of the "
                  "host, else `cpu`; the log says which.",
       .choices = {"auto", "cpu", "cuda"}},
      {.section = section,
       .name = "comm_backend",
       .member = &Config::comm_backend,
       .meaning = "How ranks communicate. `gloo`: over the hosts' network, for any device (tensors on a GPU are copied "
                  "to the host and back). `nccl`: between GPUs. `auto`: `nccl` on GPUs if this program was built with "
                  "NCCL, else `gloo`; the log says which.",
       .choices = {"auto", "gloo", "nccl"}},
  };
}

std::vector<ConfigKey> sharding_keys() {
  const std::string section = "Sharding";
  return {
      {.section = section,
       .name = "sharding_strategy",
       .member = &Config::sharding_strategy,
       .meaning = "`full_shard`: parameters, gradients and AdamW's state are sharded (ZeRO-3). `shard_grad_op`: the "
                  "same, but parameters stay gathered from forward to backward (ZeRO-2). `no_shard`: every rank "
                  "holds everything (data parallelism). `hybrid_shard`, `hybrid_shard_zero2`: full_shard or "
                  "shard_grad_op inside groups of `sharding_factor` ranks, each of which holds a copy of the model.",
       .choices = {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"}},
      {.section = section,
       .name = "sharding_factor",
       .member = &Config::sharding_factor,
       .meaning = "Ranks that share one copy of the parameters. With a hybrid strategy: a divisor of the number of "
                  "ranks, or null for the ranks of each host. Otherwise: null, or the number of all ranks (with "
                  "no_shard: 1).",
       .range = kAtLeastOne},
      {.section = section,
       .name = "reshard_after_forward",
       .member = &Config::reshard_after_forward,
       .meaning = "Whether units release their parameters after forward and gather them again for backward. N: they "
                  "release them to groups of N ranks, among which backward gathers; N divides the ranks that share one "
                  "copy, and is smaller. null: as the strategy says. true and N need full_shard or hybrid_shard.",
       .range = Range{.lower = 2}},
      {.section = section,
       .name = "wrap_policy",
       .member = &Config::wrap_policy,
       .meaning = "Which modules become units of their own. `transformer`: the model's blocks and `wrap_classes`, "
                  "under `no_shard` also large embeddings and heads. `size`: modules with at least `size_min_params` "
                  "parameters. `auto_units`: no modules; the order in which the first forward uses parameters is cut "
                  "into units of about equal size. `none`: the whole model is one unit.",
       .choices = {"transformer", "size", "auto_units", "none"}},
      {.section = section,
       .name = "wrap_classes",
       .member = &Config::wrap_classes,
       .meaning = "Further module classes to make units of with wrap_policy `transformer`, for embeddings or heads."},
      {.section = section,
       .name = "size_min_params",
       .member = &Config::size_min_params,
       .meaning = "Smallest number of parameters of a unit with wrap_policy `size`.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "auto_units_target_bytes",
       .member = &Config::auto_units_target_bytes,
       .meaning =
           "With wrap_policy `auto_units`: bytes of a unit's gathered parameters. null: one 32nd of the model's, "
           "and at most those of 33 million elements.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "auto_units_memory_bound",
       .member = &Config::auto_units_memory_bound,
       .meaning =
           "With wrap_policy `auto_units`: bytes that gathered parameters and gradient buffers together may take "
           "at a time on a rank; units are made smaller where need be. null: no bound.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "use_orig_params",
       .member = &Config::use_orig_params,
       .meaning = "Whether the optimizer works on one tensor for each original parameter, or on one for each "
                  "flattened unit. The result is the same."},
      {.section = section,
       .name = "sync_module_states",
       .member = &Config::sync_module_states,
       .meaning = "true: rank 0 reads the weights and sends them to the others, a unit at a time. false: each rank "
                  "reads its part. The headers of the files in `model_path` are read by all either way."},
      {.section = section,
       .name = "cpu_offload",
       .member = &Config::cpu_offload,
       .meaning = "Whether shards, their gradients and the optimizer's state and work are in host memory, pinned for "
                  "GPUs. On the CPU they are there already: true changes nothing, and the log says so."},
      {.section = section,
       .name = "offload_path",
       .member = &Config::offload_path,
       .meaning = "A folder, best on a local disk: shards and optimizer state lie in files there instead of in memory, "
                  "and are read and written as units are used. The files have no names and are gone when the run "
                  "ends. null: no files."},
      {.section = section,
       .name = "backward_prefetch",
       .member = &Config::backward_prefetch,
       .meaning = "When the gather of the unit that backward is expected to need next is issued: before the current "
                  "unit's gradients are computed, after they were and the current unit was released, or when it is "
                  "needed (`none`).",
       .choices = {"none", "backward_pre", "backward_post"}},
      {.section = section,
       .name = "forward_prefetch",
       .member = &Config::forward_prefetch,
       .meaning = "Whether the gather of the unit that forward is expected to need next is issued before the current "
                  "unit's forward."},
      {.section = section,
       .name = "limit_all_gathers",
       .member = &Config::limit_all_gathers,
       .meaning = "Whether at most `max_gathered_units` units are gathered or being gathered at a time. false: gathers "
                  "are issued as far ahead as the order of units is known."},
      {.section = section,
       .name = "max_gathered_units",
       .member = &Config::max_gathered_units,
       .meaning = "Units that are gathered or being gathered at a time, the one in use included, the root and units "
                  "that stay gathered after forward not.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "one_communicator",
       .member = &Config::one_communicator,
       .meaning = "Whether gathers and reductions share one communicator, in which each waits behind what was issued "
                  "before it, instead of having connections of their own."},
      {.section = section,
       .name = "keep_gradient_memory",
       .member = &Config::keep_gradient_memory,
       .meaning =
           "Whether the memory of the shards' gradients stays from step to step. false: it is given back between "
           "steps, which lowers the peak where activations are large, and costs an allocation for each unit."},
      {.section = section,
       .name = "activation_checkpointing",
       .member = &Config::activation_checkpointing,
       .meaning = "Whether blocks recompute their activations in backward instead of keeping them."},
      {.section = section,
       .name = "activation_checkpointing_every",
       .member = &Config::activation_checkpointing_every,
       .meaning =
           "With `activation_checkpointing`: every k-th block is recomputed (blocks 0, k, 2k, …), the others keep "
           "their activations.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "activation_checkpointing_save_ops",
       .member = &Config::activation_checkpointing_save_ops,
       .meaning = "With `activation_checkpointing`: operators whose results are kept instead of recomputed, as the "
                  "dispatcher names them below autograd, such as `aten::mm`."},
  };
}

std::vector<ConfigKey> divergence_keys() {
  const std::string section = "Divergence";
  return {
      {.section = section,
       .name = "collective_check",
       .member = &Config::collective_check,
       .meaning = "When ranks compare what they communicate, so that ranks that diverge are stopped and named. "
                  "`sampled`: in the first `collective_check_first_steps` passes that reduce gradients and in every "
                  "`collective_check_every`-th. Over Gloo, which compares always, all three are the same.",
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

std::vector<ConfigKey> checkpoint_keys() {
  const std::string section = "Checkpoints";
  return {
      {.section = section,
       .name = "save_steps",
       .member = &Config::save_steps,
       .meaning =
           "Steps from one checkpoint to the next: folders output_dir/checkpoint-STEP from which training can go "
           "on, over any number of ranks. The last step is always saved, and so is the step at which a rank is "
           "sent SIGTERM, after which training ends (status 143). A save that fails is said, and training goes "
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
       .meaning = "A checkpoint to go on from: its path, or `latest` for the one of the last step in output_dir, with "
                  "which training starts from the beginning (and says so) when there is none yet. Values of the config "
                  "that have changed since are used, and named in the log. metrics.jsonl is continued: of two lines "
                  "for one step the later counts. null: training starts from the beginning."},
  };
}

std::vector<ConfigKey> output_keys() {
  const std::string section = "Output";
  return {
      {.section = section,
       .name = "output_dir",
       .member = &Config::output_dir,
       .meaning = "Folder for metrics.jsonl, resolved_config.json, checkpoint-STEP/ and final/; created when missing."},
      {.section = section,
       .name = "logging_steps",
       .member = &Config::logging_steps,
       .meaning = "Steps from one line of metrics to the next; the last step is always logged.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "do_eval",
       .member = &Config::do_eval,
       .meaning = "Whether the loss on `eval_dataset` is computed after training."},
      {.section = section,
       .name = "save_final",
       .member = &Config::save_final,
       .meaning = "Whether the trained model is written to output_dir/final as a Hugging Face folder, with the "
                  "tokenizer's files of model_path."},
      {.section = section,
       .name = "trace_path",
       .member = &Config::trace_path,
       .meaning = "File for a trace of some steps on all ranks, for ui.perfetto.dev: computation, gathers, reductions, "
                  "waits and gathers held back by `limit_all_gathers`, by unit. null: no trace."},
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

std::vector<ConfigKey> all_keys() {
  std::vector<ConfigKey> keys;
  for (auto section : {model_and_data_keys(), optimization_keys(), precision_keys(), device_keys(), sharding_keys(),
                       checkpoint_keys(), divergence_keys(), output_keys()}) {
    keys.insert(keys.end(), section.begin(), section.end());
  }
  return keys;
}

}  // namespace

const std::vector<ConfigKey>& config_schema() {
  static const std::vector<ConfigKey> keys = all_keys();
  return keys;
}

const ConfigKey* find_config_key(const std::string& name) {
  for (const ConfigKey& key : config_schema()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

}  // namespace fsdp::trainer
