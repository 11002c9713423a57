// Tests `fsdp convert` and `fsdp inspect` as commands: the text for people, help and errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "commands/convert_command.h"
#include "commands/inspect_command.h"
#include "testing/program.h"

namespace fsdp::trainer::convert_and_inspect_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(InspectCommand, TextForPeople) {
  const auto description = nlohmann::json::parse(R"({"folder": "F", "kind": "K", "bytes": 12,
      "tensors": [{"name": "w", "dtype": "float32", "shape": [3], "bytes": 12,
                   "parts": [{"file": "b", "bytes": 8}, {"file": "a", "bytes": 4}]}],
      "files": [{"name": "a", "bytes": 40}], "user": {"step": 3}, "values": {"lr": 0.5}})");
  EXPECT_EQ(description_text(description),
            "F: K, 1 tensor, 12 bytes, 1 file\n"
            "  w  float32 [3], 12 bytes, 2 parts in a, b\n"
            "file a: 40 bytes\n"
            "user:\n  step: 3\n"
            "values:\n  lr: 0.5\n");
}

TEST(InspectCommand, LongListsAreCutShort) {
  nlohmann::json description = {{"folder", "F"}, {"kind", "K"}, {"bytes", 0}};
  description["tensors"] = description["files"] = nlohmann::json::array();
  description["values"] = {{"short", std::vector<int>(16)}, {"nested", {{"long", std::vector<int>(30'000)}}}};
  const std::string sixteen = "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0";
  EXPECT_EQ(description_text(description), "F: K, 0 tensors, 0 bytes, 0 files\nvalues:\n  nested: {\"long\":[" +
                                               sixteen + ",\"and 29984 more\"]}\n  short: [" + sixteen + "]\n");
}

TEST(ConvertAndInspect, HelpAndErrors) {
  const ProgramResult missing = run_shell("$FSDP inspect /nowhere/folder");
  EXPECT_EQ(missing.status, 1);
  EXPECT_EQ(missing.err, "fsdp inspect: /nowhere/folder: no such folder\n");
  EXPECT_THAT(run_shell("$FSDP convert /nowhere/folder target").err,
              HasSubstr("fsdp convert: /nowhere/folder: no such folder"));
  for (const char* command : {"convert", "inspect"}) {
    const ProgramResult help = run_shell(std::string("$FSDP ") + command + " --help");
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.out, Not(HasSubstr("learning_rate")));
  }
  const ProgramResult unknown = run_shell("$FSDP convert a b --to onnx");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("--to"), HasSubstr("onnx")));
}

}  // namespace
}  // namespace fsdp::trainer::convert_and_inspect_test
