// Buffers of ranks that share memory whose memory is given back after each reading.
#include "comm/shm/shm_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "comm/testing/collectives.h"
#include "comm/testing/shared_slices.h"
#include "fsdp/memory_sharing.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::transient_buffer_test {
namespace {

using testing::all_values;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::id;
using testing::SharedSlices;
using testing::values;
using testing::with_shared_memory;

TEST(TransientBuffer, GivesMemoryBackWhenAllHaveRead) {
  for (int ranks : {2, 3, 4}) {
    std::atomic<int> done = 0;
    with_shared_memory(ranks, [&](Communicator& comm) {
      const SharedSlices shared(comm, 5000, {.transient = true});
      for (uint64_t step = 0; step < 50; ++step) {
        comm.memory_sharing().await_readers(shared.whole, id("u", step));
        EXPECT_TRUE(torch::equal(shared.own, torch::zeros({5000}))) << "memory of the reading before is gone";
        shared.own.copy_(values(comm.rank(), 5000) + static_cast<double>(step));
        auto reading = comm.all_gather(shared.whole, shared.own, id("u", step));
        reading->wait();
        ASSERT_TRUE(torch::equal(shared.whole, all_values(ranks, 5000) + static_cast<double>(step)));
      }
      ++done;
    });
    EXPECT_EQ(done, ranks);
  }
}

TEST(TransientBuffer, StaysWhereAllOfThemAreLittle) {
  constexpr int64_t kNbytes = 40960;  // of one buffer, in whole pages
  for (int64_t spare : {2 * kNbytes - 1, 2 * kNbytes}) {
    with_shared_memory(
        2,
        [&](Communicator& comm) {
          const SharedSlices shared(comm, 5000, {.transient = true});
          std::optional<SharedSlices> other(std::in_place, comm, 5000, SharedBufferOptions{.transient = true});
          const auto read = [&](const SharedSlices& buffer, uint64_t step) {
            comm.memory_sharing().await_readers(buffer.whole, id("u", step));
            buffer.own.fill_(7);
            comm.all_gather(buffer.whole, buffer.own, id("u", step))->wait();
            comm.memory_sharing().await_readers(buffer.whole, id("u", step));
            return buffer.own[0].item<float>() == 7;
          };
          EXPECT_TRUE(read(shared, 0)) << "it is the only one that is shared";
          EXPECT_EQ(read(*other, 1), spare == 2 * kNbytes);
          EXPECT_EQ(read(shared, 2), spare == 2 * kNbytes);
          other.reset();
          comm.barrier(id("the other is gone"));
          EXPECT_TRUE(read(shared, 3));
        },
        spare);
  }
}

// Data stay until the memory is released. Each rank learns of the release once.
TEST(TransientBuffer, SaysWhetherItKeepsItsContents) {
  constexpr int64_t kNbytes = 40960;  // of one buffer, in whole pages
  with_shared_memory(
      2,
      [&](Communicator& comm) {
        const SharedSlices shared(comm, 5000, {.transient = true});
        std::optional<SharedSlices> other;  // with it, they are too large to be kept
        uint64_t step = 0;
        // Returns whether the contents were kept since the last call.
        const auto read = [&](const SharedSlices& buffer) {
          comm.memory_sharing().await_readers(buffer.whole, id("u", step));
          const bool kept = comm.memory_sharing().keeps_contents(buffer.whole);
          EXPECT_EQ(buffer.own[0].item<float>() == 7, kept) << step;
          buffer.own.fill_(7);
          comm.all_gather(buffer.whole, buffer.own, id("u", step++))->wait();
          return kept;
        };
        EXPECT_FALSE(read(shared)) << "it was never written";
        EXPECT_TRUE(read(shared));
        other.emplace(comm, 5000, SharedBufferOptions{.transient = true});
        EXPECT_FALSE(read(*other));
        EXPECT_TRUE(read(shared)) << "its last reading ended before";
        EXPECT_FALSE(read(shared));
        EXPECT_FALSE(read(shared));
        other.reset();
        comm.barrier(id("the other is gone"));
        EXPECT_FALSE(read(shared)) << "it was released before the other was gone";
        EXPECT_TRUE(read(shared));
      },
      kNbytes);
}

TEST(TransientBuffer, IsThereUntilTheLastHasRead) {
  with_shared_memory(3, [](Communicator& comm) {
    const SharedSlices shared(comm, 5000, {.transient = true});
    comm.memory_sharing().await_readers(shared.whole, id("u"));
    shared.own.copy_(values(comm.rank(), 5000));
    auto reading = comm.all_gather(shared.whole, shared.own, id("u"));
    reading->wait();
    if (comm.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      EXPECT_TRUE(torch::equal(shared.whole, all_values(3, 5000)));
    }
    reading.reset();
  });
}

TEST(TransientBuffer, IsReadOnceAtATime) {
  with_shared_memory(2, [](Communicator& comm) {
    const SharedSlices shared(comm, 5, {.transient = true});
    const auto reading = comm.all_gather(shared.whole, shared.own, id("u"));
    reading->wait();
    EXPECT_THAT(error_of([&] { comm.all_gather(shared.whole, shared.own, id("u", 1)); }),
                AllOf(HasSubstr("'buffer'"), HasSubstr("read again before")));
  });
}

}  // namespace
}  // namespace fsdp::comm::transient_buffer_test
