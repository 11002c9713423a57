#include <algorithm>
#include <array>

#include "pipeline_schedule/orders.h"

namespace fsdp::pipeline_schedule {
namespace {

using Kind = PipelineActionKind;

// The order of one rank while it is made: each kind of pass takes the micro-batches of each stage in turn.
class OrderInV {
 public:
  OrderInV(const PipelineShape& shape, int rank)
      : stages_{rank, 2 * shape.ranks - 1 - rank}, micro_batches_(shape.micro_batches) {}

  // `which`: 0, the rank's stage on the way down the V, or 1, that on the way up.
  void forward(int which) { add(Kind::kForward, which, forwards_[which]++); }
  void input_gradient(int which) { add(Kind::kInputGradient, which, inputs_[which]++); }
  void weight_gradient(int which) { add(Kind::kWeightGradient, which, weights_[which]++); }
  void backward(int which) {
    input_gradient(which);
    weight_gradient(which);
  }
  void missing_weight_gradients(int which) {
    while (weights_[which] < inputs_[which]) weight_gradient(which);
  }

  int forwards(int which) const { return forwards_[which]; }
  std::vector<PipelineAction> take() { return std::move(order_); }

 private:
  void add(Kind kind, int which, int micro_batch) {
    if (micro_batch < micro_batches_) order_.push_back({stages_[which], kind, micro_batch});
  }

  std::array<int, 2> stages_;
  int micro_batches_;
  std::array<int, 2> forwards_{}, inputs_{}, weights_{};
  std::vector<PipelineAction> order_;
};

}  // namespace

// Qi et al. 2023, section 6, for passes that take equal times. The order is that of a full pipeline: where there are
// fewer micro-batches, the passes of those that are missing are left out.
std::vector<PipelineAction> zero_bubble_v_order(const PipelineShape& shape, int rank) {
  const int ranks_below = shape.ranks - rank;  // with this one
  const int micro_batches = std::max(2 * shape.ranks - 1, shape.micro_batches);
  OrderInV order(shape, rank);
  for (int i = 0; i < 2 * ranks_below - 1; ++i) order.forward(0);
  for (int i = 0; i < rank; ++i) {
    order.forward(1);
    order.forward(0);
  }
  for (int i = 0; i < ranks_below; ++i) {
    order.forward(1);
    order.backward(1);
  }
  while (order.forwards(1) < micro_batches) {
    if (order.forwards(0) < micro_batches) order.forward(0);
    order.backward(0);
    order.forward(1);
    order.backward(1);
  }
  for (int i = 0; i < rank; ++i) {
    order.input_gradient(0);
    order.input_gradient(1);
  }
  for (int i = 0; i < ranks_below; ++i) {
    order.input_gradient(0);
    order.weight_gradient(0);
  }
  order.missing_weight_gradients(1);
  order.missing_weight_gradients(0);
  return order.take();
}

}  // namespace fsdp::pipeline_schedule
