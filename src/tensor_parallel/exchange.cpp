#include "tensor_parallel/exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "torch_seams/autograd_node.h"

namespace fsdp::tensor_parallel {
namespace {

using torch::autograd::variable_list;

// Returns this rank's channels of whole values.
at::Tensor own_channels(const at::Tensor& whole, const flat::PartOfWhole& part) {
  std::vector<at::Tensor> pieces;
  for (const flat::IndexRange& range : part.ranges()) pieces.push_back(whole.slice(-1, range.begin, range.end));
  return pieces.size() == 1 ? pieces.front().contiguous() : at::cat(pieces, -1);
}

// One of the functions of autograd. Holds the exchange weakly: a graph may outlive the sharded module.
class ExchangeNode : public torch::autograd::Node {
 public:
  ExchangeNode(const std::shared_ptr<Exchange>& exchange, std::string parameter)
      : exchange_(exchange), parameter_(std::move(parameter)) {}

  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(!at::GradMode::is_enabled(), "fsdp: double backward (create_graph) through parameter '", parameter_,
                "' is not supported: it is split over ranks (tensor parallelism)");
    const std::shared_ptr<Exchange> exchange = exchange_.lock();
    TORCH_CHECK(exchange, "fsdp: backward through parameter '", parameter_, "' after its sharded module was destroyed");
    // Other ranks wait for this rank's gradient, even if it is zero.
    return {backward(*exchange, gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like())};
  }

 protected:
  virtual at::Tensor backward(Exchange& exchange, const at::Tensor& gradient) = 0;
  const std::string& parameter() const { return parameter_; }

 private:
  std::weak_ptr<Exchange> exchange_;
  std::string parameter_;
};

class EnterNode : public ExchangeNode {
 public:
  using ExchangeNode::ExchangeNode;
  std::string name() const override { return "fsdp::EnterParts"; }

 private:
  at::Tensor backward(Exchange& exchange, const at::Tensor& gradient) override {
    const at::Tensor sum = gradient.clone(at::MemoryFormat::Contiguous);
    exchange.add_up(sum, parameter(), Pass::kBackward);
    return sum;
  }
};

class SumNode : public ExchangeNode {
 public:
  using ExchangeNode::ExchangeNode;
  std::string name() const override { return "fsdp::SumOfParts"; }

 private:
  at::Tensor backward(Exchange&, const at::Tensor& gradient) override { return gradient; }
};

// Of gather() and take().
class ChannelsNode : public ExchangeNode {
 public:
  ChannelsNode(const std::shared_ptr<Exchange>& exchange, std::string parameter,
               std::shared_ptr<const flat::PartOfWhole> part, bool gathers)
      : ExchangeNode(exchange, std::move(parameter)), part_(std::move(part)), gathers_(gathers) {}
  std::string name() const override { return gathers_ ? "fsdp::GatherParts" : "fsdp::TakePart"; }

 private:
  at::Tensor backward(Exchange& exchange, const at::Tensor& gradient) override {
    return gathers_ ? own_channels(gradient, *part_)
                    : exchange.gathered(gradient, *part_, parameter(), Pass::kBackward);
  }

  std::shared_ptr<const flat::PartOfWhole> part_;
  bool gathers_;
};

bool is_recorded(const at::Tensor& input) { return at::GradMode::is_enabled() && input.requires_grad(); }

// Makes `node` the function that has computed `result` from `input`.
at::Tensor record(at::Tensor result, const at::Tensor& input, const seams::NodePtr& node) {
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace

// ---------------------------------------------------------------- as part of the graph

at::Tensor Exchange::entered_before(const at::Tensor& whole) const {
  if (!entered_ || entered_->version != whole._version()) return {};
  const auto known = entered_->whole.lock();
  const auto result = known.get() == whole.unsafeGetTensorImpl() ? entered_->result.lock() : decltype(known)();
  return result ? at::Tensor(result) : at::Tensor();
}

at::Tensor Exchange::enter(const at::Tensor& whole, const std::string& name) {
  if (!is_recorded(whole)) return whole;
  if (at::Tensor before = entered_before(whole); before.defined()) return before;
  at::Tensor result = record(whole.detach(), whole, seams::make_node<EnterNode>(shared_from_this(), name));
  const auto weakly = [](const at::Tensor& tensor) {
    return c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr());
  };
  entered_ = std::make_unique<Entered>(Entered{weakly(whole), weakly(result), whole._version()});
  return result;
}

at::Tensor Exchange::sum(const at::Tensor& partial, const std::string& name) {
  at::Tensor result = partial.detach().contiguous();
  add_up(result, name, Pass::kForward);
  if (!is_recorded(partial)) return result;
  return record(std::move(result), partial, seams::make_node<SumNode>(shared_from_this(), name));
}

at::Tensor Exchange::gather(const at::Tensor& mine, const std::shared_ptr<const flat::PartOfWhole>& part,
                            const std::string& name) {
  at::Tensor result = gathered(mine.detach(), *part, name, Pass::kForward);
  if (!is_recorded(mine)) return result;
  return record(std::move(result), mine, seams::make_node<ChannelsNode>(shared_from_this(), name, part, true));
}

at::Tensor Exchange::take(const at::Tensor& whole, const std::shared_ptr<const flat::PartOfWhole>& part,
                          const std::string& name) {
  at::Tensor result = own_channels(whole.detach(), *part);
  if (!is_recorded(whole)) return result;
  return record(std::move(result), whole, seams::make_node<ChannelsNode>(shared_from_this(), name, part, false));
}

// ---------------------------------------------------------------- without a graph

CollectiveId Exchange::next_id(std::string name, Pass pass) { return {std::move(name), generations_[pass]++, pass}; }

void Exchange::add_up(const at::Tensor& values, const std::string& name, Pass pass) {
  const at::Tensor flat = values.view({-1});
  group_->all_reduce(flat, flat, {}, next_id("sum for " + name, pass))->wait();
}

at::Tensor Exchange::of_all(const at::Tensor& mine, const std::string& name, Pass pass) {
  std::vector<int64_t> sizes = {size()};
  sizes.insert(sizes.end(), mine.sizes().begin(), mine.sizes().end());
  at::Tensor all = at::empty(sizes, mine.options());
  const at::Tensor own = all.select(0, rank()).copy_(mine);
  group_->all_gather(all.view({-1}), own.view({-1}), next_id("values for " + name, pass))->wait();
  return all;
}

at::Tensor Exchange::whole_of(const at::Tensor& mine, const flat::PartOfWhole& part, const std::string& name) {
  return gathered(mine.movedim(part.dim, -1), part, name, Pass::kUser).movedim(-1, part.dim).contiguous();
}

// Parts may differ in size, so each travels in a row of the largest.
at::Tensor Exchange::gathered(const at::Tensor& mine, const flat::PartOfWhole& part, const std::string& name,
                              Pass pass) {
  int64_t most = 0, channels = 0;
  for (int rank = 0; rank < size(); ++rank) {
    most = std::max(most, part.size_on(rank));
    channels += part.size_on(rank);
  }
  const int64_t rows = mine.size(-1) == 0 ? 0 : mine.numel() / mine.size(-1);
  at::Tensor all = at::empty({size(), rows, most}, mine.options());
  const at::Tensor own = all.select(0, rank());
  own.narrow(-1, 0, mine.size(-1)).copy_(mine.reshape({rows, mine.size(-1)}));
  own.narrow(-1, mine.size(-1), most - mine.size(-1)).zero_();
  group_->all_gather(all.view({-1}), own.view({-1}), next_id("parts for " + name, pass))->wait();
  std::vector<int64_t> sizes = mine.sizes().vec();
  sizes.back() = channels;
  at::Tensor whole = at::empty({rows, channels}, mine.options());
  for (int rank = 0; rank < size(); ++rank) {
    int64_t begin = 0;
    for (const flat::IndexRange& range : part.of_rank[static_cast<size_t>(rank)]) {
      whole.slice(-1, range.begin, range.end).copy_(all.select(0, rank).narrow(-1, begin, range.size()));
      begin += range.size();
    }
  }
  return whole.view(sizes);
}

}  // namespace fsdp::tensor_parallel
