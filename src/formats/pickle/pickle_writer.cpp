#include "formats/pickle/pickle_writer.h"

#include <bit>
#include <limits>

#include "formats/pickle/pickle_opcodes.h"

namespace fsdp::formats::pickled {
namespace {

std::string op(uint8_t opcode) { return std::string(1, static_cast<char>(opcode)); }

std::string little_endian(uint64_t value, size_t width) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&value), width};
}

std::string join(const std::vector<std::string>& values) {
  std::string joined;
  for (const std::string& value : values) joined += value;
  return joined;
}

}  // namespace

std::string none() { return op(opcode::kNone); }

std::string boolean(bool value) { return op(value ? opcode::kNewTrue : opcode::kNewFalse); }

std::string integer(int64_t value) {
  const bool is_short = value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max();
  return is_short ? op(opcode::kBinInt) + little_endian(static_cast<uint64_t>(value), 4)
                  : op(opcode::kLong1) + op(8) + little_endian(static_cast<uint64_t>(value), 8);
}

std::string unsigned_integer(uint64_t value) {
  return value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
             ? integer(static_cast<int64_t>(value))
             : op(opcode::kLong1) + op(9) + little_endian(value, 8) + op(0);
}

std::string real(double value) {
  return op(opcode::kBinFloat) + little_endian(__builtin_bswap64(std::bit_cast<uint64_t>(value)), 8);
}

std::string text(const std::string& value) { return op(opcode::kBinUnicode) + little_endian(value.size(), 4) + value; }

std::string name(const std::string& module, const std::string& name) {
  return op(opcode::kGlobal) + module + "\n" + name + "\n";
}

std::string tuple(const std::vector<std::string>& values) {
  return op(opcode::kMark) + join(values) + op(opcode::kTuple);
}

std::string list(const std::vector<std::string>& values) {
  return op(opcode::kEmptyList) + op(opcode::kMark) + join(values) + op(opcode::kAppends);
}

std::string dict(const Items& items) {
  std::string joined;
  for (const auto& [key, value] : items) joined += key + value;
  return begin_dict() + joined + end_dict();
}

std::string begin_dict() { return op(opcode::kEmptyDict) + op(opcode::kMark); }

std::string end_dict() { return op(opcode::kSetItems); }

std::string call(const std::string& callable, const std::vector<std::string>& arguments) {
  return callable + tuple(arguments) + op(opcode::kReduce);
}

std::string object(const std::string& type, const std::string& state) {
  return begin_object(type) + state + end_object();
}

std::string begin_object(const std::string& type) { return type + op(opcode::kEmptyTuple) + op(opcode::kNewObj); }

std::string end_object() { return op(opcode::kBuild); }

std::string persistent_id(const std::string& id) { return id + op(opcode::kBinPersId); }

std::string value_of(const nlohmann::json& value) {
  if (value.is_object()) {
    Items items;
    for (const auto& [key, item] : value.items()) items.emplace_back(text(key), value_of(item));
    return dict(items);
  }
  if (value.is_array()) {
    std::vector<std::string> items;
    for (const auto& item : value) items.push_back(value_of(item));
    return list(items);
  }
  if (value.is_string()) return text(value.get<std::string>());
  if (value.is_boolean()) return boolean(value.get<bool>());
  if (value.is_number_unsigned()) return unsigned_integer(value.get<uint64_t>());
  if (value.is_number_integer()) return integer(value.get<int64_t>());
  return value.is_number() ? real(value.get<double>()) : none();
}

std::string file(const std::string& value) { return op(opcode::kProto) + op(2) + value + op(opcode::kStop); }

}  // namespace fsdp::formats::pickled
