// Tests that settings which contradict each other are refused with a message that names them, alone and for a number of
// ranks.
#include "config/config_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config_names.h"
#include "testing/config_text.h"

namespace fsdp::trainer::config_checks_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ConfigChecks = ConfigText;

TEST_F(ConfigChecks, ContradictionsNameBothKeys) {
  EXPECT_THAT(error_with(R"("device": "cpu", "comm_backend": "nccl")"),
              AllOf(HasSubstr("comm_backend"), HasSubstr("\"device\" is \"cpu\""), HasSubstr("gloo")));
  EXPECT_THAT(error_with(R"("device": "cuda", "comm_backend": "shm")"),
              AllOf(HasSubstr("comm_backend"), HasSubstr("\"device\" is \"cuda\""), HasSubstr("gloo")));
  EXPECT_THAT(error_with(R"("collective_check": "off", "collective_check_first_steps": 1)"),
              AllOf(HasSubstr("collective_check_first_steps"), HasSubstr("\"collective_check\" is \"off\"")));
  EXPECT_THAT(error_with(R"("collective_check": "always", "collective_check_every": 7)"),
              AllOf(HasSubstr("collective_check_every"), HasSubstr("\"collective_check\" is \"always\"")));
  EXPECT_THAT(error_with(R"("do_eval": true)"), AllOf(HasSubstr("do_eval"), HasSubstr("eval_dataset")));
  EXPECT_THAT(error_with(R"("overwrite_output_dir": true, "resume_from_checkpoint": "latest")"),
              AllOf(HasSubstr("overwrite_output_dir"), HasSubstr("resume_from_checkpoint")));
  EXPECT_THAT(error_with(R"("max_gathered_units": 3, "limit_all_gathers": false)"),
              AllOf(HasSubstr("max_gathered_units"), HasSubstr("limit_all_gathers")));
  EXPECT_THAT(error_with(R"("trace_path": "t.json", "trace_first_step": 11, "max_steps": 10)"),
              AllOf(HasSubstr("trace_first_step"), HasSubstr("max_steps")));
  EXPECT_THAT(error_with(R"("trace_first_step": 1)"), AllOf(HasSubstr("trace_first_step"), HasSubstr("trace_path")));
  EXPECT_THAT(error_with(R"("trace_steps": 1)"), AllOf(HasSubstr("trace_steps"), HasSubstr("trace_path")));
  EXPECT_THAT(error_with(R"("wrap_classes": ["A"], "wrap_policy": "none")"),
              AllOf(HasSubstr("wrap_classes"), HasSubstr("wrap_policy")));
  EXPECT_THAT(error_with(R"("size_min_params": 5)"), AllOf(HasSubstr("size_min_params"), HasSubstr("wrap_policy")));
  EXPECT_THAT(error_with(R"("auto_units_target_bytes": 5)"),
              AllOf(HasSubstr("auto_units_target_bytes"), HasSubstr("\"wrap_policy\" is \"transformer\"")));
  EXPECT_THAT(error_with(R"("auto_units_memory_bound": 5)"),
              AllOf(HasSubstr("auto_units_memory_bound"), HasSubstr("wrap_policy")));
  EXPECT_THAT(error_with(R"("wrap_policy": "auto_units", "use_orig_params": false)"),
              AllOf(HasSubstr("use_orig_params"), HasSubstr("auto_units")));
  EXPECT_THAT(error_with(R"("activation_checkpointing_every": 2)"),
              AllOf(HasSubstr("activation_checkpointing_every"), HasSubstr("\"activation_checkpointing\" is false")));
  EXPECT_THAT(
      error_with(R"("activation_checkpointing_save_ops": ["aten::mm"])"),
      AllOf(HasSubstr("activation_checkpointing_save_ops"), HasSubstr("\"activation_checkpointing\" is false")));
}

TEST_F(ConfigChecks, PipelinesContradictSomeKeys) {
  for (const char* key :
       {R"("pipeline_parallel_schedule": "GPipe")", R"("pipeline_parallel_layers_per_stage": 3)",
        R"("pipeline_parallel_first_stage_less_layers": 0)", R"("pipeline_parallel_last_stage_less_layers": 2)"}) {
    EXPECT_THAT(error_with(key), HasSubstr("but \"pipeline_parallel_degree\" is 1; it needs a larger one")) << key;
  }
  EXPECT_THAT(error_with(R"("pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "1f1")"),
              AllOf(HasSubstr("\"pipeline_parallel_schedule\": \"1f1\""), HasSubstr("accepted: GPipe, 1F1B, ")));
  EXPECT_THAT(error_with(R"("pipeline_parallel_degree": 2, "wrap_policy": "auto_units")"),
              AllOf(HasSubstr("\"wrap_policy\" is \"auto_units\""), HasSubstr("accepted: transformer, size or none")));
  EXPECT_THAT(
      error_with(R"("pipeline_parallel_degree": 2, "sharding_strategy": "hybrid_shard")"),
      AllOf(HasSubstr("\"sharding_strategy\" is \"hybrid_shard\""), HasSubstr("\"data_parallel_shard_degree\"")));
}

TEST_F(ConfigChecks, SplitWeightsContradictSomeKeys) {
  const auto error = [&](const std::string& members) {
    return error_with(R"("tensor_parallel_degree": 3, )" + members);
  };
  const std::string whole = R"("enable_sequence_parallel": false, )";
  EXPECT_THAT(error(R"("max_seq_length": 16)"),
              HasSubstr("key \"max_seq_length\" is 16, which the 3 ranks of \"tensor_parallel_degree\" cannot divide "
                        "evenly; give a multiple of 3, or set \"enable_sequence_parallel\" to false"));
  EXPECT_EQ(error(R"("max_seq_length": 15)"), "no error");
  EXPECT_EQ(error(whole + R"("max_seq_length": 16)"), "no error");
  EXPECT_THAT(error(whole + R"("fused_loss": true)"),
              HasSubstr("key \"fused_loss\" is true, but \"tensor_parallel_degree\" is 3; accepted: false"));
  EXPECT_THAT(error(whole + R"("wrap_policy": "auto_units")"), HasSubstr("\"wrap_policy\" is \"auto_units\""));
}

TEST_F(ConfigChecks, KeysOfOtherOptimizersAreRefused) {
  EXPECT_EQ(read(R"({"model_path": "m", "optimizer": "sgd", "sgd_momentum": 0.9, "weight_decay": 0.1})")
                .optimizer.sgd_momentum,
            0.9);
  EXPECT_THAT(error_with(R"("optimizer": "sgd", "adam_beta1": 0.8)"),
              HasSubstr(R"(key "adam_beta1" is 0.8, but "optimizer" is "sgd"; it needs "adamw")"));
  EXPECT_THAT(error_with(R"("optimizer": "sgd", "adam_beta2": 0.8)"), HasSubstr(R"(key "adam_beta2" is 0.8)"));
  EXPECT_THAT(error_with(R"("optimizer": "sgd", "adam_epsilon": 1)"), HasSubstr(R"(key "adam_epsilon" is 1.0)"));
  EXPECT_THAT(error_with(R"("sgd_momentum": 0.9)"),
              HasSubstr(R"(key "sgd_momentum" is 0.9, but "optimizer" is "adamw"; it needs "sgd")"));
  EXPECT_EQ(error_with(R"("optimizer": "sgd", "adam_beta1": 0.9)"), "no error") << "the default";
  EXPECT_THAT(error_with(R"("optimizer": "lion")"), HasSubstr("accepted: adamw or sgd"));
}

TEST_F(ConfigChecks, ActivationCheckpointing) {
  const Config c = read(R"({"model_path": "m", "activation_checkpointing": true, "activation_checkpointing_every": 2,
                            "activation_checkpointing_save_ops": ["aten::mm", "aten::bmm"]})");
  EXPECT_TRUE(c.model.activation_checkpointing);
  EXPECT_EQ(c.model.activation_checkpointing_every, 2);
  EXPECT_EQ(c.model.activation_checkpointing_save_ops, (std::vector<std::string>{"aten::mm", "aten::bmm"}));
  EXPECT_EQ(read(R"({"model_path": "m", "activation_checkpointing": true})").model.activation_checkpointing_every, 1);
  EXPECT_THAT(error_with(R"("activation_checkpointing": true, "activation_checkpointing_every": 0)"),
              HasSubstr("an integer >= 1"));
}

TEST_F(ConfigChecks, Fp16AndItsLossScaling) {
  const Config c = read(R"({"model_path": "m", "dtype": "fp16", "mixed_precision_reduce_dtype": "fp16",
                            "mixed_precision_buffer_dtype": "fp16", "fp16_init_scale": 1024, "fp16_growth_interval": 3})");
  EXPECT_EQ(c.precision.dtype, c10::kHalf);
  EXPECT_EQ(c.precision.reduce_dtype, c10::kHalf);
  EXPECT_EQ(c.precision.buffer_dtype, c10::kHalf);
  EXPECT_EQ(c.precision.fp16_init_scale, 1024);
  EXPECT_EQ(c.precision.fp16_growth_interval, 3);
  EXPECT_EQ(read(R"({"model_path": "m", "mixed_precision_reduce_dtype": "fp16", "fp16_init_scale": 8})")
                .precision.fp16_init_scale,
            8);
  for (const std::string key : {"fp16_init_scale", "fp16_growth_interval"}) {
    EXPECT_THAT(error_with("\"" + key + "\": 3"),
                AllOf(HasSubstr("\"" + key + "\" is 3"), HasSubstr(R"("dtype" ("bf16"))"),
                      HasSubstr("mixed_precision_reduce_dtype")));
    EXPECT_THAT(error_with(R"("dtype": "fp16", ")" + key + "\": 0"), HasSubstr("is out of range"));
  }
  EXPECT_THAT(error_with(R"("dtype": "fp16", "fp16_init_scale": 1e39)"), HasSubstr("is out of range"));
  EXPECT_THAT(error_with(R"("master_dtype": "fp16")"),
              AllOf(HasSubstr(R"("master_dtype": "fp16" cannot be used)"), HasSubstr("squared gradients"),
                    HasSubstr("accepted: fp32 or bf16")));
}

TEST_F(ConfigChecks, KeysOfMixedPrecision) {
  const Config c = read(R"({"model_path": "m", "keep_low_precision_grads": true, "full_precision_in_eval": true,
                            "full_precision_classes": ["RMSNorm"], "mixed_precision_buffer_dtype": "bf16"})");
  EXPECT_TRUE(c.precision.keep_low_precision_grads);
  EXPECT_TRUE(c.precision.full_precision_in_eval);
  EXPECT_EQ(c.precision.full_precision_classes, std::vector<std::string>{"RMSNorm"});
  EXPECT_EQ(c.precision.buffer_dtype, c10::kBFloat16);
  EXPECT_EQ(read("{}", {"model_path=m", "mixed_precision_buffer_dtype=null"}).precision.buffer_dtype, std::nullopt);
  EXPECT_THAT(error_with(R"("mixed_precision_buffer_dtype": "fp8")"), HasSubstr("fp32, bf16, fp16 or null"));
  EXPECT_THAT(error_with(R"("full_precision_classes": "RMSNorm")"), HasSubstr("is not of type list of strings"));
}

TEST_F(ConfigChecks, GradientDivideFactorIsANumberOrNull) {
  EXPECT_EQ(read(R"({"model_path": "m", "gradient_divide_factor": 8})").steps.gradient_divide_factor, 8.0);
  EXPECT_EQ(read("{}", {"model_path=m", "gradient_divide_factor=0.5"}).steps.gradient_divide_factor, 0.5);
  EXPECT_EQ(read("{}", {"model_path=m", "gradient_divide_factor=null"}).steps.gradient_divide_factor, std::nullopt);
  EXPECT_THAT(error_with(R"("gradient_divide_factor": 0)"),
              AllOf(HasSubstr("0 is out of range"), HasSubstr("a number > 0 or null")));
  EXPECT_THAT(error_with(R"("gradient_divide_factor": "8")"), HasSubstr("is not of type number or null"));
}

TEST_F(ConfigChecks, AccumulationHasKeysForCommunication) {
  EXPECT_FALSE(read(R"({"model_path": "m", "sync_each_batch": false})").steps.sync_each_batch);
  EXPECT_FALSE(read(R"({"model_path": "m", "all_reduce_each_batch": false, "sharding_strategy": "hybrid_shard"})")
                   .steps.all_reduce_each_batch);
  EXPECT_THAT(error_with(R"("all_reduce_each_batch": false)"),
              AllOf(HasSubstr("all_reduce_each_batch"), HasSubstr(R"("sharding_strategy" is "full_shard")")));
  EXPECT_THAT(error_with(R"("all_reduce_each_batch": false, "sync_each_batch": false,
                            "sharding_strategy": "hybrid_shard_zero2")"),
              AllOf(HasSubstr("all_reduce_each_batch"), HasSubstr("sync_each_batch")));
}

TEST_F(ConfigChecks, ReshardAfterForwardIsABooleanAnIntegerOrNull) {
  const auto value = [&](const std::string& text) {
    const Config c = read(R"({"model_path": "m", "reshard_after_forward": )" + text + "}");
    EXPECT_EQ(to_json(c)["reshard_after_forward"].dump(), text);
    EXPECT_EQ(read("{}", {"model_path=m", "reshard_after_forward=" + text}), c);
    return c.sharding.reshard_after_forward;
  };
  EXPECT_EQ(value("null"), std::nullopt);
  EXPECT_EQ(value("true"), BoolOrInteger(true));
  EXPECT_EQ(value("false"), BoolOrInteger(false));
  EXPECT_EQ(value("4"), BoolOrInteger(int64_t{4}));
  for (const std::string wrong : {"\"yes\"", "2.5", "[2]"}) {
    EXPECT_THAT(
        error_with("\"reshard_after_forward\": " + wrong),
        AllOf(HasSubstr("is not of type boolean, integer or null"), HasSubstr("true, false, an integer >= 2 or null")));
  }
  for (const std::string wrong : {"1", "-2", "18446744073709551615"}) {
    EXPECT_THAT(error_with("\"reshard_after_forward\": " + wrong), HasSubstr(wrong + " is out of range"));
  }
}

TEST_F(ConfigChecks, ReshardingNeedsAStrategyThatReleases) {
  for (const std::string strategy : {"shard_grad_op", "no_shard", "hybrid_shard_zero2"}) {
    for (const std::string value : {"true", "2"}) {
      EXPECT_THAT(error_with("\"sharding_strategy\": \"" + strategy + "\", \"reshard_after_forward\": " + value),
                  AllOf(HasSubstr("\"reshard_after_forward\" is " + value), HasSubstr(strategy)));
    }
    EXPECT_EQ(read(R"({"model_path": "m", "reshard_after_forward": false, "sharding_strategy": ")" + strategy + "\"}")
                  .sharding.strategy,
              from_config_name<ShardingStrategy>(strategy));
  }
}

// Returns the error of a strategy with a factor on a number of ranks, or an empty string if there is none.
std::string world_size_error(const std::string& strategy, std::optional<int64_t> factor, int64_t world_size,
                             std::optional<BoolOrInteger> reshard = std::nullopt) {
  Config c;
  c.sharding.strategy = from_config_name<ShardingStrategy>(strategy);
  c.sharding.factor = factor;
  c.sharding.reshard_after_forward = reshard;
  try {
    check_for_world_size(c, world_size);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(ConfigForRanks, ShardingFactorMustFit) {
  for (const std::string strategy : {"full_shard", "shard_grad_op"}) {
    EXPECT_EQ(world_size_error(strategy, std::nullopt, 4), "");
    EXPECT_EQ(world_size_error(strategy, 4, 4), "");
    EXPECT_THAT(world_size_error(strategy, 2, 4),
                AllOf(HasSubstr("\"sharding_factor\": 2"), HasSubstr(strategy), HasSubstr("accepted: 4 or null")));
  }
  EXPECT_EQ(world_size_error("no_shard", 1, 4), "");
  EXPECT_THAT(world_size_error("no_shard", 4, 4), HasSubstr("accepted: 1 or null"));
  for (const std::string strategy : {"hybrid_shard", "hybrid_shard_zero2"}) {
    for (std::optional<int64_t> factor : {std::optional<int64_t>(), {1}, {2}, {3}, {6}}) {
      EXPECT_EQ(world_size_error(strategy, factor, 6), "");
    }
    for (int64_t factor : {4, 12}) {
      EXPECT_THAT(world_size_error(strategy, factor, 6),
                  AllOf(HasSubstr("\"sharding_factor\": " + std::to_string(factor)), HasSubstr(strategy),
                        HasSubstr("6 rank(s)"), HasSubstr("accepted: 1, 2, 3, 6 or null")));
    }
  }
}

TEST(ConfigForRanks, ReshardAfterForwardMustDivideTheRanks) {
  EXPECT_EQ(world_size_error("full_shard", std::nullopt, 6, int64_t{3}), "");
  EXPECT_EQ(world_size_error("hybrid_shard", 4, 8, int64_t{2}), "");
  EXPECT_EQ(world_size_error("hybrid_shard", std::nullopt, 4, int64_t{2}), "");
  EXPECT_EQ(world_size_error("full_shard", std::nullopt, 1, true), "");
  for (int64_t group : {4, 6, 12}) {
    EXPECT_THAT(world_size_error("full_shard", std::nullopt, 6, group),
                AllOf(HasSubstr("\"reshard_after_forward\": " + std::to_string(group)),
                      HasSubstr("accepted: true, false, null, 2, 3;"), HasSubstr("the 6 rank(s)")));
  }
  EXPECT_THAT(world_size_error("hybrid_shard", 4, 8, int64_t{4}),
              AllOf(HasSubstr("null, 2;"), HasSubstr("the 4 rank(s)")));
  EXPECT_THAT(world_size_error("full_shard", std::nullopt, 2, int64_t{2}), HasSubstr("accepted: true, false, null;"));
}

}  // namespace
}  // namespace fsdp::trainer::config_checks_test
