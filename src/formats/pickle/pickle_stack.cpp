#include "formats/pickle/pickle_stack.h"

namespace fsdp::formats {

PickleValue& PickleStack::push(PickleValue::Kind kind) {
  auto& values = values_->values;
  if (values.size() >= limits_.max_values) input_.fail("more than ", limits_.max_values, " values");
  PickleValue& value = values.emplace_back();
  value.kind = kind;
  value.offset = input_.opcode_offset();
  stack_.push_back(&value);
  return value;
}

PickleValue& PickleStack::top() const {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
    input_.fail("the opcode needs a value, but none is on the stack");
  }
  return *stack_.back();
}

PickleValue& PickleStack::pop() {
  PickleValue& value = top();
  stack_.pop_back();
  return value;
}

std::vector<const PickleValue*> PickleStack::pop_count(size_t count) {
  std::vector<const PickleValue*> values(count);
  for (; count > 0; --count) values[count - 1] = &pop();
  return values;
}

std::vector<const PickleValue*> PickleStack::pop_to_mark() {
  if (marks_.empty()) input_.fail("the opcode needs a MARK before it");
  const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<const PickleValue*> values(first, stack_.end());
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return values;
}

void PickleStack::memoize(uint64_t index) {
  PickleValue& value = top();
  if (index != memo_.size()) input_.fail("memo index ", index, ", but the next one is ", memo_.size());
  if (index >= limits_.max_memo) input_.fail("more than ", limits_.max_memo, " values in the memo");
  memo_.push_back(&value);
}

void PickleStack::recall(uint64_t index) {
  if (index >= memo_.size()) input_.fail("memo index ", index, ", but the memo holds ", memo_.size(), " values");
  memo_[index]->recalled = true;
  stack_.push_back(memo_[index]);
}

const PickleValue& PickleStack::finish() {
  const PickleValue& value = pop();
  if (!stack_.empty() || !marks_.empty()) {
    input_.fail("STOP with ", stack_.size() + marks_.size(), " more values and marks on the stack");
  }
  return value;
}

}  // namespace fsdp::formats
