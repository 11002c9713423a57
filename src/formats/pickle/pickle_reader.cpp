#include "formats/pickle/pickle_reader.h"

#include <bit>
#include <unordered_set>

#include "formats/common/json_text.h"
#include "formats/pickle/pickle_input.h"
#include "formats/pickle/pickle_opcodes.h"
#include "formats/pickle/pickle_stack.h"
#include "formats/pickle/pickle_tree_check.h"

namespace fsdp::formats {
namespace {

using Kind = PickleValue::Kind;

constexpr const char* kOrderedDict = "collections.OrderedDict";
constexpr const char* kGetattr = "builtins.getattr";

// Executes the opcodes of one pickle.
class Machine {
 public:
  Machine(PickleInput& input, const PickleGlobals& globals, const PickleLimits& limits)
      : input_(input), globals_(globals), stack_(input, limits) {}

  // Returns the pickle's value, which is valid as long as take_values()'s result.
  const PickleValue* run() {
    if (input_.next_opcode() != opcode::kProto) {
      input_.fail("not a pickle of protocol 2 to 5, which begins with byte 0x80");
    }
    if (const uint64_t protocol = input_.take_unsigned(1); protocol < 2 || protocol > 5) {
      input_.fail("protocol ", protocol, "; supported are 2 to 5");
    }
    for (uint8_t op = input_.next_opcode(); op != opcode::kStop; op = input_.next_opcode()) {
      if (!number(op) && !text(op) && !sequence(op) && !mapping(op) && !class_or_object(op) && !memo(op)) {
        input_.fail("opcode ", static_cast<int>(op), " (", refused_opcode_name(op), ") is not allowed");
      }
    }
    const PickleValue& root = stack_.finish();
    if (input_.left() > 0) input_.fail(input_.left(), " more bytes follow the end of the pickle");
    return &root;
  }

  std::unique_ptr<PickleValues> take_values() { return stack_.take_values(); }

 private:
  PickleValue& push(Kind kind) { return stack_.push(kind); }
  void push_int(int64_t integer, Kind kind = Kind::kInt) { push(kind).integer = integer; }
  void push_text(Kind kind, size_t length_bytes) {
    const std::string_view text = input_.take(input_.take_unsigned(length_bytes));
    if (kind == Kind::kString && !is_utf8(text)) input_.fail("a string that is not valid UTF-8");
    push(kind).text = text;
  }

  // Adds items to the container on top of the stack.
  void extend(Kind kind, const char* expected, const std::vector<const PickleValue*>& items) {
    PickleValue& container = stack_.top();
    if (container.kind != kind) input_.fail("the opcode adds to a ", expected, ", but the stack holds something else");
    if (kind == Kind::kDict && items.size() % 2 != 0) input_.fail("a key without a value");
    container.items.insert(container.items.end(), items.begin(), items.end());
  }

  bool number(uint8_t op) {
    switch (op) {
      case opcode::kNone:
        push(Kind::kNone);
        return true;
      case opcode::kNewTrue:
      case opcode::kNewFalse:
        push_int(op == opcode::kNewTrue ? 1 : 0, Kind::kBool);
        return true;
      case opcode::kBinInt1:
        push_int(static_cast<int64_t>(input_.take_unsigned(1)));
        return true;
      case opcode::kBinInt2:
        push_int(static_cast<int64_t>(input_.take_unsigned(2)));
        return true;
      case opcode::kBinInt:
        push_int(static_cast<int32_t>(input_.take_unsigned(4)));
        return true;
      case opcode::kLong1:
      case opcode::kLong4:
        push_long(input_.take_unsigned(op == opcode::kLong1 ? 1 : 4));
        return true;
      case opcode::kBinFloat:
        push(Kind::kDouble).real = std::bit_cast<double>(__builtin_bswap64(input_.take_unsigned(8)));
        return true;
      default:
        return false;
    }
  }

  void push_long(uint64_t width) {
    if (width > sizeof(int64_t)) input_.fail("an integer of ", width, " bytes; at most 8 are supported");
    uint64_t value = input_.take_unsigned(width);
    if (const size_t bits = 8 * width; width > 0 && bits < 64 && (value >> (bits - 1)) != 0) {
      value |= ~uint64_t{0} << bits;
    }
    push_int(static_cast<int64_t>(value));
  }

  bool text(uint8_t op) {
    switch (op) {
      case opcode::kShortBinUnicode:
        push_text(Kind::kString, 1);
        return true;
      case opcode::kBinUnicode:
        push_text(Kind::kString, 4);
        return true;
      case opcode::kBinUnicode8:
        push_text(Kind::kString, 8);
        return true;
      case opcode::kShortBinBytes:
        push_text(Kind::kBytes, 1);
        return true;
      case opcode::kBinBytes:
        push_text(Kind::kBytes, 4);
        return true;
      case opcode::kBinBytes8:
        push_text(Kind::kBytes, 8);
        return true;
      default:
        return false;
    }
  }

  void push_items(Kind kind, const std::vector<const PickleValue*>& items) {
    push(kind).items.assign(items.begin(), items.end());
  }

  bool sequence(uint8_t op) {
    switch (op) {
      case opcode::kEmptyTuple:
        push(Kind::kTuple);
        return true;
      case opcode::kTuple1:
      case opcode::kTuple2:
      case opcode::kTuple3:
        push_items(Kind::kTuple, stack_.pop_count(op - opcode::kTuple1 + 1));
        return true;
      case opcode::kTuple:
        push_items(Kind::kTuple, stack_.pop_to_mark());
        return true;
      case opcode::kEmptyList:
        push(Kind::kList);
        return true;
      case opcode::kAppend:
        extend(Kind::kList, "list", stack_.pop_count(1));
        return true;
      case opcode::kAppends:
        extend(Kind::kList, "list", stack_.pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  bool mapping(uint8_t op) {
    switch (op) {
      case opcode::kEmptyDict:
        push(Kind::kDict);
        return true;
      case opcode::kSetItem:
        extend(Kind::kDict, "dict", stack_.pop_count(2));
        return true;
      case opcode::kSetItems:
        extend(Kind::kDict, "dict", stack_.pop_to_mark());
        return true;
      case opcode::kEmptySet:
        push(Kind::kSet);
        return true;
      case opcode::kAddItems:
        extend(Kind::kSet, "set", stack_.pop_to_mark());
        return true;
      case opcode::kFrozenSet:
        push_items(Kind::kSet, stack_.pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  void push_global(const std::string& module, const std::string& name) {
    if (!globals_.enums.empty() && (module == "builtins" || module == "__builtin__") && name == "getattr") {
      push(Kind::kGlobal).text = kGetattr;
      return;
    }
    const bool is_class = globals_.classes.contains({module, name});
    std::string full = module + "." + name;
    if (!is_class && !globals_.constants.contains({module, name})) {
      const std::string quoted = quoted_name(full);
      input_.fail(quoted.substr(1, quoted.size() - 2), " is not allowed");
    }
    PickleValue& global = push(Kind::kGlobal);
    global.text = std::move(full);
    if (is_class) classes_.insert(&global);
    if (globals_.enums.contains({module, name})) enums_.insert(&global);
  }

  void make_enum_member(const PickleValue& arguments) {
    const auto& items = arguments.items;
    if (arguments.kind != Kind::kTuple || items.size() != 2 || !enums_.contains(items[0]) ||
        items[1]->kind != Kind::kString) {
      input_.fail("getattr may only take a member of an allowed enum, by its name");
    }
    push_object(items[0]->text, arguments);
  }

  void make_object() {
    const PickleValue& arguments = stack_.pop();
    const PickleValue& called = stack_.pop();
    if (called.kind == Kind::kGlobal && called.text == kGetattr) {
      make_enum_member(arguments);
      return;
    }
    if (!classes_.contains(&called)) {
      input_.fail(called.kind == Kind::kGlobal ? called.text : "a value", " is called, but is not a class");
    }
    if (arguments.kind != Kind::kTuple) {
      input_.fail(called.text, " is called with something other than a tuple of arguments");
    }
    if (called.text == kOrderedDict && arguments.items.empty()) {
      push(Kind::kDict);
      return;
    }
    push_object(called.text, arguments);
  }

  void push_object(const std::string& of_class, const PickleValue& arguments) {
    PickleValue& object = push(Kind::kObject);
    object.text = of_class;
    object.arguments = &arguments;
  }

  void set_state() {
    const PickleValue& state = stack_.pop();
    PickleValue& object = stack_.top();
    if (object.kind != Kind::kObject || object.state != nullptr) {
      input_.fail("BUILD of ",
                  object.kind == Kind::kObject ? "an object that has its state" : "a value that is no object");
    }
    object.state = &state;
  }

  bool persistent_id() {
    if (!globals_.persistent_ids) return false;
    const PickleValue& id = stack_.pop();
    push(Kind::kPersistentId).arguments = &id;
    return true;
  }

  bool class_or_object(uint8_t op) {
    switch (op) {
      case opcode::kGlobal: {
        const std::string module(input_.take_line());
        push_global(module, std::string(input_.take_line()));
        return true;
      }
      case opcode::kStackGlobal: {
        const PickleValue& name = stack_.pop();
        const PickleValue& module = stack_.pop();
        if (name.kind != Kind::kString || module.kind != Kind::kString) input_.fail("STACK_GLOBAL needs two strings");
        push_global(module.text, name.text);
        return true;
      }
      case opcode::kReduce:
      case opcode::kNewObj:
        make_object();
        return true;
      case opcode::kBuild:
        set_state();
        return true;
      case opcode::kBinPersId:
        return persistent_id();
      default:
        return false;
    }
  }

  bool memo(uint8_t op) {
    switch (op) {
      case opcode::kFrame:
        input_.begin_frame();
        return true;
      case opcode::kMark:
        stack_.mark();
        return true;
      case opcode::kMemoize:
        stack_.memoize();
        return true;
      case opcode::kBinPut:
      case opcode::kLongBinPut:
        stack_.memoize(input_.take_unsigned(op == opcode::kBinPut ? 1 : 4));
        return true;
      case opcode::kBinGet:
      case opcode::kLongBinGet:
        stack_.recall(input_.take_unsigned(op == opcode::kBinGet ? 1 : 4));
        return true;
      default:
        return false;
    }
  }

  PickleInput& input_;
  const PickleGlobals& globals_;
  PickleStack stack_;
  std::unordered_set<const PickleValue*> classes_;  // globals that may be called
  std::unordered_set<const PickleValue*> enums_;    // enum classes whose members may be read
};

}  // namespace

PickleTree read_pickle(std::string_view bytes, const std::string& source, const PickleGlobals& globals,
                       const PickleLimits& limits) {
  PickleInput input(bytes, source);
  Machine machine(input, globals, limits);
  const PickleValue* root = machine.run();
  check_pickle_tree(*root, input, limits);
  return PickleTree(machine.take_values(), root);
}

}  // namespace fsdp::formats
