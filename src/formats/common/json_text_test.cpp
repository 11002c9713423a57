#include "formats/common/json_text.h"

#include <filesystem>
#include <fstream>
#include <map>

#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"

namespace fsdp::formats::json_text_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kNoError;
using ::testing::Not;
using ::testing::StartsWith;
using testing::TemporaryFolder;

std::string parse_error(const std::string& text) {
  return error_of([&] { parse_json(text, "some.json"); });
}

TEST(JsonText, ParsesValidText) {
  const auto json = parse_json(" {\"a\": [1, 2.5, {\"a\": null}], \"b\": {\"a\": \"\\u00e9\"}}\n", "some.json");
  EXPECT_EQ(json["a"][1], 2.5);
  EXPECT_EQ(json["b"]["a"], "\xc3\xa9");
}

TEST(JsonText, SyntaxErrorsHaveLineAndColumn) {
  EXPECT_THAT(parse_error("{\n  \"a\": 1,\n  \"b\" 2\n}"), StartsWith("some.json:3:7: "));
  EXPECT_THAT(parse_error("{\"a\": 1,}"), StartsWith("some.json:1:9: "));
  EXPECT_THAT(parse_error("{\"a\": nul}"), StartsWith("some.json:1:10: "));
  EXPECT_THAT(parse_error("{}\n{}"), StartsWith("some.json:2:1: "));
  EXPECT_THAT(parse_error("{\"a\": \"\xff\"}"), StartsWith("some.json:1:8: "));
}

TEST(JsonText, EndOfTextIsAnError) {
  EXPECT_THAT(parse_error(""), StartsWith("some.json:1:1: "));
  EXPECT_THAT(parse_error("{\"a\": [1, 2"), HasSubstr("unexpected end of input"));
  EXPECT_THAT(parse_error("{\"a\": \"abc"), StartsWith("some.json:1:"));
}

// The underlying parser treats a zero byte as the end and would ignore the rest.
TEST(JsonText, ZeroBytesAreErrors) {
  using std::string_literals::operator""s;
  EXPECT_EQ(parse_error("{}\0x"s), "some.json:1:3: a zero byte, which JSON does not allow");
  EXPECT_THAT(parse_error("{}\n\0"s), StartsWith("some.json:2:1: a zero byte"));
  EXPECT_THAT(parse_error("[\"\0\"]"s), StartsWith("some.json:1:3: "));
  EXPECT_EQ(parse_error("[\"\\u0000\"]"), kNoError);
}

TEST(JsonText, DuplicateKeysAreErrorsAtEveryDepth) {
  EXPECT_EQ(parse_error("{\"a\": 1,\n \"b\": 2,\n \"a\": 3}"), "some.json:3:4: duplicate key \"a\"");
  EXPECT_THAT(parse_error("{\"x\": [{\"k\": 1, \"k\": 1}]}"), HasSubstr("duplicate key \"k\""));
  EXPECT_THAT(parse_error("{\"k\": {\"k\": 1}, \"l\": {\"k\": 1}}"), Not(HasSubstr("duplicate")));
  EXPECT_THAT(parse_error("{\"a\": 1, \"\\u0061\": 2}"), HasSubstr("duplicate key \"a\""));
}

TEST(JsonText, DeepNestingIsAnError) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(parse_error(nested(64)), kNoError);
  EXPECT_THAT(parse_error(nested(65)), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(parse_error(std::string(10'000'000, '[')), HasSubstr("nested deeper than 64 levels"));
}

TEST(JsonText, NumbersOutOfRangeAreErrors) {
  EXPECT_EQ(parse_error("[1e999]"), "some.json:1:8: number overflow parsing '1e999'");
}

// Collects the members of one object while the text is parsed.
struct Members : MemberReader {
  bool begin(const std::string& key) override {
    key_ = key;
    return values.try_emplace(key).second;
  }
  void end(nlohmann::json value) override {
    values[key_] = std::move(value);
    order += key_;
  }
  std::map<std::string, nlohmann::json> values;
  std::string order;

 private:
  std::string key_;
};

TEST(JsonText, MembersOfOneObjectAreMovedOut) {
  Members members;
  const auto rest =
      parse_json(R"({"a": {"t": 1}, "t": {"y": {"t": [1, {"t": 2}]}, "x": 3, "z": []}, "u": [{"t": {}}]})", "some.json",
                 "t", members);
  EXPECT_EQ(rest, nlohmann::json::parse(R"({"a": {"t": 1}, "t": {}, "u": [{"t": {}}]})"));
  EXPECT_EQ(members.order, "yxz");
  EXPECT_EQ(nlohmann::json(members.values), nlohmann::json::parse(R"({"x": 3, "y": {"t": [1, {"t": 2}]}, "z": []})"));
}

TEST(JsonText, AMemberOfAnotherTypeStays) {
  for (const char* text :
       {R"({"t": 1, "u": {"x": 2}})", R"({"t": [{"x": 2}]})", R"({"u": {"t": {"x": 2}}})", R"([{"t": {"x": 1}}])"}) {
    Members members;
    EXPECT_EQ(parse_json(text, "some.json", "t", members), nlohmann::json::parse(text));
    EXPECT_EQ(members.order, "") << text;
  }
}

TEST(JsonText, MovedMembersAreCheckedLikeOthers) {
  for (const std::string text : {R"({"t": {"a": 1, "a": 2}})", R"({"t": {"a": {"b": 1, "b": 2}}})",
                                 R"({"t": {"a": 1}, "t": {}})", R"({"t": {"a": 1,}})", R"({"t": {"a": 1)"}) {
    Members members;
    const std::string error = error_of([&] { parse_json(text, "some.json", "t", members); });
    EXPECT_NE(error, kNoError) << text;
    EXPECT_EQ(error, parse_error(text)) << text;
  }
}

TEST(JsonText, FilesAreNamedInErrors) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { read_json_file(folder / "missing.json"); }), HasSubstr("missing.json"));
  EXPECT_THAT(error_of([&] { read_json_file(folder.path()); }), HasSubstr("not a readable file"));
  folder.write("bad.json", "{\"a\": 1\n\"b\": 2}");
  EXPECT_THAT(error_of([&] { read_json_file(folder / "bad.json"); }), HasSubstr("bad.json:2:3: "));
}

TEST(JsonText, FilesOfManyBytesAreNotRead) {
  const TemporaryFolder folder;
  std::filesystem::resize_file(folder.write("big.json", ""), (uint64_t{1} << 30) + 1);  // sparse: takes no space
  EXPECT_THAT(error_of([&] { read_json_file(folder / "big.json"); }),
              AllOf(HasSubstr("big.json"), HasSubstr("larger than the limit of 1073741824 bytes")));
}

TEST(JsonText, QuotedTextIsSafeToPrint) {
  EXPECT_EQ(quoted_name("a\"b\x1b[31m\n"), "\"a\\\"b\\u001b[31m\\n\"");
  EXPECT_LT(quoted_name(std::string(1000, 'x')).size(), 300u);
  EXPECT_EQ(json_text(nlohmann::json{1, "x"}), "[1,\"x\"]");
}

}  // namespace
}  // namespace fsdp::formats::json_text_test
