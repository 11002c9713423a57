// Tests which copies ranks that share memory avoid, and what keeps them from writing to memory that others still read.
#include "comm/shm/shm_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include "comm/cpu_communicator.h"
#include "comm/testing/collectives.h"
#include "comm/testing/shared_slices.h"
#include "fsdp/backends.h"
#include "fsdp/memory_sharing.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::shm_communicator_test {
namespace {

using testing::all_values;
using ::testing::AllOf;
using ::testing::AnyOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::id;
using testing::SharedSlices;
using testing::values;
using testing::with_shared_memory;

TEST(SharedBuffer, AGatherOfSlicesMovesNothing) {
  for (int ranks : {2, 3, 4}) {
    with_shared_memory(ranks, [&](Communicator& comm) {
      for (int64_t numel : {1, 7, 5000}) {
        const SharedSlices shared(comm, numel);
        EXPECT_TRUE(torch::equal(shared.whole, torch::zeros(ranks * numel)));
        comm.all_gather(shared.whole, shared.own, id("shares it"))->wait();
        comm.memory_sharing().await_readers(shared.whole, id("u"));
        shared.own.copy_(values(comm.rank(), numel));
        const uint64_t sent = comm.bytes_sent();
        const auto reading = comm.all_gather(shared.whole, shared.own, id("u"));
        reading->wait();
        EXPECT_TRUE(torch::equal(shared.whole, all_values(ranks, numel)));
        EXPECT_EQ(comm.bytes_sent(), sent);
      }
    });
  }
}

// Values written before the first gather are still there after it, at the same addresses.
TEST(SharedBuffer, SharingKeepsWrittenValues) {
  with_shared_memory(3, [](Communicator& comm) {
    const SharedSlices shared(comm, 3000);
    shared.own.copy_(values(comm.rank(), 3000));
    const at::Tensor view = shared.own.narrow(0, 5, 7);
    const auto reading = comm.all_gather(shared.whole, shared.own, id("u"));
    reading->wait();
    EXPECT_TRUE(torch::equal(shared.whole, all_values(3, 3000)));
    EXPECT_TRUE(torch::equal(view, values(comm.rank(), 3000).narrow(0, 5, 7)));
  });
}

TEST(SharedBuffer, AGatherElsewhereCopies) {
  with_shared_memory(3, [](Communicator& comm) {
    const SharedSlices shared(comm, 11);
    shared.own.copy_(values(comm.rank(), 11));
    at::Tensor output = torch::zeros(33);
    const auto gather = comm.all_gather(output, shared.own, id("u"));
    gather->wait();
    comm.memory_sharing().await_readers(shared.whole, id("u"));  // returns although the Work still exists
    shared.own.zero_();
    EXPECT_TRUE(torch::equal(output, all_values(3, 11)));
  });
}

// Rank 1 reads for a while; ranks 0 and 2 must not write before it has ended.
TEST(SharedBuffer, AWriterWaitsForReaders) {
  std::atomic<bool> read = false;
  with_shared_memory(3, [&](Communicator& comm) {
    const SharedSlices shared(comm, 5);
    shared.own.copy_(values(comm.rank(), 5));
    auto reading = comm.all_gather(shared.whole, shared.own, id("u"));
    if (comm.rank() != 1) {
      reading->wait();
      reading.reset();
      comm.memory_sharing().await_readers(shared.whole, id("u"));
      EXPECT_TRUE(read);
      shared.own.zero_();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));  // the others wait before this rank has begun to read
      reading->wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      EXPECT_TRUE(torch::equal(shared.whole, all_values(3, 5)));
      read = true;
      reading.reset();
    }
  });
}

TEST(SharedBuffer, ReadingsAreCountedOverAndOver) {
  with_shared_memory(4, [](Communicator& comm) {
    const SharedSlices shared(comm, 3);
    for (uint64_t step = 0; step < 200; ++step) {
      comm.memory_sharing().await_readers(shared.whole, id("u", step));
      shared.own.fill_(static_cast<double>(step));
      const auto reading = comm.all_gather(shared.whole, shared.own, id("u", step));
      reading->wait();
      ASSERT_TRUE(torch::equal(shared.whole, torch::full({12}, static_cast<double>(step))));
    }
  });
}

TEST(SharedBuffer, ALostReaderIsNamedToTheWaitingWriter) {
  std::atomic<int> named = 0;
  with_shared_memory(3, [&](Communicator& comm) {
    const SharedSlices shared(comm, 5);
    comm.all_gather(shared.whole, shared.own, id("u"))->wait();
    if (comm.rank() == 1) return;  // before the reading that the others begin
    comm.all_gather(shared.whole, shared.own, id("u"));
    const std::string error = error_of([&] { comm.memory_sharing().await_readers(shared.whole, id("u")); });
    const std::string what = "waits to write to its part of 'u': rank 1 is lost: its connection closed";
    EXPECT_THAT(error, HasSubstr(what));  // its own message, or that of the rank that noticed first
    named += error.find(c10::str("rank ", comm.rank(), " ", what)) == 0;
  });
  EXPECT_GE(named, 1);
}

// ---------------------------------------------------------------- sharing at once

TEST(ShareBuffers, SharesAllAndKeepsWrittenValues) {
  with_shared_memory(3, [](Communicator& comm) {
    std::vector<SharedSlices> many;
    for (int i = 0; i < 130; ++i) many.emplace_back(comm, 7 + i);  // more than are shared at a time
    many.emplace_back(comm, 5000, SharedBufferOptions{.transient = true});
    for (SharedSlices& one : many) one.own.copy_(values(comm.rank(), one.own.numel()));
    const uint64_t sent = comm.bytes_sent();
    comm.memory_sharing().share(0, id("at once"));
    EXPECT_GT(comm.bytes_sent(), sent);
    const uint64_t shared = comm.bytes_sent();
    for (SharedSlices& one : many) {
      const auto reading = comm.all_gather(one.whole, one.own, id("u"));
      reading->wait();
      EXPECT_TRUE(torch::equal(one.whole, all_values(3, one.own.numel())));
    }
    EXPECT_EQ(comm.bytes_sent(), shared) << "a gather had to share its buffer";
  });
}

TEST(ShareBuffers, NamesTheMissingMemory) {
  with_shared_memory(2, [](Communicator& comm) {
    const SharedSlices shared(comm, 1000);
    const int64_t further = comm.rank() == 0 ? int64_t{1} << 50 : 0;
    EXPECT_THAT(
        error_of([&] { comm.memory_sharing().share(further, id("model")); }),
        AllOf(HasSubstr("rank 0"), HasSubstr("'model'"), HasSubstr("needs 1073741824 MiB"), HasSubstr("are left")));
    comm.barrier(id("all have thrown"));
  });
}

// The gather reports the error: the code that made the buffers may detect it before, and give more details.
TEST(ShareBuffers, LeavesDifferentOnesToTheirGathers) {
  with_shared_memory(2, [](Communicator& comm) {
    const SharedSlices shared(comm, comm.rank() == 0 ? 1000 : 9000);
    comm.memory_sharing().share(0, id("model"));
    EXPECT_THAT(error_of([&] { comm.all_gather(shared.whole, shared.own, id("u")); }),
                AllOf(HasSubstr("'u'"), HasSubstr("rank 1 wants "), HasSubstr("rank 0 "), HasSubstr("bytes")));
  });
}

// ---------------------------------------------------------------- read-only

using SharedBufferDeathTest = ::testing::Test;

TEST(SharedBufferDeathTest, AWriteDuringReadingEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto write_while_read = [] {
    with_shared_memory(2, [](Communicator& comm) {
      const SharedSlices shared(comm, 5, {.read_only = true});
      const auto reading = comm.all_gather(shared.whole, shared.own, id("u"));
      reading->wait();
      comm.barrier(id("both read"));
      if (comm.rank() == 1) shared.whole.data_ptr<float>()[0] = 1;
      comm.barrier(id("never"));
    });
  };
  EXPECT_EXIT(write_while_read(), ::testing::KilledBySignal(SIGSEGV),
              "fsdp: rank 1: 'buffer': a write to gathered parameters.*with_full_params");
}

TEST(SharedBuffer, ThatIsReadOnlyIsWrittenBetweenReadings) {
  for (bool transient : {false, true}) {
    with_shared_memory(3, [&](Communicator& comm) {
      const SharedSlices shared(comm, 3, {.transient = transient, .read_only = true});
      for (uint64_t step = 0; step < 20; ++step) {
        comm.memory_sharing().await_readers(shared.whole, id("u", step));
        shared.own.fill_(static_cast<double>(step));
        const auto reading = comm.all_gather(shared.whole, shared.own, id("u", step));
        reading->wait();
        ASSERT_TRUE(torch::equal(shared.whole, torch::full({9}, static_cast<double>(step))));
      }
    });
  }
}

TEST(SharedBuffer, AReaderCannotWaitForReaders) {
  with_shared_memory(2, [](Communicator& comm) {
    const SharedSlices shared(comm, 3);
    const auto reading = comm.all_gather(shared.whole, shared.own, id("u"));
    reading->wait();
    EXPECT_THROW(comm.memory_sharing().await_readers(shared.whole, id("u")), c10::Error);
    EXPECT_THROW(comm.memory_sharing().await_readers(torch::zeros(3), id("u")), c10::Error);
  });
}

TEST(SharedBuffer, ARankThatGathersSomethingElseIsNamed) {
  std::vector<std::string> errors(2);
  with_shared_memory(2, [&](Communicator& comm) {
    const SharedSlices shared(comm, 3);
    comm.all_gather(shared.whole, shared.own, id("first"))->wait();
    const at::Tensor input = comm.rank() == 0 ? shared.own : shared.own.clone();
    const at::Tensor output = comm.rank() == 0 ? shared.whole : torch::zeros(6);
    try {
      comm.all_gather(output, input, id("u"))->wait();
    } catch (const c10::Error& error) {
      errors[static_cast<size_t>(comm.rank())] = error.what_without_backtrace();
    }
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("slices of shared buffer 1"), HasSubstr("rank 0"), HasSubstr("rank 1")));
  }
}

TEST(SharedBuffer, IsNamedWhereItCannotBeCut) {
  with_shared_memory(3, [](Communicator& comm) {
    EXPECT_THROW(comm.memory_sharing().buffer(8, {}, id("u")), c10::Error);
    EXPECT_THROW(comm.memory_sharing().buffer(0, {}, id("u")), c10::Error);
  });
}

TEST(SharedBuffer, OutlivesItsCommunicator) {
  at::Tensor kept;
  with_shared_memory(2, [&](Communicator& comm) {
    const SharedSlices shared(comm, 4);
    shared.own.fill_(comm.rank() + 1);
    comm.all_gather(shared.whole, shared.own, id("u"))->wait();
    if (comm.rank() == 0) kept = shared.whole;
  });
  EXPECT_TRUE(torch::equal(kept, torch::tensor({1.f, 1.f, 1.f, 1.f, 2.f, 2.f, 2.f, 2.f})));
}

// Rank 0 is done, drops its contribution and takes memory for the next one, while rank 1 has yet to read the first.
TEST(ReductionInput, IsNotUsedAgainBeforeAllHaveReadIt) {
  std::barrier<> taken(2);
  with_shared_memory(2, [&](Communicator& comm) {
    constexpr int64_t kNumel = 1 << 14;
    at::Tensor input = comm.memory_sharing().reduction_input(kNumel * 4).view(at::kFloat);
    input.fill_(comm.rank() + 1);
    const void* address = input.const_data_ptr();
    at::Tensor output = torch::zeros({kNumel / 2});
    auto work = comm.reduce_scatter(output, input, {}, id("u"));
    input.reset();
    if (comm.rank() == 0) {
      work->wait();
      work.reset();
      at::Tensor next = comm.memory_sharing().reduction_input(kNumel * 4).view(at::kFloat);
      EXPECT_NE(next.const_data_ptr(), address);
      next.fill_(99);
      taken.arrive_and_wait();
    } else {
      taken.arrive_and_wait();
      work->wait();
    }
    EXPECT_TRUE(torch::equal(output, torch::full({kNumel / 2}, 3.0)));
    comm.barrier(id("read"));
    const at::Tensor again = comm.memory_sharing().reduction_input(kNumel * 4);
    if (comm.rank() == 0) {
      EXPECT_EQ(again.const_data_ptr(), address) << "all have read it";
    }
  });
}

TEST(ReductionInput, IsCopiedFromElsewhere) {
  with_shared_memory(2, [](Communicator& comm) {
    at::Tensor input = torch::full({10}, comm.rank() + 1.0);
    at::Tensor output = torch::zeros({5});
    const auto work = comm.reduce_scatter(output, input, {}, id("u"));
    input.fill_(99);
    work->wait();
    EXPECT_TRUE(torch::equal(output, torch::full({5}, 3.0)));
  });
}

// If one rank cannot open another rank's memory, all ranks fall back to Gloo and give the reason.
TEST(SharedMemoryChoice, AllRanksFallBackTogether) {
  std::vector<std::string> reasons(3), backends(3);
  testing::run_ranks(3,
                     [&](std::shared_ptr<Communicator> host) {
                       int opened = 0;
                       const auto open = [&](const std::string& ticket) {
                         return host->rank() == 1 && opened++ == 2 ? nullptr : SharedMemory::open(ticket);
                       };
                       const ChosenCommunicator chosen = share_memory(host, {.name = {}, .open = open});
                       reasons[static_cast<size_t>(host->rank())] = chosen.reason;
                       backends[static_cast<size_t>(host->rank())] = chosen.communicator->backend();
                       chosen.communicator->barrier(id("works"));
                     },
                     {.communicator = "gloo"});
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(reasons[rank], AllOf(HasSubstr("rank 1 on host"), HasSubstr("cannot reach the memory of rank 2")));
    EXPECT_EQ(backends[rank], "gloo");
  }
}

TEST(SharedMemoryChoice, SaysThatRanksShareMemory) {
  testing::run_ranks(2,
                     [&](std::shared_ptr<Communicator> host) {
                       const ChosenCommunicator chosen = share_memory(host);
                       EXPECT_EQ(chosen.communicator->backend(), "shm");
                       EXPECT_EQ(chosen.reason, "all 2 ranks share the memory of this host");
                     },
                     {.communicator = "gloo"});
}

}  // namespace
}  // namespace fsdp::comm::shm_communicator_test
