// The opcodes of pickles, for the reader and its errors.
#pragma once

#include <cstdint>
#include <utility>

namespace fsdp::formats {

// An unscoped enumeration in its own namespace, because opcodes are compared with bytes.
namespace opcode {
enum Opcode : uint8_t {
  kProto = 0x80,
  kFrame = 0x95,
  kStop = '.',
  kMark = '(',
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kBinFloat = 'G',
  kShortBinUnicode = 0x8c,
  kBinUnicode = 'X',
  kBinUnicode8 = 0x8d,
  kShortBinBytes = 'C',
  kBinBytes = 'B',
  kBinBytes8 = 0x8e,
  kEmptyTuple = ')',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kTuple = 't',
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kGlobal = 'c',
  kStackGlobal = 0x93,
  kReduce = 'R',
  kNewObj = 0x81,
  kBuild = 'b',
  kBinPersId = 'Q',
  kMemoize = 0x94,
  kBinPut = 'q',
  kLongBinPut = 'r',
  kBinGet = 'h',
  kLongBinGet = 'j',
};
}  // namespace opcode

// Returns Python's name of an opcode that the reader refuses, or "unknown" for a byte that is not an opcode.
inline const char* refused_opcode_name(uint8_t value) {
  static constexpr std::pair<uint8_t, const char*> kNames[] = {
      {'I', "INT"},          {'L', "LONG"},
      {'F', "FLOAT"},        {'S', "STRING"},
      {'T', "BINSTRING"},    {'U', "SHORT_BINSTRING"},
      {'V', "UNICODE"},      {'l', "LIST"},
      {'d', "DICT"},         {'0', "POP"},
      {'1', "POP_MARK"},     {'2', "DUP"},
      {'g', "GET"},          {'p', "PUT"},
      {'i', "INST"},         {'o', "OBJ"},
      {'P', "PERSID"},       {'Q', "BINPERSID"},
      {0x80, "PROTO"},       {0x82, "EXT1"},
      {0x83, "EXT2"},        {0x84, "EXT4"},
      {0x92, "NEWOBJ_EX"},   {0x96, "BYTEARRAY8"},
      {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"},
  };
  for (const auto& [refused, name] : kNames) {
    if (refused == value) return name;
  }
  return "unknown";
}

}  // namespace fsdp::formats
