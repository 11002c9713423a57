// The loss over classes that are split over ranks (Megatron-LM's vocabulary-parallel cross-entropy).
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "fsdp/tensor_parallel.h"
#include "tensor_parallel/exchange.h"
#include "torch_seams/autograd_node.h"

namespace fsdp {
namespace {

constexpr const char* kName = "the loss over split classes";

// Multiplies the gradient of the loss by that of the logits: (softmax - one-hot) / count for each counted label.
class SplitCrossEntropyNode : public torch::autograd::Node {
 public:
  explicit SplitCrossEntropyNode(at::Tensor of_logits) : of_logits_(std::move(of_logits)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    TORCH_CHECK(!at::GradMode::is_enabled(), "fsdp: double backward (create_graph) through ", kName,
                " is not supported");
    TORCH_CHECK(of_logits_.defined(), torch::autograd::ERR_BACKWARD_TWICE);
    if (!gradients[0].defined()) return {at::Tensor()};
    return {of_logits_ * gradients[0]};
  }
  void release_variables() override { of_logits_.reset(); }
  std::string name() const override { return "fsdp::SplitCrossEntropy"; }

 private:
  at::Tensor of_logits_;
};

// What a rank knows of the labels, [labels] each.
struct OfClasses {
  at::Tensor largest;  // logit
  at::Tensor sum;      // of exp(logit - largest)
  at::Tensor target;   // logit of the label, 0 where another rank has it
};

// Returns the same of all ranks' classes.
OfClasses combined(tensor_parallel::Exchange& exchange, const OfClasses& own) {
  const at::Tensor mine = at::stack({own.largest, own.sum, own.target});
  const at::Tensor all = exchange.of_all(mine, kName, Pass::kForward);  // [ranks, 3, labels]
  const at::Tensor largest = all.select(1, 0).amax(0);
  const at::Tensor sum = (all.select(1, 1) * (all.select(1, 0) - largest).exp()).sum(0);
  return {largest, sum, all.select(1, 2).sum(0)};
}

}  // namespace

SplitClasses::SplitClasses(const std::shared_ptr<Communicator>& group, int64_t classes)
    : exchange_(std::make_shared<tensor_parallel::Exchange>(group)) {
  TORCH_CHECK(classes >= group->size(), "fsdp: SplitClasses: ", classes, " classes are too few for ", group->size(),
              " ranks");
  auto part = std::make_shared<flat::PartOfWhole>();
  part->whole_sizes = {classes};
  part->of_rank = flat::deal_groups({classes}, classes, group->size());
  part->rank = group->rank();
  part_ = std::move(part);
}

at::Tensor SplitClasses::gather(const at::Tensor& logits) const { return exchange_->gather(logits, part_, kName); }

at::Tensor SplitClasses::mean_cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                                            int64_t ignored_label) const {
  const flat::IndexRange classes = part_->ranges().front();
  const int64_t all = part_->whole_sizes.front();
  TORCH_CHECK(logits.size(-1) == classes.size(), "fsdp: ", kName, ": the logits have ", logits.size(-1),
              " classes, but rank ", exchange_->rank(), " of the group has ", classes.size(), " of ", all);
  const at::Tensor wide = (logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat)).flatten(0, -2);
  const at::Tensor flat = labels.reshape(-1);
  const at::Tensor counts = flat.ne(ignored_label);
  if (flat.is_cpu()) {
    TORCH_CHECK_INDEX(flat.lt(all).logical_and(flat.ge(0)).logical_or(counts.logical_not()).all().item<bool>(),
                      "fsdp: ", kName, ": a label is not among the ", all, " classes");
  }
  const at::Tensor here = counts.logical_and(flat.ge(classes.begin)).logical_and(flat.lt(classes.end));
  const at::Tensor index = at::where(here, flat - classes.begin, 0).unsqueeze(-1);

  const at::Tensor values = wide.detach();
  const at::Tensor largest = values.amax(-1);
  at::Tensor exponentials = (values - largest.unsqueeze(-1)).exp_();
  const at::Tensor target = values.gather(-1, index).squeeze(-1).masked_fill(here.logical_not(), 0);
  const OfClasses whole = combined(*exchange_, {largest, exponentials.sum(-1), target});
  const at::Tensor count = counts.sum();
  const at::Tensor losses = (whole.largest + whole.sum.log() - whole.target).masked_fill(counts.logical_not(), 0);
  at::Tensor loss = losses.sum() / count;
  if (!at::GradMode::is_enabled() || !wide.requires_grad()) return loss;

  const at::Tensor scale = (largest - whole.largest).exp() / whole.sum;
  exponentials.mul_(scale.unsqueeze(-1));  // the softmax
  exponentials.scatter_add_(-1, index, here.to(exponentials.scalar_type()).neg().unsqueeze(-1));
  exponentials.mul_((counts.to(exponentials.scalar_type()) / count).unsqueeze(-1));
  const auto node = seams::make_node<SplitCrossEntropyNode>(std::move(exponentials));
  node->set_next_edges(torch::autograd::collect_next_edges(wide));
  torch::autograd::set_history(loss, node);
  return loss;
}

}  // namespace fsdp
