// Reads pickles of other programs as plain data: nothing is imported, called or constructed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp::formats {

struct PickleValue {
  enum class Kind : uint8_t {
    kNone,
    kBool,          // integer: 0 or 1
    kInt,           // integer
    kDouble,        // real
    kString,        // text, valid UTF-8
    kBytes,         // text
    kTuple,         // items
    kList,          // items
    kDict,          // items: key, value, key, value, … as written; equal keys are all kept
    kSet,           // items
    kGlobal,        // text: "module.name" of an allowed class or constant
    kObject,        // text: "module.name" of an allowed class; arguments; state
    kPersistentId,  // arguments: the id by which the pickle refers to something outside of it
  };
  using allocator_type = std::pmr::polymorphic_allocator<>;

  explicit PickleValue(const allocator_type& allocator) : items(allocator) {}

  Kind kind = Kind::kNone;
  bool recalled = false;  // from the memo; only such values may occur in several places
  uint64_t offset = 0;    // in the pickle, of the opcode that built the value
  int64_t integer = 0;
  double real = 0;
  std::string text;
  std::pmr::vector<const PickleValue*> items;
  const PickleValue* arguments = nullptr;  // the tuple that the class was called with, or the id
  const PickleValue* state = nullptr;      // the source of the object's attributes; nullptr: none
};

// The values of one pickle, and the memory of their items: there are millions, which live and end together.
struct PickleValues {
  std::pmr::monotonic_buffer_resource memory;
  std::pmr::deque<PickleValue> values{&memory};
};

// Owns the values of one pickle. Values that the pickle shares are shared here too, so a value may be reached on
// several paths; it never contains itself.
class PickleTree {
 public:
  PickleTree(std::unique_ptr<PickleValues> values, const PickleValue* root) : values_(std::move(values)), root_(root) {}
  PickleTree(PickleTree&&) = default;
  PickleTree& operator=(PickleTree&&) = default;

  const PickleValue& root() const { return *root_; }

 private:
  std::unique_ptr<PickleValues> values_;
  const PickleValue* root_;
};

// The globals that a pickle may name; all others are errors.
struct PickleGlobals {
  using Name = std::pair<std::string, std::string>;  // module, and name in it

  std::set<Name> classes{};     // may be called: their objects become values of kind kObject
  std::set<Name> constants{};   // may only be used as values
  std::set<Name> enums{};       // of the classes: their members may stand as getattr(class, "member"),
                                // which becomes a kObject of the class with getattr's arguments. Python 3.11.0
                                // to 3.11.3 pickled members so; others as class(value)
  bool persistent_ids = false;  // whether the pickle may contain ids of things outside of it
};

struct PickleLimits {
  size_t max_depth = 64;
  uint64_t max_values = uint64_t{1} << 25;  // with shared values counted at each occurrence; about 100 bytes each
  size_t max_memo = size_t{1} << 25;
};

// Reads a whole pickle of protocol 2 to 5 with the opcodes that Python's own pickler writes for plain data and objects.
// Time and memory are linear in the size of `bytes`, whatever they contain, and `limits.max_values` bounds a walk over
// the tree from its root. Errors have the form "SOURCE: byte OFFSET: what is wrong".
//
// collections.OrderedDict becomes a kDict, if `globals` allows it.
PickleTree read_pickle(std::string_view bytes, const std::string& source, const PickleGlobals& globals,
                       const PickleLimits& limits = {});

}  // namespace fsdp::formats
