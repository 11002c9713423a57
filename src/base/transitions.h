// A state machine whose legal transitions are listed in one table. Any other transition is an error that names both
// states.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

namespace fsdp::base {

// State is an enum with a to_string(State). Reading is safe from any thread; the owner must serialise transitions.
template <typename State>
class StateMachine {
 public:
  StateMachine(State initial, const std::vector<std::pair<State, State>>& table) : state_(initial), table_(table) {}

  State get() const { return state_.load(std::memory_order_acquire); }
  bool is(State state) const { return get() == state; }

  // `where` returns text with the rank and the unit; it is only called if the transition is illegal.
  template <typename Where>
  void transition(State to, const Where& where) {
    State from = get();
    bool legal = std::find(table_.begin(), table_.end(), std::make_pair(from, to)) != table_.end();
    TORCH_CHECK(legal, "fsdp: ", where(), ": illegal transition ", to_string(from), " -> ", to_string(to),
                " (a bug in fsdp, or an engine used from several threads)");
    state_.store(to, std::memory_order_release);
  }

 private:
  std::atomic<State> state_;
  const std::vector<std::pair<State, State>>& table_;
};

}  // namespace fsdp::base
