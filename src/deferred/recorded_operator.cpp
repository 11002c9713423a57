#include "deferred/recorded_operator.h"

#include "deferred/draw_sequence.h"

namespace fsdp::deferred {
namespace {

void take_writers(std::vector<RecordedOperator::Input>& inputs, std::vector<OperatorPtr>& to) {
  for (RecordedOperator::Input& input : inputs) {
    if (input.writer) to.push_back(std::move(input.writer));
  }
}

// Frees operators that are referenced only by `operators`, one after another: recursion over a long chain would
// overflow the stack.
void release(std::vector<OperatorPtr> operators) {
  while (!operators.empty()) {
    OperatorPtr op = std::move(operators.back());
    operators.pop_back();
    if (op.use_count() == 1 && !op->draws) take_writers(op->inputs, operators);
  }
}

}  // namespace

RecordedOperator::~RecordedOperator() {
  if (draws) {
    auto remains = std::make_shared<RecordedOperator>(op);
    remains->fills = fills;
    remains->arguments = std::move(arguments);
    remains->borrowed = std::move(borrowed);
    for (Input& input : inputs) {
      remains->inputs.push_back(input);
      if (input.read) {
        input.writer.reset();
      } else {
        remains->inputs.back().writer.reset();
      }
    }
    draws->keep_remains(draw, std::move(remains));
  }
  std::vector<OperatorPtr> writers;
  take_writers(inputs, writers);
  release(std::move(writers));
}

}  // namespace fsdp::deferred
