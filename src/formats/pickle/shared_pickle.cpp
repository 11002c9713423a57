#include "formats/pickle/shared_pickle.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <limits>
#include <utility>

#include "formats/pickle/pickle_opcodes.h"

namespace fsdp::formats {
namespace {

uint32_t read_four_bytes(std::string_view bytes) {
  uint32_t value = 0;
  TORCH_INTERNAL_ASSERT(bytes.size() >= sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

size_t size_of_lines(std::string_view bytes, int count) {
  size_t size = 0;
  for (; count > 0; --count) {
    size = bytes.find('\n', size) + 1;
    TORCH_INTERNAL_ASSERT(size > 0);
  }
  return size;
}

// Returns the bytes of the first opcode with its operand.
size_t size_of_opcode(std::string_view opcodes) {
  const std::string_view operand = opcodes.substr(1);
  switch (static_cast<uint8_t>(opcodes.front())) {
    case opcode::kNone:
    case opcode::kNewTrue:
    case opcode::kNewFalse:
    case opcode::kMark:
    case opcode::kTuple:
    case opcode::kEmptyTuple:
    case opcode::kEmptyList:
    case opcode::kAppends:
    case opcode::kEmptyDict:
    case opcode::kSetItems:
    case opcode::kReduce:
    case opcode::kNewObj:
    case opcode::kBuild:
    case opcode::kBinPersId:
      return 1;
    case opcode::kBinInt:
      return 1 + sizeof(int32_t);
    case opcode::kBinFloat:
      return 1 + sizeof(double);
    case opcode::kLong1:
      TORCH_INTERNAL_ASSERT(!operand.empty());
      return 2 + static_cast<uint8_t>(operand.front());
    case opcode::kBinUnicode:
      return 1 + sizeof(uint32_t) + read_four_bytes(operand);
    case opcode::kGlobal:
      return 1 + size_of_lines(operand, 2);
    default:
      TORCH_INTERNAL_ASSERT(false, "opcode ", static_cast<int>(static_cast<uint8_t>(opcodes.front())));
  }
}

bool is_worth_sharing(std::string_view opcode) {
  return opcode.front() == opcode::kGlobal || opcode.front() == opcode::kBinUnicode;
}

// Returns an opcode that takes an index in the memo: in one byte where that is enough, else in four.
std::string memo_opcode(opcode::Opcode of_one_byte, opcode::Opcode of_four_bytes, size_t index) {
  const bool is_short = index <= std::numeric_limits<uint8_t>::max();
  std::string bytes(is_short ? 2 : 5, static_cast<char>(is_short ? of_one_byte : of_four_bytes));
  std::memcpy(bytes.data() + 1, &index, bytes.size() - 1);  // little-endian, as pickles are
  return bytes;
}

}  // namespace

SharedPickle::SharedPickle() : file_({static_cast<char>(opcode::kProto), 2}) {}

void SharedPickle::add(std::string_view opcodes) {
  while (!opcodes.empty()) {
    const size_t size = size_of_opcode(opcodes);
    TORCH_INTERNAL_ASSERT(size <= opcodes.size());
    const std::string_view opcode = opcodes.substr(0, size);
    opcodes.remove_prefix(size);
    if (!is_worth_sharing(opcode)) {
      file_ += opcode;
      continue;
    }
    const auto [place, is_new] = memo_.try_emplace(std::string(opcode), memo_.size());
    if (is_new) {
      file_ += opcode;
      file_ += memo_opcode(opcode::kBinPut, opcode::kLongBinPut, place->second);
    } else {
      file_ += memo_opcode(opcode::kBinGet, opcode::kLongBinGet, place->second);
    }
  }
}

std::string SharedPickle::finish() && {
  file_ += static_cast<char>(opcode::kStop);
  return std::move(file_);
}

}  // namespace fsdp::formats
