#include "comm/checked/collective_record.h"

#include <thread>

namespace fsdp::comm::collective_record_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CollectiveIdentity gather_of(const std::string& name) {
  CollectiveIdentity identity;
  identity.id = {name, 7, Pass::kForward};
  identity.numel = 1024;
  identity.dtype = identity.output_dtype = at::kFloat;
  return identity;
}

TEST(FlightRecord, TellsHowFarEachCollectiveHasCome) {
  FlightRecord record(3);
  const int group = record.add_group("world");
  const auto a = record.issue(group, gather_of("a"));
  const auto b = record.issue(group, gather_of("b"));
  const auto c = record.issue(group, gather_of("c"));
  record.issue(group, gather_of("d"));
  record.waiting(a);
  record.done(a);
  record.waiting(b);
  record.failed(b);
  record.waiting(c);
  const std::string text = record.text();
  EXPECT_THAT(text, HasSubstr("rank 3, #0 all-gather of 'a' (forward, generation 7), 1024 elements of Float: done"));
  EXPECT_THAT(text, HasSubstr("#1 all-gather of 'b' (forward, generation 7), 1024 elements of Float: failed after"));
  EXPECT_THAT(text, HasSubstr("#2 all-gather of 'c' (forward, generation 7), 1024 elements of Float: waiting for "));
  EXPECT_THAT(text, HasSubstr("#3 all-gather of 'd' (forward, generation 7), 1024 elements of Float: issued"));
  EXPECT_EQ(record.longest_waiting(group)->number, 2u);
  EXPECT_EQ(record.last()->number, 3u);
  EXPECT_THAT(record.text(1), Not(HasSubstr("#2")));
}

TEST(FlightRecord, KeepsTheLast) {
  FlightRecord record(0, 3);
  const int world = record.add_group("world"), twin = record.add_group("twin");
  const auto old = record.issue(world, gather_of("old"));
  for (int i = 0; i < 5; ++i) record.issue(i % 2 ? twin : world, gather_of(c10::str("unit", i)));
  record.failed(old);  // does nothing: its entry was overwritten
  EXPECT_EQ(record.entries().size(), 3u);
  EXPECT_EQ(record.issued(world), 4u);
  EXPECT_EQ(record.issued(twin), 2u);
  EXPECT_EQ(record.find(world, 3)->identity.id.name, "unit4");
  EXPECT_FALSE(record.find(world, 1));
  EXPECT_THAT(record.text(), HasSubstr("#1 all-gather of 'unit3' (forward, generation 7), 1024 elements of Float in "
                                       "group 'twin': issued"));
  EXPECT_THAT(record.text(), Not(HasSubstr("failed")));
}

TEST(FlightRecord, IsReadWhileItIsWritten) {
  FlightRecord record(0, 8);
  const int group = record.add_group("world");
  std::thread writer([&] {
    for (int i = 0; i < 2000; ++i) {
      const auto ticket = record.issue(group, gather_of(i % 2 ? "short" : "a name that is too long to be inlined"));
      record.waiting(ticket);
      record.done(ticket);
    }
  });
  while (record.issued(group) < 2000) EXPECT_LE(record.entries().size(), 8u);
  writer.join();
  EXPECT_EQ(record.entries().back().number, 1999u);
}

}  // namespace
}  // namespace fsdp::comm::collective_record_test
