#include "formats/dcp/dcp_fields.h"

#include <algorithm>
#include <iterator>

#include "formats/common/tensor_info.h"
#include "formats/dcp/dcp_globals.h"

namespace fsdp::formats::dcp {

const PickleValue& expect(const PickleValue& value, Kind kind, const char* what, const char* expected,
                          const Place& place) {
  if (value.kind != kind) place.fail(what, " is not ", expected, " (byte ", value.offset, ")");
  return value;
}

const std::string& expect_text(const PickleValue& value, const char* what, const Place& place) {
  return expect(value, Kind::kString, what, "a string", place).text;
}

int64_t expect_size(const PickleValue& value, const char* what, const Place& place) {
  const int64_t size = expect(value, Kind::kInt, what, "an integer", place).integer;
  if (size < 0) place.fail(what, " is negative: ", size);
  return size;
}

void expect_class(const PickleValue& value, const char* name, const char* what, const Place& place) {
  if (value.kind != Kind::kObject || value.text != name) {
    place.fail(what, " is not an object of class ", name, " (byte ", value.offset, ")");
  }
}

Attributes::Attributes(const PickleValue& object, const char* name, const char* what, const Place& place)
    : what_(what), place_(place) {
  expect_class(object, name, what, place);
  if (object.state == nullptr) return;
  const auto& items = expect(*object.state, Kind::kDict, what, "an object with named attributes", place).items;
  for (size_t i = 0; i < items.size(); i += 2) {
    const std::string& key = expect_text(*items[i], "an attribute's name", place);
    if (!values_.emplace(key, items[i + 1]).second) place.fail(what, " has the attribute ", quoted_name(key), " twice");
  }
}

const PickleValue* Attributes::find(const char* name) const {
  const auto found = values_.find(name);
  return found == values_.end() || found->second->kind == Kind::kNone ? nullptr : found->second;
}

const PickleValue& Attributes::get(const char* name) const {
  const PickleValue* value = find(name);
  if (value == nullptr) place_.fail(what_, " has no ", name);
  return *value;
}

Sizes parse_size_tuple(const PickleValue& value, const char* what, const Place& place) {
  const auto& items = expect(value, Kind::kTuple, what, "a tuple", place).items;
  if (items.size() > kMaxTensorRank) {
    place.fail(what, " has ", items.size(), " dimensions; at most ", kMaxTensorRank, " are supported");
  }
  Sizes sizes;
  std::transform(items.begin(), items.end(), std::back_inserter(sizes),
                 [&](const PickleValue* item) { return expect_size(*item, what, place); });
  return sizes;
}

Sizes parse_sizes(const PickleValue& value, const char* what, const Place& place) {
  expect_class(value, kSize, what, place);
  const auto& arguments = value.arguments->items;
  if (arguments.size() != 1 || arguments[0]->kind != Kind::kTuple || value.state != nullptr) {
    place.fail(what, " is not a torch.Size of one tuple (byte ", value.offset, ")");
  }
  return parse_size_tuple(*arguments[0], what, place);
}

}  // namespace fsdp::formats::dcp
