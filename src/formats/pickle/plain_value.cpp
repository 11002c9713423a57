#include "formats/pickle/plain_value.h"

#include "base/check.h"
#include "formats/torch_archive/torch_globals.h"

namespace fsdp::formats {
namespace {

using nlohmann::json;
using Kind = PickleValue::Kind;

// The approximate memory of a JSON value without its text.
constexpr uint64_t kBytesPerValue = 64;
// The memory allowed per byte of the pickle; a string of 200 bytes that two bytes of the pickle repeat needs about as
// much.
constexpr uint64_t kBytesPerByte = 128, kBaseBytes = uint64_t{1} << 16;

class PlainValues {
 public:
  PlainValues(uint64_t pickle_bytes, const std::string& source)
      : source_(source), left_(kBaseBytes + kBytesPerByte * pickle_bytes) {}

  json make(const PickleValue& value) {
    take(kBytesPerValue + value.text.size());
    switch (value.kind) {
      case Kind::kNone:
        return nullptr;
      case Kind::kBool:
        return value.integer != 0;
      case Kind::kInt:
        return value.integer;
      case Kind::kDouble:
        return value.real;
      case Kind::kString:
        return value.text;
      case Kind::kTuple:
      case Kind::kList:
        return make_list(value);
      case Kind::kDict:
        return make_dict(value);
      case Kind::kObject:
        if (value.text == torch_save::kSize && value.arguments->items.size() == 1) {
          return make(*value.arguments->items[0]);
        }
        [[fallthrough]];
      default: {
        const bool has_name = value.kind == Kind::kGlobal || value.kind == Kind::kObject;
        FSDP_CHECK_WITH(FileError, false, source_, ": ", has_name ? value.text : "a value", " (byte ", value.offset,
                        ") is not a number, string, list or dict");
      }
    }
  }

 private:
  void take(uint64_t bytes) {
    FSDP_CHECK_WITH(FileError, bytes <= left_, source_, ": shared values, counted wherever they stand, take more than ",
                    kBytesPerByte, " times the pickle's size");
    left_ -= bytes;
  }

  json make_list(const PickleValue& value) {
    json items = json::array();
    for (const PickleValue* item : value.items) items.push_back(make(*item));
    return items;
  }

  json make_dict(const PickleValue& value) {
    json fields = json::object();
    for (size_t i = 0; i < value.items.size(); i += 2) {
      const PickleValue& key = *value.items[i];
      FSDP_CHECK_WITH(FileError, key.kind == Kind::kString, source_, ": a dict with a key that is not a string (byte ",
                      key.offset, ")");
      take(kBytesPerValue + key.text.size());
      fields[key.text] = make(*value.items[i + 1]);
    }
    return fields;
  }

  const std::string& source_;
  uint64_t left_;
};

}  // namespace

json plain_value(const PickleValue& value, uint64_t pickle_bytes, const std::string& source) {
  return PlainValues(pickle_bytes, source).make(value);
}

}  // namespace fsdp::formats
