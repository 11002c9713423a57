// The values that the opcodes of a pickle build: the stack with its marks, and the memo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "formats/pickle/pickle_input.h"
#include "formats/pickle/pickle_reader.h"

namespace fsdp::formats {

// All errors refer to the offset of the input's current opcode. Values keep their addresses.
class PickleStack {
 public:
  PickleStack(const PickleInput& input, const PickleLimits& limits) : input_(input), limits_(limits) {}

  PickleValue& push(PickleValue::Kind kind);
  void mark() { marks_.push_back(stack_.size()); }

  // Returns the top value. Values below the last mark cannot be reached.
  PickleValue& top() const;
  PickleValue& pop();
  std::vector<const PickleValue*> pop_count(size_t count);
  std::vector<const PickleValue*> pop_to_mark();  // also removes the mark

  // Puts the top value into the memo. Memo indices count from 0 without gaps, as Python's pickler assigns them.
  void memoize() { memoize(memo_.size()); }
  void memoize(uint64_t index);
  void recall(uint64_t index);

  // Returns the only value left. Throws if a mark, or another number of values, is left.
  const PickleValue& finish();
  std::unique_ptr<PickleValues> take_values() { return std::move(values_); }

 private:
  const PickleInput& input_;
  const PickleLimits& limits_;
  std::unique_ptr<PickleValues> values_ = std::make_unique<PickleValues>();
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;  // stack heights
  std::vector<PickleValue*> memo_;
};

}  // namespace fsdp::formats
