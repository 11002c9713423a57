// Tests of predictions from sequences of visits, on made-up units.
#include "schedule/visit_history.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "schedule/testing/made_up_units.h"

namespace fsdp::schedule::visit_history_test {
namespace {

using testing::text;

const VisitHistory::Ignore kNone = [](const ScheduledUnit*) { return false; };

// Returns the unit of a letter. Units live as long as the program.
ScheduledUnit* unit(char letter) {
  static testing::MadeUpUnits units;
  return &units[letter];
}

// Returns the history after `visits`: lower-case letters are visits, a period ends a pass.
VisitHistory after(const std::string& visits) {
  VisitHistory history;
  for (char c : visits) {
    if (c == '.') {
      history.end();
    } else {
      history.visit(unit(c));
    }
  }
  return history;
}

std::string next(const std::string& visits, size_t count = 3) { return text(after(visits).next(count, kNone)); }

TEST(VisitHistory, KnowsNothingOfTheFirstPass) {
  EXPECT_EQ(next("abc"), "");
  EXPECT_FALSE(after("abc").known());
  EXPECT_FALSE(after("").known());
}

TEST(VisitHistory, ExpectsTheFollowersOfTheLastPass) {
  EXPECT_EQ(next("abcd.a"), "bcd");
  EXPECT_EQ(next("abcd.a", 1), "b");
  EXPECT_EQ(next("abcd.abc"), "d");
  EXPECT_EQ(next("abcd.abcd"), "") << "not beyond the end of the pass";
}

TEST(VisitHistory, NamesEachUnitOnceAndNotThePresentOne) { EXPECT_EQ(next("abacbad.a"), "bcd"); }

TEST(VisitHistory, TellsRepeatedUnitsApartByTheirPredecessors) {
  EXPECT_EQ(next("abxcbyd.ab", 1), "x");
  EXPECT_EQ(next("abxcbyd.abxcb", 1), "y");
  EXPECT_EQ(next("abxcbyd.cb", 1), "y") << "the order has changed";
}

TEST(VisitHistory, LearnsAChangedOrderByItsHavingHappenedOnce) {
  EXPECT_EQ(next("abcd.abcd.acbd.a", 1), "c") << "the most recent of equal places";
  EXPECT_EQ(next("abcd.abcd.ac", 1), "d") << "the place of c, although b was left out";
  EXPECT_EQ(next("abcd.ax", 1), "") << "x is new";
  EXPECT_EQ(next("abcd.axc", 1), "d");
}

TEST(VisitHistory, FollowsPassesThatNothingEnds) {
  EXPECT_EQ(next("abcabcabc", 2), "ab");
  EXPECT_EQ(next("abcdab", 2), "cd");
}

TEST(VisitHistory, DoesNotTakeTheEndOfTheFirstPassForItsBeginning) {
  EXPECT_EQ(next("rabr"), "");
  EXPECT_EQ(next("rabr.rabr"), "");
  EXPECT_EQ(next("rabr.r", 1), "a");
}

TEST(VisitHistory, LastPassIsTheLastOneThatHasEnded) {
  EXPECT_EQ(text(after("").last_pass()), "");
  EXPECT_EQ(text(after("ab").last_pass()), "");
  EXPECT_EQ(text(after("ab.").last_pass()), "ab");
  EXPECT_EQ(text(after("ab.cad.").last_pass()), "cad");
  EXPECT_EQ(text(after("ab.cad.b").last_pass()), "cad");
}

TEST(VisitHistory, EndsWithin) {
  EXPECT_TRUE(after("abc.abc").ends_within(0, kNone)) << "nothing comes before the pass ends";
  EXPECT_FALSE(after("abc.ab").ends_within(0, kNone));
  EXPECT_TRUE(after("abc.ab").ends_within(0, [](const ScheduledUnit* u) { return u == unit('c'); }));
  EXPECT_TRUE(after("abc.ab").ends_within(1, kNone));
  EXPECT_FALSE(after("abc.a").ends_within(1, kNone));
  EXPECT_TRUE(after("abcbcbc.ab").ends_within(1, kNone)) << "each once";
  EXPECT_FALSE(after("abc").ends_within(2, kNone)) << "unknown";
}

TEST(VisitHistory, PassesOverIgnoredUnits) {
  EXPECT_EQ(text(after("arbrc.a").next(2, [](const ScheduledUnit* u) { return u == unit('r'); })), "bc");
}

TEST(VisitHistory, AllThatComesIsToldOnce) {
  VisitHistory history = after("abcb.a");
  EXPECT_EQ(text(history.all_next()), "bcb");
  history.visit(unit('b'));
  EXPECT_TRUE(history.goes_on());
  EXPECT_EQ(text(history.all_next()), "");
  history.look_again();
  EXPECT_EQ(text(history.all_next()), "cb");
  history.visit(unit('x'));
  EXPECT_FALSE(history.goes_on());
  EXPECT_EQ(text(history.all_next()), "") << "nothing is known of x";
}

TEST(VisitHistory, ExpectsUnitsUntilTheirLastVisitOfThePass) {
  for (const auto& [visits, expected] : std::map<std::string, std::string>{
           {"abcb.a", "bc"}, {"abcb.ab", "bc"}, {"abcb.abc", "b"}, {"abcb.abcb", ""}, {"abcb", ""}, {"abcb.x", ""}}) {
    VisitHistory history = after(visits);
    std::string found;
    for (char c : std::string("abcx")) found += history.expects(unit(c)) ? std::string(1, c) : "";
    EXPECT_EQ(found, expected) << visits;
  }
}

// Units a and b become x; c stays.
TEST(VisitHistory, VisitsOfUnitsThatBecameOneAreOne) {
  VisitHistory history = after("abacb.");
  history.replace([](ScheduledUnit* old) { return old == unit('c') ? old : unit('x'); });
  EXPECT_EQ(text(history.last_pass()), "xcx");
  history.visit(unit('x'));
  EXPECT_EQ(text(history.next(2, kNone)), "c");
}

TEST(VisitHistory, ForgetsTheOldestOfVeryMany) {
  VisitHistory history;
  for (int pass = 0; pass < 20000; ++pass) {
    for (char c : {'a', 'b', 'c'}) history.visit(unit(c));
    history.end();
    if (pass > 0) {
      history.visit(unit('a'));
      ASSERT_EQ(text(history.next(2, kNone)), "bc") << pass;
      history.visit(unit('b'));
      history.visit(unit('c'));
      history.end();
    }
  }
}

}  // namespace
}  // namespace fsdp::schedule::visit_history_test
