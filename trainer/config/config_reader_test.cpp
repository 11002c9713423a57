// Tests reading configs: values arrive, and every kind of bad input is refused with a message that says how to fix it.
#include "config/config_reader.h"
#include "config/config_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "config/config_checks.h"
#include "config/config_schema.h"
#include "config/config_writer.h"
#include "config/errors.h"
#include "support/files/temporary_folder.h"

namespace fsdp::trainer::config_reader_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ConfigReader : public ::testing::Test {
 protected:
  Config read(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return read_config(folder_.write("config.json", text), overrides);
  }
  std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
    try {
      read(text, overrides);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
  // Returns the error of a config in which `member` ("\"key\": value") follows "model_path".
  std::string error_with(const std::string& member) { return error_of("{\"model_path\": \"m\",\n " + member + "}"); }

  testing::TemporaryFolder folder_;
};

TEST_F(ConfigReader, DefaultsAreThoseOfTheStruct) {
  Config expected;
  expected.model.path = "some/model";
  EXPECT_EQ(read(R"({"model_path": "some/model"})"), expected);
}

TEST_F(ConfigReader, ReadsEveryType) {
  const Config c = read(R"({"model_path": "m", "eval_dataset": "e.bin", "do_eval": true, "max_steps": 7,
      "learning_rate": 1e-3, "adam_epsilon": 0, "wrap_classes": ["Embedding", "Linear"], "sharding_factor": 4})");
  EXPECT_EQ(c.data.eval_dataset, "e.bin");
  EXPECT_TRUE(c.output.do_eval);
  EXPECT_EQ(c.steps.max_steps, 7);
  EXPECT_EQ(c.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(c.optimizer.adam_epsilon, 0.0);
  EXPECT_THAT(c.sharding.wrap_classes, ::testing::ElementsAre("Embedding", "Linear"));
  EXPECT_EQ(c.sharding.factor, 4);
}

TEST_F(ConfigReader, ListsOfChoicesTakeNoOthers) {
  EXPECT_THAT(read(R"({"model_path": "m", "report_to": ["tensorboard", "csv"]})").output.report_to,
              ::testing::ElementsAre(ReportTo::kTensorBoard, ReportTo::kCsv));
  EXPECT_THAT(error_with("\"report_to\": [\"csv\", \"wandb\"]"),
              AllOf(HasSubstr("key \"report_to\": \"wandb\" is not an accepted value"),
                    HasSubstr("accepted: a list of csv or tensorboard")));
  EXPECT_THAT(error_with("\"report_to\": \"csv\""), HasSubstr("is not of type list of strings"));
}

TEST_F(ConfigReader, NullUnsetsOptionalKeysOnly) {
  EXPECT_EQ(read(R"({"model_path": "m", "mixed_precision_reduce_dtype": null})").precision.reduce_dtype, std::nullopt);
  EXPECT_THAT(error_with(R"("dtype": null)"), HasSubstr(R"(key "dtype": null is not of type string)"));
}

TEST_F(ConfigReader, OverridesWinAndTheLastWinsAmongThem) {
  const Config c = read(R"({"model_path": "m", "max_steps": 5, "sharding_factor": 2})",
                        {"max_steps=6", "max_steps=7", "model_path=a=b", "shuffle=false", "learning_rate=2e-4",
                         "sharding_factor=null", "wrap_classes=Embedding,Linear"});
  EXPECT_EQ(c.steps.max_steps, 7);
  EXPECT_EQ(c.model.path, "a=b");
  EXPECT_FALSE(c.data.shuffle);
  EXPECT_EQ(c.optimizer.learning_rate, 2e-4);
  EXPECT_EQ(c.sharding.factor, std::nullopt);
  EXPECT_THAT(c.sharding.wrap_classes, ::testing::ElementsAre("Embedding", "Linear"));
}

TEST_F(ConfigReader, OverridesOfStringsAreTakenLiterally) {
  EXPECT_EQ(read("{}", {"model_path=123"}).model.path, "123");
  EXPECT_EQ(read(R"({"model_path": "m"})", {R"(wrap_classes=["A", "B"])"}).sharding.wrap_classes.size(), 2u);
}

TEST_F(ConfigReader, BadOverridesNameTheOverride) {
  const std::string base = R"({"model_path": "m"})";
  EXPECT_THAT(error_of(base, {"max_steps"}), AllOf(HasSubstr("--set max_steps"), HasSubstr("KEY=VALUE")));
  EXPECT_THAT(error_of(base, {"max_steps=ten"}),
              AllOf(HasSubstr("--set max_steps=ten"), HasSubstr("\"ten\" is not of type integer")));
  EXPECT_THAT(error_of(base, {"max_stepz=10"}), HasSubstr("nearest known one is \"max_steps\""));
  EXPECT_THAT(error_of(base, {"max_steps="}), HasSubstr("is not of type integer"));
}

TEST_F(ConfigReader, OverridesThatBeginAsJsonMustBeJson) {
  EXPECT_THAT(error_of("{}", {"model=[1"}), AllOf(HasSubstr("--set model=[1:1:3: "), HasSubstr("end of input")));
  EXPECT_THAT(error_of("{}", {R"(model={"model_type": "gpt2)"}), HasSubstr("--set model={\"model_type\": \"gpt2:1:"));
  EXPECT_THAT(error_of("{}", {"wrap_classes=[A, B]"}), HasSubstr("--set wrap_classes=[A, B]:1:2: "));
  EXPECT_THAT(error_of("{}", {"model=[1]"}), HasSubstr("[1] is not of type string, object or null"));
  EXPECT_EQ(read("{}", {R"(model={"model_type": "gpt2"})"}).model.definition->at("model_type"), "gpt2");
  EXPECT_EQ(read("{}", {"model_path=[1"}).model.path, "[1");
}

TEST_F(ConfigReader, ContradictionsNameTheOverridesThatAreAboutThem) {
  EXPECT_THAT(error_of(R"({"model_path": "m"})", {"seed=1", "do_eval=true"}),
              AllOf(HasSubstr("config.json with --set do_eval=true: key \"do_eval\" is true"), Not(HasSubstr("seed"))));
  EXPECT_THAT(error_of("{}", {"model_path=m", "size_min_params=5", "wrap_policy=none"}),
              HasSubstr("config.json with --set size_min_params=5, --set wrap_policy=none: key"));
  EXPECT_THAT(error_of(R"({"model_path": "m", "do_eval": true})"), HasSubstr("config.json: key \"do_eval\""));
}

TEST_F(ConfigReader, WholeNumbersAreIntegersHoweverTheyAreWritten) {
  EXPECT_EQ(read(R"({"model_path": "m", "max_steps": 1e5})").steps.max_steps, 100000);
  EXPECT_EQ(read("{}", {"model_path=m", "max_steps=10.0"}).steps.max_steps, 10);
  EXPECT_EQ(read("{}", {"model_path=m", "reshard_after_forward=2.0"}).sharding.reshard_after_forward,
            BoolOrInteger(int64_t{2}));
  EXPECT_THAT(error_with(R"("max_steps": 1e-1)"), HasSubstr("0.1 is not of type integer"));
}

TEST_F(ConfigReader, IntegersThatAreTooLargeAreToldTheLargest) {
  for (const char* seed : {"18446744073709551615", "1e20", "9223372036854775808"}) {
    EXPECT_THAT(error_with("\"seed\": " + std::string(seed)),
                HasSubstr("is out of range: integers are signed 64-bit, at most 9223372036854775807"));
  }
}

TEST_F(ConfigReader, KeysThatNothingIsLikeGetNoSuggestion) {
  for (const std::string name : {"foo", "a", "", "steps"}) {
    EXPECT_THAT(error_with('"' + name + "\": 1"),
                AllOf(HasSubstr("unknown key \"" + name + "\" (`fsdp train --help`"), Not(HasSubstr("nearest"))));
  }
  EXPECT_THAT(error_with("\"scheduler\": 1"), HasSubstr("the nearest known one is \"lr_scheduler_type\""));
  EXPECT_THAT(error_with("\"shufle\": 1"), HasSubstr("the nearest known one is \"shuffle\""));
}

TEST_F(ConfigReader, UnitsOfBytesAreNamed) {
  EXPECT_EQ(read(R"({"model_path": "m", "save_final": true, "max_shard_size": "1KB"})").output.max_shard_size, "1KB");
  EXPECT_THAT(error_with(R"("save_final": true, "max_shard_size": "5gb")"),
              AllOf(HasSubstr("\"5gb\""), HasSubstr("units are kB, MB, GB, TB and KiB, MiB, GiB, TiB")));
}

TEST_F(ConfigReader, ResolvedConfigReadsBackAsTheSame) {
  const Config c = read(R"({"model_path": "m", "learning_rate": 0.1, "wrap_classes": ["Linear"], "adam_beta2": 0.95,
      "eval_dataset": "dummy", "sharding_strategy": "no_shard", "mixed_precision_reduce_dtype": "fp32"})");
  EXPECT_EQ(read(to_json(c).dump(2)), c);
  write_config(c, folder_.path("resolved_config.json"));
  EXPECT_EQ(read_config(folder_.path("resolved_config.json"), {}), c);
}

TEST_F(ConfigReader, SyntaxErrorsHaveLineAndColumn) {
  EXPECT_THAT(error_of("{\"model_path\": \"m\",\n  \"max_steps\": }"),
              AllOf(HasSubstr("config.json"), HasSubstr("config.json:2:16: ")));
  EXPECT_THAT(error_of("{\"model_path\": \"m\",\n\n  \"seed\": NaN}"), HasSubstr("config.json:3:11: "));
  EXPECT_THAT(error_of("{\"model_path\": \"m\"} x"), HasSubstr("config.json:1:21: "));
  EXPECT_THAT(error_of("{\"model_path\": \"m\""), HasSubstr("unexpected end of input"));
  EXPECT_THAT(error_of("{\"model_path\": \"\xff\"}"), HasSubstr("config.json:1:17: "));
}

TEST_F(ConfigReader, FilesThatHoldNoObjectAreRefused) {
  EXPECT_THAT(error_of(""), HasSubstr("empty"));
  EXPECT_THAT(error_of(" \n\t"), HasSubstr("empty"));
  EXPECT_THAT(error_of("[1]"), HasSubstr("one JSON object"));
  EXPECT_THAT(error_of("3"), HasSubstr("one JSON object"));
  EXPECT_THAT(error_of("\xEF\xBB\xBF{}"), HasSubstr("byte-order mark"));
  EXPECT_THAT(error_of(std::string(200000, '[')), HasSubstr("nested"));
  EXPECT_THAT(error_of("{\"a\":" + std::string(200000, '[')), HasSubstr("nested"));
}

TEST_F(ConfigReader, MissingFilesAndFoldersAreNamed) {
  const auto error = [](const std::string& path) {
    try {
      read_config(path, {});
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(error(folder_.path("none.json")), AllOf(HasSubstr("none.json"), HasSubstr("No such file")));
  EXPECT_THAT(error(folder_.path("")), HasSubstr("is not a file"));
}

TEST_F(ConfigReader, UnknownAndDuplicateKeys) {
  EXPECT_THAT(error_with(R"("learning_rat": 1)"),
              AllOf(HasSubstr("config.json: "), HasSubstr("\"learning_rat\""), HasSubstr("\"learning_rate\"")));
  EXPECT_THAT(error_with(R"("shcedule": 1)"), HasSubstr("unknown key"));
  EXPECT_THAT(error_with(R"("seed": 1, "seed": 1)"),
              AllOf(HasSubstr("config.json:2:"), HasSubstr("\"seed\""), HasSubstr("duplicate key")));
  EXPECT_THAT(error_with(R"("wrap_classes": {"a": 1, "a": 2})"), HasSubstr("duplicate key"));
  EXPECT_THAT(error_of("{}"), HasSubstr("\"model_path\" is missing"));
}

TEST_F(ConfigReader, WrongTypesNameKeyValueAndType) {
  EXPECT_THAT(error_with(R"("max_steps": "5")"),
              AllOf(HasSubstr("config.json: "), HasSubstr("\"max_steps\": \"5\""), HasSubstr("integer")));
  EXPECT_THAT(error_with(R"("max_steps": 5.5)"), HasSubstr("is not of type integer"));
  EXPECT_THAT(error_with(R"("max_steps": true)"), HasSubstr("is not of type integer"));
  EXPECT_THAT(error_with(R"("shuffle": 1)"), HasSubstr("is not of type boolean"));
  EXPECT_THAT(error_with(R"("wrap_classes": "Linear")"), HasSubstr("is not of type list of strings"));
  EXPECT_THAT(error_with(R"("wrap_classes": [1])"), HasSubstr("is not of type list of strings"));
}

TEST_F(ConfigReader, NumbersOutOfRangeNameTheRange) {
  EXPECT_THAT(error_with(R"("train_batch_size": 0)"),
              AllOf(HasSubstr("0 is out of range"), HasSubstr("an integer >= 1")));
  EXPECT_THAT(error_with(R"("learning_rate": -1e-3)"), HasSubstr("a number >= 0"));
  EXPECT_THAT(error_with(R"("adam_beta1": 1.0)"), HasSubstr(">= 0 and < 1"));
  EXPECT_THAT(error_with(R"("watchdog_seconds": 1800)"), HasSubstr(">= 0 and < 1800"));
  EXPECT_THAT(error_with(R"("learning_rate": 1e999)"), HasSubstr("config.json:2:"));
  EXPECT_THAT(error_with(R"("max_steps": 9223372036854775808)"), HasSubstr("is out of range"));
  EXPECT_THAT(error_with(R"("max_steps": 99999999999999999999999)"), HasSubstr("is out of range"));
  EXPECT_THAT(error_with(R"("seed": -1)"), HasSubstr("is out of range"));
  EXPECT_THAT(error_of("{}", {"model_path=m", "learning_rate=NaN"}), HasSubstr("is not of type number"));
}

TEST_F(ConfigReader, ChoicesAreListed) {
  EXPECT_THAT(error_with(R"("dtype": "fp8")"),
              AllOf(HasSubstr("\"fp8\" is not an accepted value"), HasSubstr("fp32, bf16 or fp16")));
  EXPECT_THAT(error_with(R"("collective_check": "sometimes")"),
              AllOf(HasSubstr("\"sometimes\" is not an accepted value"), HasSubstr("off, sampled or always")));
  EXPECT_THAT(error_with(R"("output_dir": "")"), HasSubstr("is empty"));
}

TEST_F(ConfigReader, ContradictionsNameBothKeys) {
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

TEST_F(ConfigReader, PipelinesContradictSomeKeys) {
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

TEST_F(ConfigReader, KeysOfOtherOptimizersAreRefused) {
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

TEST_F(ConfigReader, ActivationCheckpointing) {
  const Config c = read(R"({"model_path": "m", "activation_checkpointing": true, "activation_checkpointing_every": 2,
                            "activation_checkpointing_save_ops": ["aten::mm", "aten::bmm"]})");
  EXPECT_TRUE(c.model.activation_checkpointing);
  EXPECT_EQ(c.model.activation_checkpointing_every, 2);
  EXPECT_EQ(c.model.activation_checkpointing_save_ops, (std::vector<std::string>{"aten::mm", "aten::bmm"}));
  EXPECT_EQ(read(R"({"model_path": "m", "activation_checkpointing": true})").model.activation_checkpointing_every, 1);
  EXPECT_THAT(error_with(R"("activation_checkpointing": true, "activation_checkpointing_every": 0)"),
              HasSubstr("an integer >= 1"));
}

TEST_F(ConfigReader, Fp16AndItsLossScaling) {
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

TEST_F(ConfigReader, KeysOfMixedPrecision) {
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

TEST_F(ConfigReader, GradientDivideFactorIsANumberOrNull) {
  EXPECT_EQ(read(R"({"model_path": "m", "gradient_divide_factor": 8})").steps.gradient_divide_factor, 8.0);
  EXPECT_EQ(read("{}", {"model_path=m", "gradient_divide_factor=0.5"}).steps.gradient_divide_factor, 0.5);
  EXPECT_EQ(read("{}", {"model_path=m", "gradient_divide_factor=null"}).steps.gradient_divide_factor, std::nullopt);
  EXPECT_THAT(error_with(R"("gradient_divide_factor": 0)"),
              AllOf(HasSubstr("0 is out of range"), HasSubstr("a number > 0 or null")));
  EXPECT_THAT(error_with(R"("gradient_divide_factor": "8")"), HasSubstr("is not of type number or null"));
}

TEST_F(ConfigReader, AccumulationHasKeysForCommunication) {
  EXPECT_FALSE(read(R"({"model_path": "m", "sync_each_batch": false})").steps.sync_each_batch);
  EXPECT_FALSE(read(R"({"model_path": "m", "all_reduce_each_batch": false, "sharding_strategy": "hybrid_shard"})")
                   .steps.all_reduce_each_batch);
  EXPECT_THAT(error_with(R"("all_reduce_each_batch": false)"),
              AllOf(HasSubstr("all_reduce_each_batch"), HasSubstr(R"("sharding_strategy" is "full_shard")")));
  EXPECT_THAT(error_with(R"("all_reduce_each_batch": false, "sync_each_batch": false,
                            "sharding_strategy": "hybrid_shard_zero2")"),
              AllOf(HasSubstr("all_reduce_each_batch"), HasSubstr("sync_each_batch")));
}

TEST_F(ConfigReader, ReshardAfterForwardIsABooleanAnIntegerOrNull) {
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

TEST_F(ConfigReader, ReshardingNeedsAStrategyThatReleases) {
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

TEST(ConfigSchema, NamesAreUniqueAndMeaningsGiven) {
  std::set<std::string> names;
  for (const ConfigKey& key : config_schema()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.meaning.empty()) << key.name;
  }
}

// A default that its own key refuses could not be written into a config.
TEST(ConfigSchema, AcceptsItsOwnDefaults) {
  for (const ConfigKey& key : config_schema()) {
    Config config;
    EXPECT_NO_THROW(set_value(key, value_of(key, Config{}), "default", config)) << key.name;
  }
}

}  // namespace
}  // namespace fsdp::trainer::config_reader_test
