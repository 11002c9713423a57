// Converts the values of a .metadata file to fields of known types; values of other types are errors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "formats/common/json_text.h"
#include "formats/pickle/pickle_reader.h"

namespace fsdp::formats::dcp {

using Kind = PickleValue::Kind;
using Sizes = std::vector<int64_t>;

// The context that an error message begins with.
struct Place {
  const std::string& source;
  const std::string* name = nullptr;
  const Sizes* chunk = nullptr;

  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    FSDP_CHECK_WITH(FileError, false, source, ": ", name ? quoted_name(*name) + ": " : "",
                    chunk ? c10::str("chunk [", c10::Join(", ", *chunk), "]: ") : "", parts...);
  }
};

// Returns the value if it has this kind, and throws otherwise. In errors, `what` names the value and `expected` the
// kind.
const PickleValue& expect(const PickleValue& value, Kind kind, const char* what, const char* expected,
                          const Place& place);
const std::string& expect_text(const PickleValue& value, const char* what, const Place& place);
// Expects an integer that is not negative.
int64_t expect_size(const PickleValue& value, const char* what, const Place& place);
// Expects an object of the class "module.name".
void expect_class(const PickleValue& value, const char* name, const char* what, const Place& place);
// Expects a tuple of at most 64 integers that are not negative.
Sizes parse_size_tuple(const PickleValue& value, const char* what, const Place& place);
// Expects a torch.Size without negative sizes, of at most 64 dimensions.
Sizes parse_sizes(const PickleValue& value, const char* what, const Place& place);

// The attributes of an object whose state is a dict in which no name occurs twice. Refers to its arguments.
class Attributes {
 public:
  Attributes(const PickleValue& object, const char* name, const char* what, const Place& place);

  // Returns nullptr if the attribute is missing or None.
  const PickleValue* find(const char* name) const;
  // Throws if the attribute is missing or None.
  const PickleValue& get(const char* name) const;

 private:
  std::map<std::string_view, const PickleValue*> values_;
  const char* what_;
  const Place& place_;
};

}  // namespace fsdp::formats::dcp
