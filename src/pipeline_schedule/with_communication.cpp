#include <c10/util/Exception.h>

#include <algorithm>
#include <set>

#include "pipeline_schedule/messages.h"
#include "pipeline_schedule/standstill.h"
#include "pipeline_schedule/well_formed.h"

namespace fsdp {
namespace {

using pipeline_schedule::Message;
using Kind = PipelineActionKind;
using Order = std::vector<PipelineAction>;

void check_that_all_compute(const PipelineSchedule& schedule) {
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const Order& order = schedule.of_rank[static_cast<size_t>(rank)];
    for (size_t i = 0; i < order.size(); ++i) {
      TORCH_CHECK(computes(order[i].kind), pipeline_schedule::place_of(schedule, rank, i),
                  ": communication is added to an order of passes (F, B, I, W), which this is not");
    }
  }
}

// The stages of the next passes, each once, at most `count`.
std::vector<int> next_stages(Order::const_iterator begin, Order::const_iterator end, size_t count) {
  std::vector<int> stages;
  for (auto action = begin; action != end && stages.size() < count; ++action) {
    if (std::find(stages.begin(), stages.end(), action->stage) == stages.end()) stages.push_back(action->stage);
  }
  return stages;
}

// Gathers the stages of the next passes ahead, and releases those that are not among them.
Order with_gathers(const Order& passes, size_t max_active_stages) {
  Order order;
  std::set<int> active;
  const auto release_all_but = [&](const std::vector<int>& wanted) {
    for (auto stage = active.begin(); stage != active.end();) {
      const bool stays = std::find(wanted.begin(), wanted.end(), *stage) != wanted.end();
      if (!stays) order.push_back({*stage, Kind::kReshard, std::nullopt});
      stage = stays ? std::next(stage) : active.erase(stage);
    }
  };
  for (auto pass = passes.begin(); pass != passes.end(); ++pass) {
    const std::vector<int> wanted = next_stages(pass, passes.end(), max_active_stages);
    release_all_but(wanted);
    for (int stage : wanted) {
      if (active.insert(stage).second) order.push_back({stage, Kind::kUnshard, std::nullopt});
    }
    order.push_back(*pass);
  }
  release_all_but({});
  return order;
}

// A stage's gradients are reduced after the last pass that adds to them.
Order with_reductions(const Order& actions, const PipelineSchedule& schedule) {
  Order order;
  std::vector<int> added(static_cast<size_t>(schedule.stages()));
  for (const PipelineAction& action : actions) {
    order.push_back(action);
    if (action.kind != Kind::kBackward && action.kind != Kind::kWeightGradient) continue;
    if (++added[static_cast<size_t>(action.stage)] == schedule.micro_batches) {
      order.push_back({action.stage, Kind::kReduceGradients, std::nullopt});
    }
  }
  return order;
}

// Goes through the orders of all ranks, an action of each in turn, and adds a receive to the receiver's order at the
// moment of the send. Receives of one sender thus stand in the order of its sends.
class MessagePlacer {
 public:
  explicit MessagePlacer(const PipelineSchedule& schedule)
      : schedule_(schedule),
        next_(schedule.of_rank.size()),
        at_hand_(schedule.of_rank.size()),
        placed_(schedule.of_rank.size()) {}

  std::vector<Order> place() {
    while (!all_ended()) {
      bool moved = false;
      for (size_t rank = 0; rank < next_.size(); ++rank) moved = take_next(rank) || moved;
      TORCH_CHECK(moved, pipeline_schedule::standstill_text(schedule_, next_));
    }
    return std::move(placed_);
  }

 private:
  bool all_ended() const {
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] < schedule_.of_rank[rank].size()) return false;
    }
    return true;
  }

  bool take_next(size_t rank) {
    if (next_[rank] == schedule_.of_rank[rank].size()) return false;
    const PipelineAction& action = schedule_.of_rank[rank][next_[rank]];
    const auto needed = pipeline_schedule::needed_by(action, schedule_.stages());
    if (needed && !at_hand_[rank].contains(*needed)) return false;
    placed_[rank].push_back(action);
    if (const auto made = pipeline_schedule::made_by(action, schedule_.stages())) deliver(*made, rank);
    ++next_[rank];
    return true;
  }

  void deliver(const Message& message, size_t sender) {
    const auto receiver = static_cast<size_t>(schedule_.rank_of_stage[static_cast<size_t>(message.receiver())]);
    at_hand_[receiver].insert(message);
    if (receiver == sender) return;
    placed_[sender].push_back(pipeline_schedule::send_of(message));
    placed_[receiver].push_back(pipeline_schedule::receive_of(message));
  }

  const PipelineSchedule& schedule_;
  std::vector<size_t> next_;
  std::vector<std::set<Message>> at_hand_;  // by rank
  std::vector<Order> placed_;
};

}  // namespace

bool has_passes_only(const PipelineSchedule& schedule) {
  return std::all_of(schedule.of_rank.begin(), schedule.of_rank.end(), [](const auto& order) {
    return std::all_of(order.begin(), order.end(), [](const PipelineAction& action) { return computes(action.kind); });
  });
}

PipelineSchedule with_communication(const PipelineSchedule& passes, int max_active_stages) {
  TORCH_CHECK(max_active_stages > 0, "max_active_stages must be at least 1, not ", max_active_stages);
  pipeline_schedule::check_well_formed(passes);
  check_that_all_compute(passes);
  PipelineSchedule result = passes;
  for (Order& order : result.of_rank) {
    order = with_reductions(with_gathers(order, static_cast<size_t>(max_active_stages)), passes);
  }
  result.of_rank = MessagePlacer(result).place();
  return result;
}

}  // namespace fsdp
