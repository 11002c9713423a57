#include "config/config_keys.h"
#include "optimizers/registry.h"

namespace fsdp::trainer {

std::vector<ConfigKey> model_and_data_keys() {
  const std::string section = "Model and data";
  return {
      {.section = section,
       .name = "model_path",
       .member = {&Config::model, &ModelConfig::path},
       .meaning = "Hugging Face folder with the pretrained model: config.json and safetensors (one file, or several "
                  "with model.safetensors.index.json). Either this or `model` must be given."},
      {.section = section,
       .name = "model",
       .member = {&Config::model, &ModelConfig::definition},
       .meaning = "Model to train from scratch: the name of a preset (docs/models.md lists them), or an object as in "
                  "a config.json. Its weights are initialized from `seed`, unit by unit, and are the same for any "
                  "number of ranks; embedding tables have a seed in the model's config (`embedding_seed`)."},
      {.section = section,
       .name = "dataset",
       .member = {&Config::data, &DataConfig::dataset},
       .meaning = "The training data. `dummy`: 1024 random samples drawn from `seed` (`dummy:N`: N samples). "
                  "Otherwise a file, in the format of the model's kind. Language models: a file of token ids. If its "
                  "name ends in .bin, they are little-endian uint16, or uint32 when the model's vocabulary has more "
                  "than 65536 entries; in any other file, each byte is a token id. Sample i is tokens "
                  "[i*max_seq_length, (i+1)*max_seq_length). For a sequence-to-sequence model, a sample is "
                  "max_seq_length tokens of a source, followed by max_target_length tokens of its target; the "
                  "model's pad_token_id is padding in both. Image classifiers: a safetensors file with a tensor "
                  "`images`, [N, channels, height, width], of uint8 (which is divided by 255) or floating point, and "
                  "a tensor `labels`, [N], of integers. Models of tabular data: a safetensors file with the tensors "
                  "`numeric`, [N, numeric features], of floating point; `categorical`, [N, tables], of integers, "
                  "each the index of a row in its table; and `labels`, [N], of integers 0 and 1."},
      {.section = section,
       .name = "eval_dataset",
       .member = {&Config::data, &DataConfig::eval_dataset},
       .meaning = "The data to evaluate on when `do_eval` is true, in the same formats as `dataset`. `dummy` draws "
                  "samples that differ from the training set's."},
      {.section = section,
       .name = "max_seq_length",
       .member = {&Config::data, &DataConfig::max_seq_length},
       .meaning = "Tokens in a sample or, for a sequence-to-sequence model, in its source. At most the longest "
                  "sequence that the model can attend to.",
       .range = Range{.lower = 2}},
      {.section = section,
       .name = "attn_mask_type",
       .member = {&Config::model, &ModelConfig::attention_mask},
       .meaning = "Which tokens of its sample a token of a causal language model attends to: all before it (`causal`), "
                  "or those before it in its document (`block_causal`), whose positions are then counted from the "
                  "document's first token. A document ends with the model's eos_token_id (config.json) or with the "
                  "sample. Each document is computed by itself, so that short ones cost less than the whole square; "
                  "TFLOPS in the log still count whole samples."},
      {.section = section,
       .name = "max_target_length",
       .member = {&Config::data, &DataConfig::max_target_length},
       .meaning = "Tokens in the target of a sample, for sequence-to-sequence models only. null: max_seq_length.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "image_size",
       .member = {&Config::data, &DataConfig::image_size},
       .meaning = "Height and width of images, for image classifiers only. null: the size that the model expects. If "
                  "the model takes any size: the size of the images in the file, or 224 for dummy images.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "train_batch_size",
       .member = {&Config::data, &DataConfig::train_batch_size},
       .meaning = "Samples that each rank processes in one forward and backward pass. The global batch is "
                  "train_batch_size * ranks * gradient_accumulation_steps samples.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "eval_batch_size",
       .member = {&Config::data, &DataConfig::eval_batch_size},
       .meaning = "Samples that each rank processes in one forward pass of the evaluation.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "shuffle",
       .member = {&Config::data, &DataConfig::shuffle},
       .meaning = "Whether training samples are permuted anew in each epoch: by torch.randperm with a generator "
                  "seeded with seed + epoch, as DistributedSampler does. Evaluation never shuffles."},
      {.section = section,
       .name = "seed",
       .member = {&Config::steps, &StepsConfig::seed},
       .meaning =
           "Seed of the dummy data, of the weights of `model`, of shuffling and of the model's random operators.",
       .range = kAtLeastZero},
  };
}

std::vector<ConfigKey> optimization_keys() {
  const std::string section = "Optimization";
  return {
      {.section = section,
       .name = "max_steps",
       .member = {&Config::steps, &StepsConfig::max_steps},
       .meaning = "Optimizer steps to train for. The data is repeated as often as needed.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "gradient_accumulation_steps",
       .member = {&Config::steps, &StepsConfig::gradient_accumulation_steps},
       .meaning = "Forward and backward passes per optimizer step; their losses are averaged. Gradients are reduced "
                  "over the ranks as `sync_each_batch` says.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "sync_each_batch",
       .member = {&Config::steps, &StepsConfig::sync_each_batch},
       .meaning = "With gradient_accumulation_steps above 1: `true` reduces gradients over the ranks in each pass "
                  "and accumulates the shards. `false` accumulates whole gradients on each rank and reduces them in "
                  "the last pass only, as PyTorch's no_sync does, which takes memory for the gradients of the whole "
                  "model. In either case, gradients of split embedding tables are sent in each pass to the ranks "
                  "that hold the rows."},
      {.section = section,
       .name = "all_reduce_each_batch",
       .member = {&Config::steps, &StepsConfig::all_reduce_each_batch},
       .meaning = "The same for the second stage of a hybrid strategy: `false` reduce-scatters gradients in the shard "
                  "group in each pass, and all-reduces them over the replicas in the last pass only."},
      {.section = section,
       .name = "gradient_divide_factor",
       .member = {&Config::steps, &StepsConfig::gradient_divide_factor},
       .meaning = "Divisor of the sum of the ranks' gradients. null: the number of ranks, which gives the mean.",
       .range = kPositive},
      {.section = section,
       .name = "optimizer",
       .member = {&Config::optimizer, &OptimizerConfig::name},
       .meaning = "Optimizer of all parameters except embedding tables of models of tabular data: AdamW, or SGD with "
                  "momentum, which compute the same as torch.optim.AdamW and torch.optim.SGD.",
       .choices = optimizer_names()},
      {.section = section,
       .name = "learning_rate",
       .member = {&Config::optimizer, &OptimizerConfig::learning_rate},
       .meaning = "Learning rate of `optimizer` after warm-up.",
       .range = kAtLeastZero},
      {.section = section,
       .name = "lr_scheduler_type",
       .member = {&Config::optimizer, &OptimizerConfig::lr_scheduler_type},
       .meaning = "Schedule of the learning rate after warm-up: `constant`, or a decay to 0 at max_steps, `linear` or "
                  "along half a cosine (`cosine`)."},
      {.section = section,
       .name = "warmup_steps",
       .member = {&Config::optimizer, &OptimizerConfig::warmup_steps},
       .meaning = "Steps over which the learning rate rises linearly from 0, with every schedule (`constant` is then "
                  "Hugging Face's constant_with_warmup).",
       .range = kAtLeastZero},
      {.section = section,
       .name = "weight_decay",
       .member = {&Config::optimizer, &OptimizerConfig::weight_decay},
       .meaning = "Weight decay of `optimizer`, on all parameters: decoupled in AdamW, added to the gradient in SGD.",
       .range = kAtLeastZero},
      {.section = section,
       .name = "adam_beta1",
       .member = {&Config::optimizer, &OptimizerConfig::adam_beta1},
       .meaning = "Decay of AdamW's running mean of gradients.",
       .range = kBeta},
      {.section = section,
       .name = "adam_beta2",
       .member = {&Config::optimizer, &OptimizerConfig::adam_beta2},
       .meaning = "Decay of AdamW's running mean of squared gradients.",
       .range = kBeta},
      {.section = section,
       .name = "adam_epsilon",
       .member = {&Config::optimizer, &OptimizerConfig::adam_epsilon},
       .meaning = "Added to AdamW's denominator.",
       .range = kAtLeastZero},
      {.section = section,
       .name = "sgd_momentum",
       .member = {&Config::optimizer, &OptimizerConfig::sgd_momentum},
       .meaning = "Momentum of SGD. 0: none, and the optimizer has no state.",
       .range = kBeta},
      {.section = section,
       .name = "clip_grad_norm",
       .member = {&Config::steps, &StepsConfig::clip_grad_norm},
       .meaning = "Maximum 2-norm of the gradients of all parameters together, embedding tables included, over all "
                  "ranks; gradients with a larger norm are scaled down to it. 0: no clipping.",
       .range = kAtLeastZero},
      {.section = section,
       .name = "fused_loss",
       .member = {&Config::model, &ModelConfig::fused_loss},
       .meaning = "Whether language models compute head and loss together in chunks of tokens, in training and in "
                  "evaluation, so that the logits of a whole batch are never in memory at once. The loss is the same "
                  "up to rounding; from forward to backward, the gradient of the head's weight takes memory in fp32."},
      {.section = section,
       .name = "sparse_optimizer",
       .member = {&Config::optimizer, &OptimizerConfig::sparse_optimizer},
       .meaning =
           "Optimizer of the embedding tables of models of tabular data, which `optimizer` does not train: row-wise "
           "Adagrad (one running sum of squares for each row) or SGD, on the rows that a step has looked up."},
      {.section = section,
       .name = "sparse_learning_rate",
       .member = {&Config::optimizer, &OptimizerConfig::sparse_learning_rate},
       .meaning = "Learning rate of `sparse_optimizer` after warm-up; it follows `lr_scheduler_type`. null: 0.01.",
       .range = kAtLeastZero},
  };
}

std::vector<ConfigKey> precision_keys() {
  const std::string section = "Precision";
  return {
      {.section = section,
       .name = "dtype",
       .member = {&Config::precision, &PrecisionConfig::dtype},
       .meaning = "dtype of compute and communication: parameters are gathered and used in it."},
      {.section = section,
       .name = "master_dtype",
       .member = {&Config::precision, &PrecisionConfig::master_dtype},
       .meaning = "dtype of the shards, their gradients and the optimizer's state.",
       .choices = {"fp32", "bf16"},
       .unusable = {{"fp16",
                     "AdamW's mean of squared gradients is rounded to 0 in fp16 for gradients below 2e-4, and its "
                     "updates are then hundreds of times too large"}}},
      {.section = section,
       .name = "mixed_precision_reduce_dtype",
       .member = {&Config::precision, &PrecisionConfig::reduce_dtype},
       .meaning = "dtype in which gradients are reduced over the ranks. null: that of `dtype`."},
      {.section = section,
       .name = "mixed_precision_buffer_dtype",
       .member = {&Config::precision, &PrecisionConfig::buffer_dtype},
       .meaning = "dtype to which floating-point buffers of the model are cast. null: they stay as they are."},
      {.section = section,
       .name = "keep_low_precision_grads",
       .member = {&Config::precision, &PrecisionConfig::keep_low_precision_grads},
       .meaning = "Whether reduced gradients stay in the dtype of reduction instead of being cast to `master_dtype`. "
                  "All optimizers accept either."},
      {.section = section,
       .name = "full_precision_classes",
       .member = {&Config::precision, &PrecisionConfig::full_precision_classes},
       .meaning = "Module classes whose parameters are gathered, used and reduced in `master_dtype`, such as RMSNorm."},
      {.section = section,
       .name = "full_precision_in_eval",
       .member = {&Config::precision, &PrecisionConfig::full_precision_in_eval},
       .meaning = "Whether the evaluation gathers and uses parameters in `master_dtype`."},
      {.section = section,
       .name = "fp16_init_scale",
       .member = {&Config::precision, &PrecisionConfig::fp16_init_scale},
       .meaning = "Initial loss scale when `dtype` or `mixed_precision_reduce_dtype` is fp16.",
       .range = kScale},
      {.section = section,
       .name = "fp16_growth_interval",
       .member = {&Config::precision, &PrecisionConfig::fp16_growth_interval},
       .meaning = "With fp16: number of consecutive steps without overflow after which the loss scale is doubled. A "
                  "step with overflow is skipped, and the loss scale is halved.",
       .range = kAtLeastOne},
  };
}

}  // namespace fsdp::trainer
