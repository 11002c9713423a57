#include "models/fused_cross_entropy.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "models/cross_entropy_node.h"
#include "models/loss.h"
#include "torch_seams/autograd_node.h"

namespace fsdp::models {
namespace {

// The gradients that are requested.
struct Wanted {
  bool hidden_states, weight;
};

void check(const at::Tensor& hidden_states, const at::Tensor& weight, const at::Tensor& labels) {
  TORCH_CHECK(hidden_states.dim() >= 1 && weight.dim() == 2 && hidden_states.size(-1) == weight.size(1),
              "fused loss: hidden states are of shape ", hidden_states.sizes(), ", the weight of shape ",
              weight.sizes(), "; they must be [..., width] and [classes, width]");
  TORCH_CHECK(labels.sizes() == hidden_states.sizes().slice(0, hidden_states.dim() - 1),
              "fused loss: labels are of shape ", labels.sizes(), ", hidden states of shape ", hidden_states.sizes(),
              "; there must be a label for each token");
  TORCH_CHECK_NOT_IMPLEMENTED(
      !torch::autograd::isFwGradDefined(hidden_states) && !torch::autograd::isFwGradDefined(weight),
      "fused loss: there are no forward-mode gradients; use the plain loss");
}

// Casts a tensor as autocast casts an argument of linear.
at::Tensor as_autocast_does(const at::Tensor& tensor) {
  const at::DeviceType device = tensor.device().type();
  const bool casts = at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device) &&
                     tensor.scalar_type() != at::kDouble;
  return casts ? tensor.to(at::autocast::get_autocast_dtype(device)) : tensor;
}

// Returns the gradient of the sum of the chunk's losses with respect to its logits, in the memory of their
// log-probabilities.
at::Tensor logits_gradient(at::Tensor log_probabilities, const at::Tensor& labels) {
  const at::Tensor ignored = labels.eq(kIgnoredLabel);
  const at::Tensor index = labels.masked_fill(ignored, 0).unsqueeze(1);
  const at::Tensor& gradient = log_probabilities.exp_();
  gradient.scatter_(1, index, gradient.gather(1, index).sub_(1));
  return gradient.masked_fill_(ignored.unsqueeze(1), 0);
}

// The state of one call. The results of each chunk are written to their positions or added.
class ChunkedLoss {
 public:
  ChunkedLoss(const at::Tensor& hidden_states, const at::Tensor& weight, const at::Tensor& labels,
              const LogitScaling& scaling, Wanted wanted)
      : hidden_states_(hidden_states),
        weight_(weight),
        labels_(labels),
        scaling_(scaling),
        wanted_(wanted),
        wide_(weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat),
        losses_(at::empty(labels.sizes(), hidden_states.options().dtype(wide_))) {
    if (wanted.hidden_states) gradients_.hidden_states = at::empty_like(hidden_states);
    if (wanted.weight) gradients_.weight = at::zeros(weight.sizes(), losses_.options());
  }

  void add(int64_t begin, int64_t rows) {
    const at::Tensor hidden_states = hidden_states_.narrow(0, begin, rows), labels = labels_.narrow(0, begin, rows);
    at::Tensor logits = scaling_.apply(at::linear(hidden_states, weight_));
    const at::ScalarType dtype = logits.scalar_type();
    at::Tensor log_probabilities = at::log_softmax(logits, -1, wide_);
    if (!scaling_.softcap) logits.reset();
    losses_.narrow(0, begin, rows)
        .copy_(at::nll_loss(log_probabilities, labels, /*weight=*/{}, at::Reduction::None, kIgnoredLabel));
    if (!wanted_.hidden_states && !wanted_.weight) return;
    const at::Tensor gradient =
        scaling_.backward(logits_gradient(std::move(log_probabilities), labels), logits).to(dtype);
    if (wanted_.hidden_states) gradients_.hidden_states.narrow(0, begin, rows).copy_(at::mm(gradient, weight_));
    if (wanted_.weight) add_to_weight(gradient.t(), hidden_states.to(dtype));
  }

  // Computes the mean like cross_entropy for unchunked logits, so that equal losses have a bitwise equal mean.
  at::Tensor mean() const {
    const at::Tensor first_class = labels_.masked_fill(labels_.ne(kIgnoredLabel), 0);
    return at::nll_loss(losses_.neg().unsqueeze(1), first_class, /*weight=*/{}, at::Reduction::Mean, kIgnoredLabel);
  }

  CrossEntropyGradients gradients() const { return gradients_; }

 private:
  void add_to_weight(const at::Tensor& left, const at::Tensor& right) {
    if (left.scalar_type() == wide_) {
      gradients_.weight.addmm_(left, right);
    } else {
      gradients_.weight.add_(at::mm(left, right));
    }
  }

  const at::Tensor hidden_states_, weight_, labels_;
  const LogitScaling scaling_;
  const Wanted wanted_;
  const at::ScalarType wide_;  // of losses and sums
  at::Tensor losses_;
  CrossEntropyGradients gradients_;
};

}  // namespace

int64_t cross_entropy_chunk(int64_t tokens, int64_t width, int64_t classes) {
  const int64_t as_hidden_states = (tokens * width + classes - 1) / std::max<int64_t>(classes, 1);
  const auto rows = static_cast<uint64_t>(std::max({as_hidden_states, width / 4, int64_t{1}}));
  return static_cast<int64_t>(std::bit_ceil(rows));
}

at::Tensor fused_cross_entropy(const at::Tensor& hidden_states, const at::Tensor& weight, const at::Tensor& labels,
                               int64_t chunk_tokens, const LogitScaling& scaling) {
  check(hidden_states, weight, labels);
  const bool with_graph = torch::autograd::compute_requires_grad(hidden_states, weight);
  const Wanted wanted = {with_graph && hidden_states.requires_grad(), with_graph && weight.requires_grad()};
  const at::NoGradGuard no_grad;
  const at::Tensor rows = as_autocast_does(hidden_states).reshape({-1, weight.size(1)});
  ChunkedLoss loss(rows, as_autocast_does(weight), labels.reshape(-1), scaling, wanted);
  {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const int64_t tokens = rows.size(0);
    const int64_t step = chunk_tokens > 0 ? chunk_tokens : cross_entropy_chunk(tokens, weight.size(1), weight.size(0));
    for (int64_t begin = 0; begin < tokens; begin += step) loss.add(begin, std::min(step, tokens - begin));
  }
  at::Tensor mean = loss.mean();
  if (with_graph) {
    auto node =
        seams::make_node<CrossEntropyNode>(loss.gradients(), labels.ne(kIgnoredLabel).sum(), hidden_states.sizes());
    node->set_next_edges(torch::autograd::collect_next_edges(hidden_states, weight));
    torch::autograd::set_history(mean, node);
  }
  return mean;
}

}  // namespace fsdp::models
