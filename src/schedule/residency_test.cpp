// Tests of which units stay gathered and which are gathered ahead, on made-up units: sequences in, decisions out.
#include "schedule/residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "schedule/testing/made_up_units.h"

namespace fsdp::schedule::residency_test {
namespace {

using testing::text;

// Carries out the decisions, as the engine does, and logs them: "+a" gathered, "*a" gathered ahead, "-a" released.
class Actor {
 public:
  explicit Actor(size_t max_gathered_units) : residency(max_gathered_units) {}

  std::string use(char letter, Pass pass = Pass::kForward) {
    MadeUp& unit = units[letter];
    log_.clear();
    if (residency.visited() != &unit) {
      residency.end_visit();
      visit(unit, pass);
    }
    gather(unit, '+');
    unit.note_used();
    return log_;
  }
  // Runs a pass over `letters` and returns the log of its last visit.
  std::string pass(const std::string& letters, Pass pass = Pass::kForward) {
    std::string log;
    for (char letter : letters) log = use(letter, pass);
    end(pass);
    return log;
  }
  void end(Pass pass) {
    residency.end_visit();
    residency.end_pass(pass);
  }
  std::string gathered() const {
    std::string letters = text(residency.gathered());
    std::sort(letters.begin(), letters.end());
    return letters;
  }
  void release(char letter) { release(units[letter]); }

  using MadeUp = testing::MadeUpUnit;
  testing::MadeUpUnits units;
  Residency residency;

 private:
  void visit(MadeUp& unit, Pass pass) {
    if (!residency.begin_visit({&unit, pass})) return;
    for (ScheduledUnit* victim : residency.to_release_for(unit, pass)) release(static_cast<MadeUp&>(*victim));
    gather(unit, '+');
    ahead(pass);
  }
  void ahead(Pass pass) {
    for (ScheduledUnit* unit : residency.to_gather_ahead(pass, kNoLimit).to_gather) {
      if (gather(static_cast<MadeUp&>(*unit), '*')) unit->note_prefetched();
    }
  }
  bool gather(MadeUp& unit, char mark) {
    if (!gathered_.insert(unit.letter).second) return false;
    residency.add(unit);
    log_ += {mark, unit.letter};
    return true;
  }
  void release(MadeUp& unit) {
    if (gathered_.erase(unit.letter) == 0) return;
    residency.remove(unit);
    unit.note_released();
    log_ += {'-', unit.letter};
  }

  std::set<char> gathered_;
  std::string log_;
};

TEST(Residency, GathersTheNextOneAheadOnceTheOrderIsKnown) {
  Actor actor(2);
  for (char letter : std::string("abcd")) EXPECT_EQ(actor.use(letter).back(), letter) << "nothing is known";
  actor.end(Pass::kForward);
  EXPECT_EQ(actor.use('a'), "-d+a*b");
  EXPECT_EQ(actor.use('b'), "-a*c");
  EXPECT_EQ(actor.use('c'), "-b*d");
  EXPECT_EQ(actor.use('d'), "-c");
}

// While backward runs, such a unit is not released and needs no room. In forward it is like any other.
TEST(Residency, KeepsUnitsThatStayAfterBackward) {
  for (bool known : {false, true}) {
    Actor actor(2);
    actor.units['c'].set_stays_after_backward(true);
    for (int i = 0; i < (known ? 2 : 1); ++i) {
      actor.pass("abcd");
      EXPECT_EQ(actor.gathered().find('c') == std::string::npos, true) << "forward has released it";
      actor.pass("dcba", Pass::kBackward);
      EXPECT_NE(actor.gathered().find('c'), std::string::npos);
      for (char letter : actor.gathered()) actor.release(letter);
    }
  }
}

TEST(Residency, RefilesAUnitWhoseOptionChanges) {
  Actor actor(1);
  actor.use('a');
  actor.units['a'].set_stays_gathered(true);
  actor.residency.refile(actor.units['a']);
  EXPECT_EQ(actor.use('b'), "+b");
  actor.units['a'].set_stays_gathered(false);
  actor.residency.refile(actor.units['a']);
  EXPECT_EQ(actor.use('c'), "-a-b+c");
}

TEST(Residency, OneAtATime) {
  Actor actor(1);
  actor.pass("abc");
  actor.use('a');
  EXPECT_EQ(actor.use('b'), "-a+b");
  EXPECT_EQ(actor.gathered(), "b");
}

TEST(Residency, WithoutALimitGathersAllThatIsKnownAtOnce) {
  Actor actor(kNoLimit);
  actor.pass("abcdb");
  actor.release('b');
  EXPECT_EQ(actor.use('a'), "+a*b*c*d");
  EXPECT_EQ(actor.use('b'), "-a");
  EXPECT_EQ(actor.use('c'), "") << "b comes again";
  EXPECT_EQ(actor.use('d'), "-c");
  EXPECT_EQ(actor.use('b'), "-d");
}

TEST(Residency, WithoutALimitGathersReleasedUnitsAgain) {
  Actor actor(kNoLimit);
  actor.pass("abcd");
  actor.use('a');
  actor.release('c');
  EXPECT_EQ(actor.use('b'), "-a*c");
}

TEST(Residency, AncestorsStayAndNeedNoRoom) {
  Actor actor(2);
  actor.units.add('r', "");
  actor.units.add('a', "a");
  actor.units.add('b', "a.b");
  actor.units.add('c', "a.c");
  actor.units.add('d', "d");
  for (int pass = 0; pass < 2; ++pass) {
    actor.use('r'), actor.use('a'), actor.use('b');
    EXPECT_EQ(actor.use('c').substr(0, 2), "-b");
    EXPECT_EQ(actor.gathered().substr(0, 2), "ac");
    actor.use('d');
    EXPECT_EQ(actor.gathered(), "dr") << "the modules of a and c have ended";
    actor.end(Pass::kForward);
  }
}

TEST(Residency, UnitsThatStayOnPurposeStay) {
  Actor actor(2);
  actor.units['k'].set_stays_gathered(true);
  for (int pass = 0; pass < 3; ++pass) actor.pass("akbc");
  EXPECT_NE(actor.gathered().find('k'), std::string::npos);
  EXPECT_EQ(actor.use('a'), "-c+a*b") << "k needs no room";
}

TEST(Residency, AUnitThatTheUserAskedForStaysUntilItsUse) {
  Actor actor(2);
  actor.pass("abcd");
  actor.use('a');
  actor.units['d'].note_requested();
  actor.residency.add(actor.units['d']);
  actor.use('b');
  actor.use('x');
  EXPECT_NE(actor.gathered().find('d'), std::string::npos);
}

// Compares with the plain definition: every gathered unit is released that is neither in use, nor an ancestor of the
// unit in use, nor among the next units.
class AgainstAllUnits : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Limits, AgainstAllUnits, ::testing::Values(1, 2, 3, 5, kNoLimit));

TEST_P(AgainstAllUnits, LookingAtCandidatesAloneDecidesTheSame) {
  const size_t limit = GetParam();
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    Residency residency(limit);
    testing::MadeUpUnits units;
    VisitHistory history;  // a second copy of the history
    std::map<char, bool> here;
    std::string order;
    for (int i = 0; i < 12; ++i) order += static_cast<char>('a' + random() % 6);
    for (int pass = 0; pass < 4; ++pass) {
      for (char letter : order) {
        if (random() % 16 == 0) letter = static_cast<char>('a' + random() % 6);  // the order changes
        testing::MadeUpUnit& unit = units[letter];
        if (residency.visited() == &unit) continue;
        residency.end_visit();
        if (!residency.begin_visit({&unit, Pass::kForward})) continue;
        history.visit(&unit);
        if (history.known()) {
          const auto next =
              history.next(limit == kNoLimit ? 100 : limit - 1, [](const ScheduledUnit*) { return false; });
          std::string wanted;
          for (const auto& [other, gathered] : here) {
            const bool expected = std::find(next.begin(), next.end(), &units[other]) != next.end();
            if (gathered && other != letter && !expected) wanted += other;
          }
          std::string got = text(residency.to_release_for(unit, Pass::kForward));
          std::sort(got.begin(), got.end());
          ASSERT_EQ(got, wanted) << "limit " << limit << ", round " << round << ", pass " << pass << " at " << letter;
          for (char other : got) residency.remove(units[other]), units[other].note_released(), here[other] = false;
        } else {
          for (ScheduledUnit* victim : residency.to_release_for(unit, Pass::kForward)) {
            residency.remove(*victim);
            here[static_cast<testing::MadeUpUnit*>(victim)->letter] = false;
          }
        }
        if (!here[letter]) residency.add(unit), here[letter] = true;
        for (ScheduledUnit* ahead : residency.to_gather_ahead(Pass::kForward, kNoLimit).to_gather) {
          bool& gathered = here[static_cast<testing::MadeUpUnit*>(ahead)->letter];
          if (!std::exchange(gathered, true)) residency.add(*ahead), ahead->note_prefetched();
        }
        unit.note_used();
      }
      residency.end_visit();
      residency.end_pass(Pass::kForward);
      history.end();
    }
  }
}

}  // namespace
}  // namespace fsdp::schedule::residency_test
