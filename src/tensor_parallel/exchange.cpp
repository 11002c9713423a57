#include "tensor_parallel/exchange.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tensor_parallel/exchange_node.h"
#include "tensor_parallel/positions.h"

namespace fsdp::tensor_parallel {
namespace {

// Returns this rank's channels of whole values.
at::Tensor own_channels(const at::Tensor& whole, const flat::PartOfWhole& part) {
  std::vector<at::Tensor> pieces;
  for (const flat::IndexRange& range : part.ranges()) pieces.push_back(whole.slice(-1, range.begin, range.end));
  return pieces.size() == 1 ? pieces.front().contiguous() : at::cat(pieces, -1);
}

class EnterNode : public ExchangeNode {
 public:
  using ExchangeNode::ExchangeNode;
  std::string name() const override { return "fsdp::EnterParts"; }

 private:
  at::Tensor backward(Exchange& exchange, const at::Tensor& gradient) override {
    return exchange.combined(gradient, split(), Pass::kBackward);
  }
};

class SumNode : public ExchangeNode {
 public:
  using ExchangeNode::ExchangeNode;
  std::string name() const override { return "fsdp::SumOfParts"; }

 private:
  at::Tensor backward(Exchange& exchange, const at::Tensor& gradient) override {
    return exchange.spread(gradient, split(), Pass::kBackward);
  }
};

// Of gather() and take().
class ChannelsNode : public ExchangeNode {
 public:
  ChannelsNode(const std::shared_ptr<Exchange>& exchange, std::string split,
               std::shared_ptr<const flat::PartOfWhole> part, bool gathers)
      : ExchangeNode(exchange, std::move(split)), part_(std::move(part)), gathers_(gathers) {}
  std::string name() const override { return gathers_ ? "fsdp::GatherParts" : "fsdp::TakePart"; }

 private:
  at::Tensor backward(Exchange& exchange, const at::Tensor& gradient) override {
    return gathers_ ? own_channels(gradient, *part_) : exchange.gathered(gradient, *part_, split(), Pass::kBackward);
  }

  std::shared_ptr<const flat::PartOfWhole> part_;
  bool gathers_;
};

}  // namespace

// ---------------------------------------------------------------- as part of the graph

at::Tensor Exchange::entered_before(const at::Tensor& values) const {
  if (!entered_ || entered_->version != values._version()) return {};
  if (entered_->is_recorded != is_recorded(values)) return {};
  const auto known = entered_->values.lock();
  const auto result = known.get() == values.unsafeGetTensorImpl() ? entered_->result.lock() : decltype(known)();
  return result ? at::Tensor(result) : at::Tensor();
}

at::Tensor Exchange::enter(const at::Tensor& values, const std::string& name) {
  const bool recorded = is_recorded(values);
  if (!recorded && !sequence_dim_) return values;
  const bool counts_versions = !values.is_inference();
  if (at::Tensor before = counts_versions ? entered_before(values) : at::Tensor(); before.defined()) return before;
  entered_.reset();
  at::Tensor result = spread(values.detach(), name, Pass::kForward);
  if (recorded) result = record(result, values, seams::make_node<EnterNode>(shared_from_this(), name));
  if (!counts_versions) return result;
  const auto weakly = [](const at::Tensor& tensor) {
    return c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr());
  };
  entered_ = std::make_unique<Entered>(
      Entered{weakly(values), weakly(result), values._version(), recorded, recorded ? at::Tensor() : result});
  return result;
}

at::Tensor Exchange::sum(const at::Tensor& partial, const std::string& name) {
  if (entered_) entered_->kept.reset();
  at::Tensor result = combined(partial.detach(), name, Pass::kForward);
  if (!is_recorded(partial)) return result;
  return record(result, partial, seams::make_node<SumNode>(shared_from_this(), name));
}

at::Tensor Exchange::gather(const at::Tensor& mine, const std::shared_ptr<const flat::PartOfWhole>& part,
                            const std::string& name) {
  at::Tensor result = gathered(mine.detach(), *part, name, Pass::kForward);
  if (!is_recorded(mine)) return result;
  return record(result, mine, seams::make_node<ChannelsNode>(shared_from_this(), name, part, true));
}

at::Tensor Exchange::take(const at::Tensor& whole, const std::shared_ptr<const flat::PartOfWhole>& part,
                          const std::string& name) {
  at::Tensor result = own_channels(whole.detach(), *part);
  if (!is_recorded(whole)) return result;
  return record(result, whole, seams::make_node<ChannelsNode>(shared_from_this(), name, part, false));
}

// ---------------------------------------------------------------- without a graph

CollectiveId Exchange::next_id(std::string name, Pass pass) { return {std::move(name), generations_[pass]++, pass}; }

void Exchange::add_up(const at::Tensor& values, const std::string& name, Pass pass) {
  const at::Tensor flat = values.view({-1});
  group_->all_reduce(flat, flat, {}, next_id("sum for " + name, pass))->wait();
}

// In forward, nothing else uses `partial`, so it is added up in place.
at::Tensor Exchange::combined(const at::Tensor& partial, const std::string& name, Pass pass) {
  if (!sequence_dim_) {
    const bool is_own = pass == Pass::kForward;
    const at::Tensor sum = is_own ? partial.contiguous() : partial.clone(at::MemoryFormat::Contiguous);
    add_up(sum, name, pass);
    return sum;
  }
  const at::Tensor blocks = by_rank(partial, *sequence_dim_, size());
  at::Tensor mine = at::empty_like(blocks.select(0, 0), at::MemoryFormat::Contiguous);
  group_->reduce_scatter(mine.view({-1}), blocks.view({-1}), {}, next_id("part of the sum for " + name, pass))->wait();
  return mine;
}

at::Tensor Exchange::spread(const at::Tensor& values, const std::string& name, Pass pass) {
  return sequence_dim_ ? all_positions(values, *sequence_dim_, name, pass) : values;
}

at::Tensor Exchange::all_positions(const at::Tensor& mine, int64_t dim, const std::string& name, Pass pass) {
  return from_ranks(of_all(mine, name, pass), dim);
}

at::Tensor Exchange::own_positions(const at::Tensor& whole, int64_t dim) const {
  check_positions(whole, dim);
  const int64_t positions = whole.size(dim) / size();
  return whole.narrow(dim, positions * rank(), positions).clone(at::MemoryFormat::Contiguous);
}

void Exchange::check_sequence(const at::Tensor& whole) const {
  if (sequence_dim_) check_positions(whole, *sequence_dim_);
}

void Exchange::check_positions(const at::Tensor& whole, int64_t dim) const {
  TORCH_CHECK(dim < whole.dim() && whole.size(dim) % size() == 0, "fsdp: values of sizes ", whole.sizes(),
              " cannot be cut along dimension ", dim, " into ", size(),
              " equal parts (sequence parallelism): pad the sequence to a multiple of the ranks");
}

at::Tensor Exchange::of_all(const at::Tensor& mine, const std::string& name, Pass pass) {
  std::vector<int64_t> sizes = {size()};
  sizes.insert(sizes.end(), mine.sizes().begin(), mine.sizes().end());
  at::Tensor all = at::empty(sizes, mine.options());
  const at::Tensor own = all.select(0, rank()).copy_(mine);
  group_->all_gather(all.view({-1}), own.view({-1}), next_id("values for " + name, pass))->wait();
  return all;
}

void Exchange::share(const at::Tensor& values, int owner, const std::string& name) {
  group_->broadcast(values.view({-1}), owner, next_id("values of " + name, Pass::kUser))->wait();
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
