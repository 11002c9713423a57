// Reading configs: values arrive, and every kind of bad input is refused with a message that says what to do.
#include "config/config_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "config/config_checks.h"
#include "config/config_schema.h"
#include "config/config_writer.h"
#include "config/errors.h"
#include "testing/test_folder.h"

namespace fsdp::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
  // The error of a config in which `member` ("\"key\": value") joins the required key.
  std::string error_with(const std::string& member) { return error_of("{\"model_path\": \"m\",\n " + member + "}"); }

  TestFolder folder_;
};

TEST_F(ConfigReader, DefaultsAreThoseOfTheStruct) {
  Config expected;
  expected.model_path = "some/model";
  EXPECT_EQ(read(R"({"model_path": "some/model"})"), expected);
}

TEST_F(ConfigReader, ReadsEveryType) {
  const Config c = read(R"({"model_path": "m", "eval_dataset": "e.bin", "do_eval": true, "max_steps": 7,
      "learning_rate": 1e-3, "adam_epsilon": 0, "wrap_classes": ["Embedding", "Linear"], "sharding_factor": 4})");
  EXPECT_EQ(c.eval_dataset, "e.bin");
  EXPECT_TRUE(c.do_eval);
  EXPECT_EQ(c.max_steps, 7);
  EXPECT_EQ(c.learning_rate, 1e-3);
  EXPECT_EQ(c.adam_epsilon, 0.0);
  EXPECT_THAT(c.wrap_classes, ::testing::ElementsAre("Embedding", "Linear"));
  EXPECT_EQ(c.sharding_factor, 4);
}

TEST_F(ConfigReader, NullUnsetsOptionalKeysOnly) {
  EXPECT_EQ(read(R"({"model_path": "m", "mixed_precision_reduce_dtype": null})").mixed_precision_reduce_dtype,
            std::nullopt);
  EXPECT_THAT(error_with(R"("dtype": null)"), HasSubstr(R"(key "dtype": null is not of type string)"));
}

TEST_F(ConfigReader, OverridesWinAndTheLastWinsAmongThem) {
  const Config c = read(R"({"model_path": "m", "max_steps": 5, "sharding_factor": 2})",
                        {"max_steps=6", "max_steps=7", "model_path=a=b", "shuffle=false", "learning_rate=2e-4",
                         "sharding_factor=null", "wrap_classes=Embedding,Linear"});
  EXPECT_EQ(c.max_steps, 7);
  EXPECT_EQ(c.model_path, "a=b");
  EXPECT_FALSE(c.shuffle);
  EXPECT_EQ(c.learning_rate, 2e-4);
  EXPECT_EQ(c.sharding_factor, std::nullopt);
  EXPECT_THAT(c.wrap_classes, ::testing::ElementsAre("Embedding", "Linear"));
}

TEST_F(ConfigReader, OverridesOfStringsAreTakenLiterally) {
  EXPECT_EQ(read("{}", {"model_path=123"}).model_path, "123");
  EXPECT_EQ(read(R"({"model_path": "m"})", {R"(wrap_classes=["A", "B"])"}).wrap_classes.size(), 2u);
}

TEST_F(ConfigReader, BadOverridesNameTheOverride) {
  const std::string base = R"({"model_path": "m"})";
  EXPECT_THAT(error_of(base, {"max_steps"}), AllOf(HasSubstr("--set max_steps"), HasSubstr("KEY=VALUE")));
  EXPECT_THAT(error_of(base, {"max_steps=ten"}),
              AllOf(HasSubstr("--set max_steps=ten"), HasSubstr("\"ten\" is not of type integer")));
  EXPECT_THAT(error_of(base, {"max_stepz=10"}), HasSubstr("nearest known one is \"max_steps\""));
  EXPECT_THAT(error_of(base, {"max_steps="}), HasSubstr("is not of type integer"));
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
  EXPECT_THAT(error_with(R"("learning_rate": 1e999)"), HasSubstr("config.json:2:"));
  EXPECT_THAT(error_with(R"("max_steps": 9223372036854775808)"), HasSubstr("is out of range"));
  EXPECT_THAT(error_with(R"("max_steps": 99999999999999999999999)"), HasSubstr("is out of range"));
  EXPECT_THAT(error_with(R"("seed": -1)"), HasSubstr("is out of range"));
  EXPECT_THAT(error_of("{}", {"model_path=m", "learning_rate=NaN"}), HasSubstr("is not of type number"));
}

TEST_F(ConfigReader, ChoicesAreListed) {
  EXPECT_THAT(error_with(R"("dtype": "fp8")"),
              AllOf(HasSubstr("\"fp8\" is not an accepted value"), HasSubstr("fp32 or bf16")));
  EXPECT_THAT(error_with(R"("output_dir": "")"), HasSubstr("is empty"));
}

TEST_F(ConfigReader, CapabilitiesOfLaterVersionsAreRefusedByName) {
  for (const std::string member :
       {R"("dtype": "fp16")", R"("sharding_strategy": "hybrid_shard")", R"("sharding_strategy": "hybrid_shard_zero2")",
        R"("cpu_offload": true)", R"("backward_prefetch": "backward_pre")", R"("backward_prefetch": "backward_post")",
        R"("forward_prefetch": true)", R"("limit_all_gathers": true)", R"("mixed_precision_reduce_dtype": "fp16")"}) {
    EXPECT_THAT(error_with(member),
                AllOf(HasSubstr(member.substr(0, member.find(':'))), HasSubstr("not supported by this version")));
  }
  EXPECT_FALSE(read(R"({"model_path": "m", "cpu_offload": false, "backward_prefetch": "none"})").cpu_offload);
}

TEST_F(ConfigReader, ContradictionsNameBothKeys) {
  EXPECT_THAT(error_with(R"("do_eval": true)"), AllOf(HasSubstr("do_eval"), HasSubstr("eval_dataset")));
  EXPECT_THAT(error_with(R"("wrap_classes": ["A"], "wrap_policy": "none")"),
              AllOf(HasSubstr("wrap_classes"), HasSubstr("wrap_policy")));
  EXPECT_THAT(error_with(R"("size_min_params": 5)"), AllOf(HasSubstr("size_min_params"), HasSubstr("wrap_policy")));
  EXPECT_THAT(error_with(R"("activation_checkpointing_every": 2)"),
              AllOf(HasSubstr("activation_checkpointing_every"), HasSubstr("\"activation_checkpointing\" is false")));
  EXPECT_THAT(
      error_with(R"("activation_checkpointing_save_ops": ["aten::mm"])"),
      AllOf(HasSubstr("activation_checkpointing_save_ops"), HasSubstr("\"activation_checkpointing\" is false")));
}

TEST_F(ConfigReader, ActivationCheckpointing) {
  const Config c = read(R"({"model_path": "m", "activation_checkpointing": true, "activation_checkpointing_every": 2,
                            "activation_checkpointing_save_ops": ["aten::mm", "aten::bmm"]})");
  EXPECT_TRUE(c.activation_checkpointing);
  EXPECT_EQ(c.activation_checkpointing_every, 2);
  EXPECT_EQ(c.activation_checkpointing_save_ops, (std::vector<std::string>{"aten::mm", "aten::bmm"}));
  EXPECT_EQ(read(R"({"model_path": "m", "activation_checkpointing": true})").activation_checkpointing_every, 1);
  EXPECT_THAT(error_with(R"("activation_checkpointing": true, "activation_checkpointing_every": 0)"),
              HasSubstr("an integer >= 1"));
}

TEST_F(ConfigReader, ShardingFactorMustFitTheRanks) {
  Config c;
  EXPECT_NO_THROW(check_for_world_size(c, 4));
  c.sharding_factor = 4;
  EXPECT_NO_THROW(check_for_world_size(c, 4));
  c.sharding_factor = 2;
  EXPECT_THROW(check_for_world_size(c, 4), ConfigError);
  c.sharding_strategy = "no_shard";
  c.sharding_factor = 1;
  EXPECT_NO_THROW(check_for_world_size(c, 4));
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
    if (key.required) continue;
    EXPECT_NO_THROW(set_value(key, value_of(key, Config{}), "default", config)) << key.name;
  }
}

}  // namespace
}  // namespace fsdp::trainer
