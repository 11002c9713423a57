// Tests reading configs: values arrive, and every kind of bad input is refused with a message that says how to fix it.
#include "config/config_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "config/config_schema.h"
#include "config/config_writer.h"
#include "config/errors.h"
#include "testing/config_text.h"

namespace fsdp::trainer::config_reader_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ConfigReader = ConfigText;

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
