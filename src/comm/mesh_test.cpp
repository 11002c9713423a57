// Tests subgroups and meshes.
#include "fsdp/mesh.h"

#include <barrier>

#include "comm/testing/ranks_in.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::mesh_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ranks_in;
using testing::run_ranks;
using ::testing::StartsWith;

const CollectiveId kId{"groups", 0, Pass::kUser};

TEST(Subgroup, ExchangesAmongItsMembersOnly) {
  run_ranks(5, [](std::shared_ptr<Communicator> world) {
    const bool odd = world->rank() % 2 == 1;
    auto group = world->subgroup(odd ? std::vector<int>{1, 3} : std::vector<int>{0, 2, 4}, kId);
    EXPECT_EQ(group->size(), odd ? 2 : 3);
    EXPECT_EQ(group->rank(), world->rank() / 2);
    EXPECT_EQ(ranks_in(*group, world->rank()), odd ? "1 3 " : "0 2 4 ");
    EXPECT_EQ(ranks_in(*world, world->rank()), "0 1 2 3 4 ");
  });
}

TEST(Subgroup, CanBeSplitAgainAndOutlivesItsParent) {
  run_ranks(4, [](std::shared_ptr<Communicator> world) {
    const int rank = world->rank();
    auto half = world->subgroup(rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3}, kId);
    auto alone = half->subgroup({half->rank()}, kId);
    auto again = world->subgroup(rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3}, kId);
    world.reset();
    EXPECT_EQ(alone->size(), 1);
    EXPECT_EQ(ranks_in(*half, rank), rank < 2 ? "0 1 " : "2 3 ");
    EXPECT_EQ(ranks_in(*again, rank), rank < 2 ? "0 1 " : "2 3 ");
  });
}

TEST(Subgroup, ThatIsNoPartitionFailsOnAllRanks) {
  std::atomic<int> errors = 0;
  run_ranks(3, [&](std::shared_ptr<Communicator> world) {
    const std::vector<int> members = world->rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{world->rank()};
    try {
      world->subgroup(members, kId);
    } catch (const c10::Error& error) {
      ++errors;
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank 0 names the ranks [0,1], but rank 1 names [1]"));
    }
  });
  EXPECT_EQ(errors, 3);
}

// Ranks 0 and 1 disagree in their shard group. Rank 2 waits for rank 0 in the replicate group, rank 3 for rank 2 in the
// other shard group. No rank leaves before all have their error, and no timeout ends a wait.
TEST(Mesh, AFailureInOneGroupReachesAllAndNamesRanksOfTheWorld) {
  std::vector<std::string> errors(4);
  std::barrier all_have_failed(4);
  run_ranks(4,
            [&](std::shared_ptr<Communicator> world) {
              const ProcessMesh mesh = make_mesh(world, 2);
              const int rank = world->rank();
              Communicator& group = rank == 2 ? *mesh.replicate : *mesh.shard;
              try {
                group.barrier({rank == 0 ? "one thing" : "another", 0, Pass::kUser});
              } catch (const c10::Error& error) {
                errors[static_cast<size_t>(rank)] = error.what_without_backtrace();
              }
              all_have_failed.arrive_and_wait();
              EXPECT_THROW(world->barrier({"after", 0, Pass::kUser}), c10::Error);
            },
            {std::chrono::hours(1)});
  EXPECT_THAT(errors[0] + errors[1], HasSubstr("'one thing'"));
  EXPECT_THAT(errors[2], AllOf(StartsWith("rank 2 cannot finish"), HasSubstr("rank 0 is lost: it failed: ")));
  EXPECT_THAT(errors[3], AllOf(StartsWith("rank 3 cannot finish"), HasSubstr("rank 2 is lost: it failed: ")));
}

TEST(Mesh, ArrangesShardAndReplicateGroups) {
  for (int factor : {1, 2, 3, 6}) {
    run_ranks(6, [&](std::shared_ptr<Communicator> world) {
      ProcessMesh mesh = make_mesh(world, factor);
      EXPECT_EQ(mesh.shard->size(), factor);
      EXPECT_EQ(mesh.shard->rank(), world->rank() % factor);
      EXPECT_EQ(mesh.replicate->size(), 6 / factor);
      EXPECT_EQ(mesh.replicate->rank(), world->rank() / factor);
      EXPECT_EQ((ProcessMesh{nullptr, mesh.shard, mesh.replicate}.rank()), world->rank());
    });
  }
}

TEST(Mesh, OfHostsFollowsHostNames) {
  run_ranks(4, [](std::shared_ptr<Communicator> world) {
    ProcessMesh mesh = make_mesh_of_hosts(world, world->rank() % 2 == 0 ? "even" : "odd");
    EXPECT_EQ(ranks_in(*mesh.shard, world->rank()), world->rank() % 2 == 0 ? "0 2 " : "1 3 ");
    EXPECT_EQ(ranks_in(*mesh.replicate, world->rank()), world->rank() < 2 ? "0 1 " : "2 3 ");
    EXPECT_EQ(make_mesh_of_hosts(world).shard->size(), 4);  // threads of one machine
  });
}

TEST(Mesh, ThatDoesNotFitIsAnError) {
  run_ranks(3, [](std::shared_ptr<Communicator> world) {
    EXPECT_THROW(make_mesh(world, 2), c10::Error);
    EXPECT_THROW(make_mesh(world, 0), c10::Error);
    try {
      make_mesh_of_hosts(world, world->rank() == 0 ? "a" : "b");
      ADD_FAILURE() << "no error";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("a has 1 and b has 2"));
    }
  });
}

}  // namespace
}  // namespace fsdp::comm::mesh_test
