#include "fsdp/device_mesh.h"

#include "comm/testing/ranks_in.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::device_mesh_test {
namespace {

using testing::errors_of_ranks;
using ::testing::HasSubstr;
using testing::ranks_in;
using testing::run_ranks;

TEST(DeviceMesh, IsNumberedRowByRow) {
  run_ranks(8, [](std::shared_ptr<Communicator> world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"pp", 2}, {"dp_shard", -1}, {"tp", 2}});
    const int rank = world->rank();
    EXPECT_EQ(mesh.size("dp_shard"), 2);
    EXPECT_EQ(mesh.size("dp_replicate"), 1);
    EXPECT_EQ(mesh.rank("dp_replicate"), 0);
    EXPECT_EQ(mesh.rank("pp"), rank / 4);
    EXPECT_EQ(mesh.rank("dp_shard"), rank / 2 % 2);
    EXPECT_EQ(mesh.rank("tp"), rank % 2);
    const int t = rank / 2 * 2, d = rank / 4 * 4 + rank % 2, p = rank % 4;
    EXPECT_EQ(ranks_in(*mesh.group("tp"), rank), c10::str(t, " ", t + 1, " "));
    EXPECT_EQ(ranks_in(*mesh.group("dp_shard"), rank), c10::str(d, " ", d + 2, " "));
    EXPECT_EQ(ranks_in(*mesh.group("pp"), rank), c10::str(p, " ", p + 4, " "));
    EXPECT_EQ(ranks_in(*mesh.group("cp"), rank), c10::str(rank, " "));
    EXPECT_EQ(mesh.group("pp")->rank(), mesh.rank("pp"));
    EXPECT_EQ(mesh.where(), mesh.where(rank));
    EXPECT_EQ(mesh.where(5), "rank 5 (pp 1, dp_shard 0, tp 1)");
    EXPECT_EQ(mesh.where(2), "rank 2 (pp 0, dp_shard 1, tp 0)");
  });
}

TEST(DeviceMesh, GroupsOfSeveralDimensionsAreKept) {
  run_ranks(8, [](std::shared_ptr<Communicator> world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"pp", 2}, {"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 1}});
    const int rank = world->rank(), first = rank / 4 * 4;
    const auto data = mesh.flatten({"dp_replicate", "dp_shard"});
    EXPECT_EQ(ranks_in(*data, rank), c10::str(first, " ", first + 1, " ", first + 2, " ", first + 3, " "));
    EXPECT_EQ(mesh.flatten({"dp_shard", "dp_replicate", "tp"}), data);
    EXPECT_EQ(mesh.flatten({"pp", "dp_replicate", "dp_shard"}), world);
    EXPECT_EQ(mesh.flatten({"tp"}), mesh.group("cp"));
    EXPECT_EQ(data->world_rank(1), first + 1);
  });
}

TEST(DeviceMesh, IsViewedByFullyShardAsItsDataParallelRanks) {
  run_ranks(8, [](std::shared_ptr<Communicator> world) {
    DeviceMesh hybrid = DeviceMesh::make(world, {{"pp", 2}, {"dp_replicate", 2}, {"dp_shard", 2}});
    const ProcessMesh view = hybrid.data_parallel();
    EXPECT_TRUE(view.is_2d());
    EXPECT_EQ(view.size(), 4);
    EXPECT_EQ(view.rank(), world->rank() % 4);
    EXPECT_EQ(view.shard, hybrid.group("dp_shard"));
    DeviceMesh plain = DeviceMesh::make(world, {{"dp_shard", 4}, {"tp", 2}});
    EXPECT_FALSE(plain.data_parallel().is_2d());
    EXPECT_EQ(plain.data_parallel().world, plain.group("dp_shard"));
    EXPECT_EQ(plain.data_parallel().where(), plain.where());
    EXPECT_EQ(plain.group("cp")->world_rank(0), world->rank());
  });
}

TEST(DeviceMesh, OfOneRankHasGroupsOfOne) {
  run_ranks(1, [](std::shared_ptr<Communicator> world) {
    DeviceMesh mesh = DeviceMesh::make(world, {});
    EXPECT_EQ(mesh.group("tp")->size(), 1);
    EXPECT_EQ(mesh.data_parallel().size(), 1);
    EXPECT_EQ(mesh.where(), "rank 0");
  });
}

TEST(DeviceMesh, WrongDimensionsAreErrorsOnAllRanks) {
  const auto expect_error = [](const std::vector<MeshDimension>& dimensions, const char* text) {
    for (const std::string& error :
         errors_of_ranks(4, [&](std::shared_ptr<Communicator> world) { DeviceMesh::make(world, dimensions); })) {
      EXPECT_THAT(error, HasSubstr(text));
    }
  };
  expect_error({{"dp", 4}}, "a mesh has no dimension \"dp\"; the names are pp, dp_replicate, dp_shard, cp, ep, tp");
  expect_error({{"pp", 3}}, "mesh {pp 3}: the sizes must multiply to the number of ranks, 4, but multiply to 3");
  expect_error({{"pp", 3}, {"tp", -1}},
               "the sizes other than -1 must divide the number of ranks, 4, but multiply to 3");
  expect_error({{"pp", -1}, {"tp", -1}}, "mesh {pp -1, tp -1}: at most one dimension may have size -1");
  expect_error({{"pp", 2}, {"pp", 2}}, "mesh {pp 2, pp 2}: pp stands twice");
  expect_error({{"pp", 0}}, "pp has size 0; expected a number of ranks, or -1");
  expect_error({{"cp", 4}}, "mesh {cp 4}: cp is reserved, and must have size 1");
  expect_error({{"dp_shard", 1}, {"ep", -1}}, "ep is reserved, and must have size 1");
}

TEST(DeviceMesh, RanksThatDifferAreNamed) {
  for (const std::string& error : errors_of_ranks(3, [](std::shared_ptr<Communicator> world) {
         DeviceMesh::make(world, {{world->rank() == 2 ? "pp" : "tp", 3}});
       })) {
    EXPECT_THAT(error, HasSubstr("ranks make different meshes: rank 0 {tp 3}, rank 2 {pp 3}"));
  }
}

}  // namespace
}  // namespace fsdp::comm::device_mesh_test
