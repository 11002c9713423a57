// The order of reductions, on units of a real tree without gradients.
#include "engine/reduction_schedule.h"

#include <set>

#include "engine/engine.h"
#include "support/sharding.h"

namespace fsdp::reduction_schedule_test {
namespace {

struct LeafImpl : torch::nn::Module {
  explicit LeafImpl(int children = 0) {
    register_parameter("w", torch::ones({2}));
    for (int i = 0; i < children; ++i) {
      register_module(c10::str("c", i), std::make_shared<LeafImpl>());
    }
  }
};

// Units "root", "a", "a.c0", "a.c1", "b", "d".
class Schedule : public ::testing::Test {
 protected:
  Schedule() {
    auto root = std::make_shared<LeafImpl>();
    root->register_module("a", std::make_shared<LeafImpl>(2));
    root->register_module("b", std::make_shared<LeafImpl>());
    root->register_module("d", std::make_shared<LeafImpl>());
    model = root;
    sharded = fully_shard(*model, testing::one_rank_options());
  }
  Unit& unit(const std::string& name) {
    for (const auto& unit : sharded->engine().units()) {
      if (unit->name() == name) return *unit;
    }
    throw std::out_of_range(name);
  }
  void forward(std::initializer_list<const char*> names) {
    for (const char* name : names) schedule.note_forward(unit(name));
  }
  void begin() {
    captured.clear();
    schedule.begin_backward([this](const Unit& unit) { return frozen.count(unit.name()) == 0; });
  }
  static std::string text(const std::vector<Unit*>& units) {
    std::string text;
    for (const Unit* unit : units) text += (text.empty() ? "" : " ") + unit->name();
    return text;
  }
  std::string due(const std::string& next) {
    return text(schedule.due(unit(next), [this](const Unit& unit) { return captured.count(unit.name()) > 0; }));
  }
  std::string rest() { return text(schedule.rest()); }

  std::shared_ptr<torch::nn::Module> model;
  std::shared_ptr<ShardedModule> sharded;
  ReductionSchedule schedule;
  std::set<std::string> captured, frozen;
};

TEST_F(Schedule, IsTheReverseOfFirstUsesWithParentsAfterChildren) {
  forward({"root", "a", "a.c0", "a.c1", "b", "a", "d", "root"});
  begin();
  EXPECT_EQ(rest(), "d b a.c1 a.c0 a root");
  EXPECT_EQ(rest(), "") << "each once";
}

TEST_F(Schedule, AParentThatIsUsedLastWaitsForItsChildren) {
  forward({"a.c0", "a.c1", "a", "b"});
  begin();
  EXPECT_EQ(rest(), "b a.c1 a.c0 a");
}

TEST_F(Schedule, ATurnComesWithTheNextUnrelatedUnit) {
  forward({"a", "a.c0", "b", "d"});
  begin();
  captured = {"d"};
  EXPECT_EQ(due("d"), "");
  EXPECT_EQ(due("b"), "d");
  captured.insert("b");
  captured.insert("a.c0");
  EXPECT_EQ(due("a.c0"), "b");
  EXPECT_EQ(due("a"), "") << "its child's module has not ended";
  captured.insert("a");
  EXPECT_EQ(rest(), "a.c0 a");
}

// Another rank has captured something of d, or gets to it later: the order is the same.
TEST_F(Schedule, NothingOvertakesAUnitOfWhichNothingWasCaptured) {
  forward({"a", "b", "d"});
  begin();
  captured = {"a"};
  EXPECT_EQ(due("d"), "");
  captured = {"a", "b"};
  EXPECT_EQ(due("a"), "");
  EXPECT_EQ(rest(), "d b a");
}

TEST_F(Schedule, LeavesOutWhatNobodyCapturedLastTime) {
  for (int step = 0; step < 3; ++step) {
    forward({"a", "b", "d"});
    begin();
    captured = {"d"};
    EXPECT_EQ(due("b"), "d");
    EXPECT_EQ(rest(), step == 1 ? "a" : "b a");
    schedule.note_captured(unit("b"), step == 1);  // found late
  }
}

TEST_F(Schedule, LeavesOutUnitsThatTakeNoPart) {
  frozen = {"b"};
  forward({"a", "b", "d"});
  begin();
  captured = {"a", "d"};
  EXPECT_EQ(due("a"), "d");
  EXPECT_EQ(rest(), "a");
}

TEST_F(Schedule, WithoutAForwardTheOrderStays) {
  forward({"a", "b"});
  begin();
  EXPECT_EQ(rest(), "b a");
  begin();
  EXPECT_EQ(rest(), "b a");
  forward({"b"});
  begin();
  EXPECT_EQ(rest(), "b");
}

TEST_F(Schedule, TakesAnOrderThatIsKnown) {
  forward({"b", "root", "a"});
  schedule.reorder({&unit("a"), &unit("d"), &unit("b")});
  begin();
  EXPECT_EQ(rest(), "b a root");
}

TEST_F(Schedule, UnitsAreReplaced) {
  forward({"a", "b", "d"});
  schedule.replace([&](Unit* old) { return old == &unit("a") ? &unit("b") : old; });
  begin();
  EXPECT_EQ(rest(), "d b");
}

}  // namespace
}  // namespace fsdp::reduction_schedule_test
