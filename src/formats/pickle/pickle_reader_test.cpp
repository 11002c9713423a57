#include "formats/pickle/pickle_reader.h"

#include "formats/testing/pickles.h"
#include "support/faults/error_of.h"

namespace fsdp::formats::pickle_reader_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kNoError;
using ::testing::StartsWith;
using Kind = PickleValue::Kind;

const PickleGlobals kGlobals{.classes = {{"m", "C"}, {"m", "D"}}, .constants = {{"m", "k"}}};

PickleTree read(const std::string& bytes, const PickleLimits& limits = {}) {
  return read_pickle(bytes, "x.pickle", kGlobals, limits);
}

std::string read_error(const std::string& bytes, const PickleLimits& limits = {}) {
  const std::string error = error_of([&] { read(bytes, limits); });
  if (error != kNoError) {
    EXPECT_THAT(error, StartsWith("x.pickle: byte "));
  }
  return error;
}

// Returns the error of a pickle of protocol 2 with these opcodes and a STOP.
std::string opcodes_error(const std::string& opcodes, const PickleLimits& limits = {}) {
  return read_error(pickled::file(opcodes), limits);
}

std::string shown(const PickleValue& value);

std::string shown_items(const PickleValue& value) {
  std::string text;
  for (const PickleValue* item : value.items) text += (text.empty() ? "" : " ") + shown(*item);
  return text;
}

std::string shown(const PickleValue& value) {
  switch (value.kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.integer != 0 ? "True" : "False";
    case Kind::kInt:
      return std::to_string(value.integer);
    case Kind::kDouble:
      return "d" + std::to_string(value.real);
    case Kind::kString:
      return "'" + value.text + "'";
    case Kind::kBytes:
      return "b'" + value.text + "'";
    case Kind::kTuple:
      return "(" + shown_items(value) + ")";
    case Kind::kList:
      return "[" + shown_items(value) + "]";
    case Kind::kDict:
      return "{" + shown_items(value) + "}";
    case Kind::kSet:
      return "<" + shown_items(value) + ">";
    case Kind::kGlobal:
      return value.text;
    case Kind::kObject:
      return value.text + shown(*value.arguments) + (value.state != nullptr ? "=" + shown(*value.state) : "");
    case Kind::kPersistentId:
      return "id" + shown(*value.arguments);
  }
  return "";
}

std::string shown_opcodes(const std::string& opcodes) { return shown(read(pickled::file(opcodes)).root()); }

TEST(PickleReader, ReadsPicklesOfPython) {
  // value = {"a": [1, -2, 300, 70000, -2**63, 2**63-1, 3.5, None, True, False],
  //          "b": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), "s": [k, k, "é"]} with k = "k";
  // pickle.dumps(value, protocol=2).hex()
  std::string plain = from_hex(
      "80027d71002858010000006171015d7102284b014afeffffff4d2c014a701101008a0800000000000000808a08ffffffffffffff7f4740"
      "0c0000000000004e888965580100000062710328294b018571044b014b028671054b014b024b03877106284b014b024b034b0474710774"
      "710858010000007371095d710a2858010000006b710b680b5802000000c3a9710c65752e");
  // value | {"c": b"xyz", "d": {1}, "f": frozenset([2])} with protocol=4
  std::string more = from_hex(
      "80049591000000000000007d94288c0161945d94284b014afeffffff4d2c014a701101008a0800000000000000808a08ffffffffffffff7f"
      "47400c0000000000004e8889658c01629428294b0185944b014b0286944b014b024b038794284b014b024b034b04749474948c0173945d94"
      "288c016b94680b8c02c3a994658c016394430378797a948c0164948f94284b01908c016694284b029194752e");
  const std::string content =
      "'a' [1 -2 300 70000 -9223372036854775808 9223372036854775807 d3.500000 None True False] "
      "'b' (() (1) (1 2) (1 2 3) (1 2 3 4)) 's' ['k' 'k' 'é']";
  for (const char protocol : {2, 3}) {
    plain[1] = protocol;
    EXPECT_EQ(shown(read(plain).root()), "{" + content + "}");
  }
  for (const char protocol : {4, 5}) {
    more[1] = protocol;
    EXPECT_EQ(shown(read(more).root()), "{" + content + " 'c' b'xyz' 'd' <1> 'f' <2>}");
  }
}

TEST(PickleReader, ObjectsAreDescribedAndNotMade) {
  EXPECT_EQ(shown_opcodes("cm\nk\n"), "m.k");
  EXPECT_EQ(shown_opcodes("cm\nC\n"), "m.C");
  EXPECT_EQ(shown_opcodes("cm\nC\n)R"), "m.C()");
  EXPECT_EQ(shown_opcodes(pickled::call(pickled::name("m", "D"), {pickled::integer(-5), "N"})), "m.D(-5 None)");
  EXPECT_EQ(shown_opcodes(pickled::object("cm\nC\n", pickled::dict({{pickled::text("a"), "K\x01"}}))), "m.C()={'a' 1}");
}

TEST(PickleReader, SharedValuesAreShared) {
  const PickleTree tree = read(pickled::file("](X\x01" + std::string(3, '\0') + "a\x94h" + '\0' + "e"));
  EXPECT_EQ(shown(tree.root()), "['a' 'a']");
  EXPECT_EQ(tree.root().items[0], tree.root().items[1]);
  EXPECT_EQ(tree.root().items[0]->offset, 4u);
}

TEST(PickleReader, IntegersAreOfAnyWidthUpTo8) {
  using std::string_literals::operator""s;
  EXPECT_EQ(shown_opcodes("\x8a\0"s), "0");
  EXPECT_EQ(shown_opcodes("\x8a\x01\xff"), "-1");
  EXPECT_EQ(shown_opcodes("\x8a\x02\xff\0"s), "255");
  EXPECT_EQ(shown_opcodes("\x8b\x03\0\0\0\0\0\x80"s), "-8388608");
  EXPECT_THAT(opcodes_error("\x8a\x09" + std::string(9, '\0')), HasSubstr("an integer of 9 bytes"));
}

TEST(PickleReader, LimitsAreExact) {
  EXPECT_EQ(opcodes_error("]", {.max_values = 1}), kNoError);
  EXPECT_THAT(opcodes_error("]Na", {.max_values = 1}), HasSubstr("byte 3: more than 1 values"));
  EXPECT_EQ(opcodes_error("]]a", {.max_depth = 2}), kNoError);
  EXPECT_THAT(opcodes_error("]]Naa", {.max_depth = 2}), HasSubstr("byte 4: nested deeper than 2"));
  const std::string recalled = std::string("(]\x94N") + "a]h" + std::string(1, '\0') + "at";
  EXPECT_EQ(opcodes_error(recalled, {.max_depth = 4}), kNoError);
  EXPECT_THAT(opcodes_error(recalled, {.max_depth = 3}), HasSubstr("byte 3: nested deeper than 3"));
  EXPECT_THAT(opcodes_error("]\x94", {.max_memo = 0}), HasSubstr("more than 0 values in the memo"));
}

TEST(PickleHostile, ForeignGlobals) {
  EXPECT_THAT(opcodes_error("cos\nsystem\n" + pickled::text("true") + "\x85R"),
              HasSubstr("byte 2: os.system is not allowed"));
  EXPECT_THAT(opcodes_error("cbuiltins\neval\n(tR"), HasSubstr("builtins.eval is not allowed"));
  EXPECT_THAT(opcodes_error(pickled::stack_name("posix", "system")), HasSubstr("posix.system is not allowed"));
  EXPECT_THAT(opcodes_error(pickled::stack_name("m", "C.__init__")), HasSubstr("m.C.__init__ is not allowed"));
  EXPECT_THAT(opcodes_error(pickled::stack_name("", "m.C")), HasSubstr(".m.C is not allowed"));
  EXPECT_THAT(opcodes_error(pickled::stack_name("m\n\x1b", "C")), HasSubstr("m\\n\\u001b.C is not allowed"));
  EXPECT_LT(opcodes_error(pickled::stack_name(std::string(100'000, 'm'), "C")).size(), 1000u);
}

TEST(PickleHostile, Calls) {
  EXPECT_THAT(opcodes_error("cm\nk\n)R"), HasSubstr("m.k is called, but is not a class"));
  EXPECT_THAT(opcodes_error(pickled::text("m.C") + ")R"), HasSubstr("not a class"));
  EXPECT_THAT(opcodes_error("cm\nC\n)R)R"), HasSubstr("not a class"));
  EXPECT_THAT(opcodes_error("cm\nC\nNR"), HasSubstr("something other than a tuple"));
  EXPECT_THAT(opcodes_error("cm\nC\n]\x81"), HasSubstr("something other than a tuple"));
  EXPECT_THAT(opcodes_error("]}b"), HasSubstr("BUILD of a value that is no object"));
  EXPECT_THAT(opcodes_error("cm\nC\n}b"), HasSubstr("BUILD of a value that is no object"));
  EXPECT_THAT(opcodes_error("cm\nC\n)\x81}b}b"), HasSubstr("BUILD of an object that has its state"));
  EXPECT_THAT(opcodes_error("NN\x93"), HasSubstr("STACK_GLOBAL needs two strings"));
  EXPECT_THAT(opcodes_error("cm\nC"), HasSubstr("a line does not end"));
}

TEST(PickleReader, PersistentIdsWhereTheyAreAllowed) {
  const std::string pickle = pickled::file(pickled::persistent_id(pickled::tuple({pickled::text("a")})));
  EXPECT_EQ(shown(read_pickle(pickle, "x.pickle", {.classes = {}, .constants = {}, .persistent_ids = true}).root()),
            "id('a')");
  EXPECT_THAT(read_error(pickle), HasSubstr("(BINPERSID) is not allowed"));
}

TEST(PickleReader, MembersOfEnums) {
  const PickleGlobals allowed{.classes = {{"m", "E"}, {"m", "C"}}, .enums = {{"m", "E"}}};
  const std::string e = pickled::name("m", "E");
  const auto read_member = [&](const std::string& opcodes) {
    return shown(read_pickle(pickled::file(opcodes), "x.pickle", allowed).root());
  };
  for (const std::string& getattr :
       {pickled::name("__builtin__", "getattr"), pickled::stack_name("builtins", "getattr")}) {
    EXPECT_EQ(read_member(pickled::call(getattr, {e, pickled::text("a")})), "m.E(m.E 'a')");
    EXPECT_EQ(read_member(pickled::call(e, {pickled::integer(1)})), "m.E(1)");
    const auto refused = [&](const std::string& opcodes) {
      EXPECT_THAT(error_of([&] { read_member(opcodes); }),
                  HasSubstr("getattr may only take a member of an allowed enum"));
    };
    refused(pickled::call(getattr, {pickled::name("m", "C"), pickled::text("__init__")}));
    refused(pickled::call(getattr, {pickled::text("m.E"), pickled::text("a")}));
    refused(pickled::call(getattr, {pickled::call(e, {pickled::integer(1)}), pickled::text("__class__")}));
    refused(pickled::call(getattr, {getattr, pickled::text("__self__")}));
    refused(pickled::call(getattr, {e, pickled::integer(1)}));
    refused(pickled::call(getattr, {e}));
    refused(pickled::call(getattr, {e, pickled::text("a"), "N"}));
    refused(getattr + "]R");
    EXPECT_THAT(opcodes_error(getattr), HasSubstr("getattr is not allowed"));  // no enums are allowed
  }
}

TEST(PickleReader, OrderedDictsAreDicts) {
  const std::string made = pickled::call(pickled::name("collections", "OrderedDict"), {});
  const PickleGlobals allowed{{{"collections", "OrderedDict"}}, {}};
  const auto read_allowed = [&](const std::string& opcodes) {
    return shown(read_pickle(pickled::file(opcodes), "x.pickle", allowed).root());
  };
  EXPECT_EQ(read_allowed(made), "{}");
  EXPECT_EQ(read_allowed(made + "(" + pickled::text("k") + "Nu"), "{'k' None}");
  EXPECT_THAT(opcodes_error(made), HasSubstr("collections.OrderedDict is not allowed"));
}

TEST(PickleHostile, RefusedOpcodes) {
  EXPECT_THAT(opcodes_error("(ios\nsystem\n"), HasSubstr("byte 3: opcode 105 (INST) is not allowed"));
  EXPECT_THAT(opcodes_error("(cm\nC\no"), HasSubstr("(OBJ) is not allowed"));
  EXPECT_THAT(opcodes_error("\x82\x01"), HasSubstr("(EXT1) is not allowed"));
  EXPECT_THAT(opcodes_error("\x83\x01\x01"), HasSubstr("(EXT2) is not allowed"));
  EXPECT_THAT(opcodes_error("\x84\x01\x01\x01\x01"), HasSubstr("(EXT4) is not allowed"));
  EXPECT_THAT(opcodes_error("Pid\n"), HasSubstr("(PERSID) is not allowed"));
  EXPECT_THAT(opcodes_error("NQ"), HasSubstr("(BINPERSID) is not allowed"));
  EXPECT_THAT(opcodes_error("cm\nC\n)}\x92"), HasSubstr("(NEWOBJ_EX) is not allowed"));
  EXPECT_THAT(opcodes_error("\x97"), HasSubstr("(NEXT_BUFFER) is not allowed"));
  EXPECT_THAT(opcodes_error("\x80\x04N"), HasSubstr("(PROTO) is not allowed"));
  EXPECT_THAT(opcodes_error("N0N"), HasSubstr("(POP) is not allowed"));
  EXPECT_THAT(opcodes_error("\xff"), HasSubstr("opcode 255 (unknown) is not allowed"));
}

TEST(PickleHostile, Form) {
  EXPECT_THAT(read_error(""), HasSubstr("byte 0: the pickle ends without its STOP"));
  EXPECT_THAT(read_error("I1\n."), HasSubstr("not a pickle"));
  EXPECT_THAT(read_error(std::string("\x80\x01N.", 4)), HasSubstr("protocol 1"));
  EXPECT_THAT(read_error("\x80\x06N."), HasSubstr("protocol 6"));
  EXPECT_THAT(read_error("\x80\x04N"), HasSubstr("byte 3: the pickle ends without its STOP"));
  EXPECT_THAT(read_error("\x80\x04N.N"), HasSubstr("1 more bytes follow"));
  EXPECT_THAT(opcodes_error(""), HasSubstr("none is on the stack"));
  EXPECT_THAT(opcodes_error("NN"), HasSubstr("STOP with 1 more values"));
  EXPECT_THAT(opcodes_error("(N"), HasSubstr("STOP with 1 more values and marks"));
  EXPECT_THAT(opcodes_error("N(\x85"), HasSubstr("none is on the stack"));
  EXPECT_THAT(opcodes_error("t"), HasSubstr("needs a MARK"));
  EXPECT_THAT(opcodes_error("}Na"), HasSubstr("adds to a list"));
  EXPECT_THAT(opcodes_error("](NNu"), HasSubstr("adds to a dict"));
  EXPECT_THAT(opcodes_error("](N\x90"), HasSubstr("adds to a set"));
  EXPECT_THAT(opcodes_error("}(Nu"), HasSubstr("a key without a value"));
  EXPECT_THAT(opcodes_error("h\x05"), HasSubstr("memo index 5, but the memo holds 0"));
  EXPECT_THAT(opcodes_error("Nr\xff\xff\xff\xff"), HasSubstr("memo index 4294967295, but the next one is 0"));
  EXPECT_THAT(opcodes_error("\x94"), HasSubstr("none is on the stack"));
}

TEST(PickleHostile, Utf8) {
  for (const std::string bad : {"\xff", "\x80", "\xc0\x80", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                                "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "a\xe2\x82z"}) {
    EXPECT_THAT(opcodes_error(pickled::text(bad)), HasSubstr("not valid UTF-8"));
  }
  EXPECT_EQ(shown_opcodes(pickled::text("é€😀\x7f")), "'é€😀\x7f'");
}

TEST(PickleHostile, HugeLengths) {
  const std::string huge = pickled::little_endian(UINT64_MAX, 8);
  EXPECT_THAT(opcodes_error("\x8d" + huge + "a"), HasSubstr("18446744073709551615 bytes are needed, but 2 are left"));
  EXPECT_THAT(opcodes_error("\x8e" + huge + "a"), HasSubstr("bytes are needed"));
  EXPECT_THAT(opcodes_error("\x8d" + pickled::little_endian(uint64_t{1} << 62, 8)), HasSubstr("bytes are needed"));
  EXPECT_THAT(opcodes_error("X\xff\xff\xff\xff"), HasSubstr("4294967295 bytes are needed"));
  EXPECT_THAT(opcodes_error("\x8b\xff\xff\xff\xff"), HasSubstr("an integer of 4294967295 bytes"));
  EXPECT_THAT(opcodes_error("\x95" + huge), HasSubstr("a frame of 18446744073709551615 bytes, but 1 are left"));
}

TEST(PickleHostile, Frames) {
  const auto frame = [](uint64_t length) { return "\x95" + pickled::little_endian(length, 8); };
  EXPECT_EQ(opcodes_error(frame(2) + "N."), "x.pickle: byte 12: 1 more bytes follow the end of the pickle");
  EXPECT_EQ(opcodes_error(frame(0) + frame(1) + "]" + frame(3) + "Na"), kNoError);
  EXPECT_THAT(opcodes_error(frame(2) + "M\x01\x01"), HasSubstr("2 bytes are needed, but 1 are left of the frame"));
  EXPECT_THAT(opcodes_error(frame(10) + frame(0) + "N"), HasSubstr("begins within another one"));
}

TEST(PickleHostile, ValuesThatContainThemselves) {
  EXPECT_THAT(opcodes_error("]\x94h" + std::string(1, '\0') + "a"), HasSubstr("byte 2: the value contains itself"));
  EXPECT_THAT(opcodes_error("}\x94Nh" + std::string(1, '\0') + "s"), HasSubstr("contains itself"));
  EXPECT_THAT(opcodes_error("cm\nC\n)\x81\x94h" + std::string(1, '\0') + "b"), HasSubstr("contains itself"));
  EXPECT_THAT(opcodes_error("]\x94" + std::string("(h\0tr\x01\0\0\0a", 10)), HasSubstr("contains itself"));
}

TEST(PickleHostile, MemoBombs) {
  // Each list contains the previous one twice: 2^40 values in 40 levels.
  std::string bomb = "]\x94";
  for (int level = 0; level < 40; ++level) {
    bomb += std::string("](h") + static_cast<char>(level) + "h" + static_cast<char>(level) + "e\x94";
  }
  std::string nested = "(" + bomb + "t";
  EXPECT_THAT(opcodes_error(nested), HasSubstr("counting shared ones wherever they stand"));
  // A tuple of many arguments, shared by many objects.
  std::string wide = "((" + std::string(10'000, 'N') + "t\x94";
  for (int object = 0; object < 10'000; ++object) wide += "cm\nC\nh" + std::string(1, '\0') + "R";
  EXPECT_THAT(opcodes_error(wide + "t"), HasSubstr("counting shared ones wherever they stand"));
}

TEST(PickleHostile, DepthBombs) {
  EXPECT_THAT(opcodes_error(std::string(1'000'000, ']') + std::string(999'999, 'a')), HasSubstr("nested deeper"));
  std::string tuples = "N";
  for (int level = 0; level < 1'000'000; ++level) tuples += '\x85';
  EXPECT_THAT(opcodes_error(tuples), HasSubstr("nested deeper"));
  EXPECT_THAT(opcodes_error(std::string(1'000'000, '(')), HasSubstr("none is on the stack"));
  // Deep only through the memo: list i, of 60 levels, contains list i - 1 at its innermost level.
  std::string chain = "(]\x94";
  for (int part = 0; part < 3; ++part) {
    chain += "]\x94" + std::string(59, ']') + "h" + static_cast<char>(part) + std::string(60, 'a');
  }
  EXPECT_THAT(opcodes_error(chain + "t"), HasSubstr("nested deeper"));
}

}  // namespace
}  // namespace fsdp::formats::pickle_reader_test
