// Groups of ranks of several hosts, and the traffic between hosts.
#include "comm/hosts/hosts_communicator.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/testing/collectives.h"
#include "comm/testing/host_ranks.h"

namespace fsdp::comm::hosts_groups_test {
namespace {

using testing::id;
using testing::on_hosts;

TEST(HostsGroups, OfEachKind) {
  on_hosts(2, 4, [](Communicator& comm, Communicator&) {
    const int rank = comm.rank(), host = rank / 4, place = rank % 4;
    const auto of_host = comm.subgroup({host * 4, host * 4 + 1, host * 4 + 2, host * 4 + 3}, id("host"));
    const auto across = comm.subgroup({place, place + 4}, id("across"));
    const int first = place / 2 * 2;
    const auto half = comm.subgroup({first, first + 1, first + 4, first + 5}, id("half"));
    const auto uneven =
        rank < 5 ? comm.subgroup({0, 1, 2, 3, 4}, id("uneven")) : comm.subgroup({5, 6, 7}, id("uneven"));
    EXPECT_EQ(of_host->backend(), "shm");
    EXPECT_EQ(across->backend(), "gloo");
    EXPECT_EQ(half->backend(), "shm+gloo");
    EXPECT_EQ(uneven->backend(), rank < 5 ? "gloo" : "shm");
    EXPECT_EQ(comm.twin()->backend(), "shm+gloo");
    EXPECT_EQ(comm.twin(), comm.twin());
    EXPECT_EQ(of_host->subgroup({of_host->rank()}, id("one"))->size(), 1);
    EXPECT_EQ(half->world_rank(half->rank()), rank);
    for (const auto& group : {of_host, across, half, uneven, comm.twin(), half->twin()}) {
      at::Tensor sum = torch::ones({3});
      group->all_reduce(sum, sum, {}, id("sum"))->wait();
      EXPECT_TRUE(torch::equal(sum, torch::full({3}, static_cast<double>(group->size()))));
    }
  });
}

TEST(HostsGroups, ListsThatAreNoPartitionAreAnErrorOnAllRanks) {
  on_hosts(2, 2, [](Communicator& comm, Communicator&) {
    const std::vector<int> members = comm.rank() == 3 ? std::vector<int>{2, 3} : std::vector<int>{0, 1, 2};
    EXPECT_THROW(comm.subgroup(members, id("bad")), c10::Error);
  });
}

// Each collective sends the data for other hosts there only once for all ranks of a host.
TEST(HostsTraffic, EqualsThatOfTwoLevels) {
  on_hosts(2, 3, [](Communicator& comm, Communicator& flat) {
    const int64_t n = 1000;
    const auto to_other_host = [&](Communicator& group) {
      const std::vector<uint64_t> sent = group.bytes_sent_to();
      uint64_t bytes = 0;
      for (size_t rank = 0; rank < sent.size(); ++rank) bytes += rank / 3 == size_t(comm.rank()) / 3 ? 0 : sent[rank];
      return bytes;
    };
    EXPECT_EQ(comm.bytes_sent(), 0u);
    for (Communicator* group : {&comm, &flat}) {
      group->all_gather(torch::empty({6 * n}), torch::ones({n}), id("gather"))->wait();
    }
    EXPECT_EQ(to_other_host(comm), 4000u);
    EXPECT_EQ(to_other_host(flat), 3 * 4000u);
    EXPECT_EQ(comm.bytes_sent_to()[static_cast<size_t>(comm.rank())], 0u);
    for (Communicator* group : {&comm, &flat}) {
      group->reduce_scatter(torch::empty({n}), torch::ones({6 * n}), {}, id("scatter"))->wait();
    }
    EXPECT_EQ(to_other_host(comm), 2 * 4000u);
    EXPECT_EQ(to_other_host(flat), 6 * 4000u);
    for (Communicator* group : {&comm, &flat}) {
      at::Tensor sum = torch::ones({6 * n});
      group->all_reduce(sum, sum, {}, id("reduce"))->wait();
    }
    EXPECT_EQ(to_other_host(comm), 2 * 4000u + 2 * 4000u);
    EXPECT_EQ(to_other_host(flat), 6 * 4000u + 6 * 4000u);
    const auto twin = comm.twin();
    const uint64_t before = to_other_host(comm);
    twin->all_gather(torch::empty({6 * n}), torch::ones({n}), id("gather"))->wait();
    EXPECT_EQ(to_other_host(comm), before + 4000u);
  });
}

}  // namespace
}  // namespace fsdp::comm::hosts_groups_test
