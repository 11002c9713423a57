#include "formats/pickle/shared_pickle.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>

#include "formats/pickle/pickle_reader.h"
#include "formats/testing/pickles.h"

namespace fsdp::shared_pickle_test {
namespace {

using namespace formats;

PickleTree read(const std::string& bytes) {
  return read_pickle(bytes, "x.pickle", {.classes = {{"m", "C"}}, .persistent_ids = true});
}

std::string shared(const std::string& opcodes) {
  SharedPickle pickle;
  pickle.add(opcodes);
  return std::move(pickle).finish();
}

TEST(SharedPickle, NamesAndTextsAreWrittenOnce) {
  const std::string object = pickled::object(pickled::name("m", "C"), pickled::dict({{pickled::text("key"), "N"}}));
  SharedPickle pickle;
  pickle.add("](");
  pickle.add(object);
  const size_t before = std::string("](").size() + object.size();
  pickle.add(object + pickled::text("key"));
  pickle.add("e");
  const std::string bytes = std::move(pickle).finish();
  EXPECT_EQ(bytes.find("key"), bytes.rfind("key"));
  EXPECT_EQ(bytes.find("cm\nC"), bytes.rfind("cm\nC"));
  EXPECT_LT(bytes.size(), 2 * before);

  const PickleTree tree = read(bytes);
  const auto& items = tree.root().items;
  ASSERT_EQ(items.size(), 3);
  for (const PickleValue* made : {items[0], items[1]}) {
    EXPECT_EQ(made->text, "m.C");
    ASSERT_EQ(made->state->items.size(), 2);
    EXPECT_EQ(made->state->items[0], items[2]) << "the same text";
    EXPECT_EQ(made->state->items[1]->kind, PickleValue::Kind::kNone);
  }
  EXPECT_EQ(items[2]->text, "key");
}

// Indices beyond 255 take another opcode.
TEST(SharedPickle, RefersToAnyOfManyTexts) {
  constexpr int kCount = 70'000;
  SharedPickle pickle;
  pickle.add(pickled::begin_dict());
  for (int i = 0; i < kCount; ++i) pickle.add(pickled::text(std::to_string(i)) + pickled::text(std::to_string(i / 2)));
  pickle.add(pickled::end_dict());
  const PickleTree tree = read(std::move(pickle).finish());
  ASSERT_EQ(tree.root().items.size(), 2 * kCount);
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(tree.root().items[2 * i]->text, std::to_string(i));
    ASSERT_EQ(tree.root().items[2 * i + 1], tree.root().items[i / 2 * 2]);
  }
}

// Operands may hold bytes that look like opcodes.
TEST(SharedPickle, KeepsAllElseAsItIs) {
  const std::string opcodes = pickled::tuple(
      {pickled::integer('X'), pickled::integer(-1), pickled::integer(int64_t{'c'} << 40),
       pickled::unsigned_integer(INT64_MAX), pickled::real(1.5), pickled::none(), pickled::boolean(true),
       pickled::boolean(false), pickled::list({}), pickled::dict({}), pickled::persistent_id(pickled::none())});
  EXPECT_EQ(shared(opcodes), pickled::file(opcodes));
  EXPECT_EQ(read(shared(pickled::text("cX\n"))).root().text, "cX\n");
  EXPECT_EQ(read(shared(pickled::text(""))).root().text, "");
}

TEST(SharedPickle, OpcodesOfOthersAreErrors) {
  for (const char* opcodes : {"N\x94", "Nq", "h", "K\x01", "X", "cm\nC", "\x8a"}) {
    EXPECT_THROW(shared(opcodes), c10::Error) << opcodes;
  }
  EXPECT_THROW(shared(pickled::text("cut").substr(0, 6)), c10::Error);
  EXPECT_THROW(shared(pickled::integer(1).substr(0, 3)), c10::Error);
}

}  // namespace
}  // namespace fsdp::shared_pickle_test
