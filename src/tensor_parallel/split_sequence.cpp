// Moves between whole sequences and the parts that ranks hold between layers (Korthikanti et al., 2022).
#include <utility>

#include "fsdp/tensor_parallel.h"
#include "tensor_parallel/exchange_node.h"

namespace fsdp {
namespace {

using tensor_parallel::Exchange;

constexpr const char* kSequence = "the positions of a sequence";

class PositionsNode : public tensor_parallel::ExchangeNode {
 public:
  PositionsNode(const std::shared_ptr<Exchange>& exchange, int64_t dim, bool gathers)
      : ExchangeNode(exchange, kSequence), keep_(exchange), dim_(dim), gathers_(gathers) {}
  std::string name() const override { return gathers_ ? "fsdp::GatherSequence" : "fsdp::TakePartOfSequence"; }

 private:
  at::Tensor backward(Exchange& exchange, const at::Tensor& gradient) override {
    return gathers_ ? exchange.own_positions(gradient, dim_)
                    : exchange.all_positions(gradient, dim_, split(), Pass::kBackward);
  }

  std::shared_ptr<Exchange> keep_;  // a SplitSequence may be temporary
  int64_t dim_;
  bool gathers_;
};

}  // namespace

SplitSequence::SplitSequence(const std::shared_ptr<Communicator>& group, int64_t dim)
    : exchange_(std::make_shared<Exchange>(group)), dim_(dim) {
  TORCH_CHECK(dim >= 0, "fsdp: SplitSequence: dimension ", dim, " must not be negative");
}

int SplitSequence::parts() const { return exchange_->size(); }

at::Tensor SplitSequence::gather(const at::Tensor& mine) const {
  at::Tensor whole = exchange_->all_positions(mine.detach(), dim_, kSequence, Pass::kForward);
  if (!tensor_parallel::is_recorded(mine)) return whole;
  return tensor_parallel::record(whole, mine, seams::make_node<PositionsNode>(exchange_, dim_, true));
}

at::Tensor SplitSequence::take(const at::Tensor& whole) const {
  at::Tensor mine = exchange_->own_positions(whole.detach(), dim_);
  if (!tensor_parallel::is_recorded(whole)) return mine;
  return tensor_parallel::record(mine, whole, seams::make_node<PositionsNode>(exchange_, dim_, false));
}

}  // namespace fsdp
