#include "pipeline/weight_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>
#include <string>
#include <utility>

#include "engine/unit.h"
#include "torch_seams/autograd_node.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/graph_roots.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp::pipeline {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// A call of an operator that multiplies by a weight.
struct Call {
  at::Tensor input, weight, bias;  // bias: undefined without one
  bool weight_is_transposed;       // [outputs, inputs], as that of linear
};

// A product with `factor`, which is the weight or its transpose. torch::nn::Linear multiplies by the transpose.
Call product_of(const at::Tensor& input, const at::Tensor& factor, const at::Tensor& bias, bool factor_is_transposed) {
  const at::Tensor leaf = factor.defined() ? seams::transposed_leaf(factor) : at::Tensor();
  return leaf.defined() ? Call{input, leaf, bias, !factor_is_transposed}
                        : Call{input, factor, bias, factor_is_transposed};
}

// Returns the operator's arguments, or nothing if it is none of these operators.
std::optional<Call> call_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::string& name = op.schema().name();
  const size_t count = op.schema().arguments().size();
  const auto argument = [&](size_t index) -> const c10::IValue& { return stack[stack.size() - count + index]; };
  const auto tensor = [&](size_t index) {
    return argument(index).isTensor() ? argument(index).toTensor() : at::Tensor();
  };
  if (!op.schema().overload_name().empty()) return {};
  if (name == "aten::linear") return product_of(tensor(0), tensor(1), tensor(2), true);
  if (name == "aten::mm" || name == "aten::matmul") return product_of(tensor(0), tensor(1), {}, false);
  if (name == "aten::addmm" && argument(3).toScalar().equal(1) && argument(4).toScalar().equal(1)) {
    return product_of(tensor(1), tensor(2), tensor(0), false);
  }
  return {};
}

// Whether it is split over ranks, which communicate around the operator (tensor parallelism).
bool is_part(const at::Tensor& weight) {
  const seams::StorageOwner* owner = seams::has_sharded_key(weight) ? seams::storage_owner(weight) : nullptr;
  engine::Unit* unit =
      owner && owner->kind == seams::StorageOwner::Kind::kParameter ? engine::unit_of(*owner) : nullptr;
  return unit && unit->parameter(owner->index).part;
}

// Whether the gradient of the weight can wait: that of a leaf that is not split, by a product without casts.
bool can_wait(const Call& call) {
  const at::Tensor& weight = call.weight;
  return weight.defined() && !is_part(weight) && weight.is_leaf() && weight.requires_grad() && weight.dim() == 2 &&
         call.input.defined() && call.input.dim() >= 2 && call.input.is_contiguous() &&
         call.input.scalar_type() == weight.scalar_type() && call.input.layout() == at::kStrided &&
         (!call.bias.defined() || call.bias.dim() == 1);
}

// Computes the gradients of input and bias, and leaves that of the weight.
class InputGradientNode : public Node {
 public:
  InputGradientNode(std::shared_ptr<WeightGradients> left, const Call& call)
      : left_(std::move(left)),
        input_(call.input, /*is_output=*/false),
        weight_(call.weight, /*is_output=*/false),
        weight_root_(seams::graph_root(call.weight)),
        weight_is_transposed_(call.weight_is_transposed) {
    set_next_edges(torch::autograd::collect_next_edges(call.input, call.bias));
  }

  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "fsdp: Pipeline: double backward (create_graph) is not supported by schedules that compute the "
                "gradients of weights apart");
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    TORCH_CHECK(left_, torch::autograd::ERR_BACKWARD_TWICE);
    const at::Tensor weight = weight_.unpack(), input = input_.unpack();
    const at::Tensor gradient = gradients[0].reshape({-1, gradients[0].size(-1)});
    at::Tensor of_input, of_bias;
    if (task_should_compute_output(0)) {
      of_input = gradient.mm(weight_is_transposed_ ? weight : weight.t()).view(input.sizes());
    }
    if (task_should_compute_output(1)) of_bias = gradient.sum(0);
    const at::Tensor rows = input.view({-1, input.size(-1)});
    left_->add({weight_root_, weight_is_transposed_ ? gradient : rows, weight_is_transposed_ ? rows : gradient});
    return {of_input, of_bias};
  }

  void release_variables() override {
    input_.reset_data();
    weight_.reset_data();
    left_.reset();
  }
  std::string name() const override { return "fsdp::InputGradient"; }

 private:
  std::shared_ptr<WeightGradients> left_;  // null once released
  torch::autograd::SavedVariable input_, weight_;
  torch::autograd::Edge weight_root_;
  bool weight_is_transposed_;
};

// Computes the gradient of a weight, and passes it on to the place where it is accumulated.
class WeightGradientNode : public Node {
 public:
  explicit WeightGradientNode(WeightGradients::Product product) : product_(std::move(product)) {
    add_next_edge(product_.weight);
  }
  variable_list apply(variable_list&&) override {
    const WeightGradients::Product product = std::exchange(product_, {});
    return {product.left.t().mm(product.right)};
  }
  std::string name() const override { return "fsdp::WeightGradient"; }

 private:
  WeightGradients::Product product_;
};

}  // namespace

void WeightGradients::intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                c10::function_ref<void()> run) {
  const std::optional<Call> call = at::GradMode::is_enabled() ? call_of(op, stack) : std::nullopt;
  run();
  if (!call || !can_wait(*call)) return;
  // What autograd has recorded of this operator is dropped with the tensor.
  const at::Tensor output = stack.back().toTensor();
  at::Tensor detached = output.detach();
  torch::autograd::set_history(detached, seams::make_node<InputGradientNode>(shared_from_this(), *call));
  stack.back() = std::move(detached);
}

void WeightGradients::add(Product product) {
  base::MutexLock lock(mutex_);
  products_.push_back(std::move(product));
}

size_t WeightGradients::size() const {
  base::MutexLock lock(mutex_);
  return products_.size();
}

// Autograd runs the nodes that were made last first. Two uses of a weight are added up in the order of backward.
void WeightGradients::accumulate() {
  std::vector<Product> products;
  {
    base::MutexLock lock(mutex_);
    std::swap(products, products_);
  }
  std::vector<torch::autograd::Edge> roots;
  std::vector<at::Tensor> starts;
  while (!products.empty()) {
    at::Tensor start = at::zeros({}, products.back().left.options());
    starts.push_back(start.detach());
    torch::autograd::set_history(start, seams::make_node<WeightGradientNode>(std::move(products.back())));
    products.pop_back();
    roots.push_back(seams::graph_root(start));
  }
  if (!roots.empty()) seams::run_backward(roots, starts);
}

}  // namespace fsdp::pipeline
