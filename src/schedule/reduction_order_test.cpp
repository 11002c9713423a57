// Tests of the order of reductions, on made-up units.
#include "schedule/reduction_order.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "schedule/scheduled_unit.h"

namespace fsdp::schedule::reduction_order_test {
namespace {

struct NamedUnit : ScheduledUnit {
  explicit NamedUnit(const std::string& module) : ScheduledUnit({module}, false) {}
  std::string name() const { return module_fqns().front().empty() ? "root" : module_fqns().front(); }
};

std::string name_of(const ScheduledUnit& unit) { return static_cast<const NamedUnit&>(unit).name(); }

// Has the units "root", "a", "a.c0", "a.c1", "b" and "d".
class OrderOfReductions : public ::testing::Test {
 protected:
  OrderOfReductions() {
    for (const char* module : {"", "a", "a.c0", "a.c1", "b", "d"}) {
      const auto unit = std::make_shared<NamedUnit>(module);
      units[unit->name()] = unit;
    }
  }
  NamedUnit& unit(const std::string& name) { return *units.at(name); }
  void forward(std::initializer_list<const char*> names) {
    for (const char* name : names) reductions.note_forward(unit(name));
  }
  void begin() {
    captured.clear();
    reductions.begin_backward([this](const ScheduledUnit& unit) { return frozen.count(name_of(unit)) == 0; });
  }
  static std::string text(const std::vector<ScheduledUnit*>& units) {
    std::string text;
    for (const ScheduledUnit* unit : units) text += (text.empty() ? "" : " ") + name_of(*unit);
    return text;
  }
  std::string due(const std::string& next) {
    return text(
        reductions.due(unit(next), [this](const ScheduledUnit& unit) { return captured.count(name_of(unit)) > 0; }));
  }
  std::string rest() { return text(reductions.rest()); }

  std::map<std::string, std::shared_ptr<NamedUnit>> units;
  ReductionOrder reductions;
  std::set<std::string> captured, frozen;
};

TEST_F(OrderOfReductions, ReversesFirstUsesWithParentsLast) {
  forward({"root", "a", "a.c0", "a.c1", "b", "a", "d", "root"});
  begin();
  EXPECT_EQ(rest(), "d b a.c1 a.c0 a root");
  EXPECT_EQ(rest(), "") << "each once";
}

TEST_F(OrderOfReductions, AParentThatIsUsedLastWaitsForItsChildren) {
  forward({"a.c0", "a.c1", "a", "b"});
  begin();
  EXPECT_EQ(rest(), "b a.c1 a.c0 a");
}

TEST_F(OrderOfReductions, ATurnComesWithTheNextUnrelatedUnit) {
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

// Another rank has captured gradients of d, or comes to it later. The order is the same.
TEST_F(OrderOfReductions, NothingOvertakesAUnitWithoutCaptures) {
  forward({"a", "b", "d"});
  begin();
  captured = {"a"};
  EXPECT_EQ(due("d"), "");
  captured = {"a", "b"};
  EXPECT_EQ(due("a"), "");
  EXPECT_EQ(rest(), "d b a");
}

TEST_F(OrderOfReductions, LeavesOutUnitsWithoutCapturesLastTime) {
  for (int step = 0; step < 3; ++step) {
    forward({"a", "b", "d"});
    begin();
    captured = {"d"};
    EXPECT_EQ(due("b"), "d");
    EXPECT_EQ(rest(), step == 1 ? "a" : "b a");
    reductions.note_captured(unit("b"), step == 1);  // captured late
  }
}

TEST_F(OrderOfReductions, LeavesOutUnitsThatTakeNoPart) {
  frozen = {"b"};
  forward({"a", "b", "d"});
  begin();
  captured = {"a", "d"};
  EXPECT_EQ(due("a"), "d");
  EXPECT_EQ(rest(), "a");
}

TEST_F(OrderOfReductions, WithoutAForwardTheOrderStays) {
  forward({"a", "b"});
  begin();
  EXPECT_EQ(rest(), "b a");
  begin();
  EXPECT_EQ(rest(), "b a");
  forward({"b"});
  begin();
  EXPECT_EQ(rest(), "b");
}

TEST_F(OrderOfReductions, TakesAnOrderThatIsKnown) {
  forward({"b", "root", "a"});
  reductions.reorder({&unit("a"), &unit("d"), &unit("b")});
  begin();
  EXPECT_EQ(rest(), "b a root");
}

TEST_F(OrderOfReductions, UnitsAreReplaced) {
  forward({"a", "b", "d"});
  reductions.replace([&](ScheduledUnit* old) { return old == &unit("a") ? &unit("b") : old; });
  begin();
  EXPECT_EQ(rest(), "d b");
}

}  // namespace
}  // namespace fsdp::schedule::reduction_order_test
