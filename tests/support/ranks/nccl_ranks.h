// Ranks as threads over the fake NCCL library of tests/tools.
#pragma once

#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "comm/nccl/nccl_communicator.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"
#include "tools/fake_nccl.h"

namespace fsdp::testing {

// Functions of the fake library, looked up at run time, because the communicator opens the same file.
struct FakeNccl {
  decltype(&::fake_nccl_fail_next) fail_next;
  decltype(&::fake_nccl_set_async_error) set_async_error;
  decltype(&::fake_nccl_set_in_progress) set_in_progress;
  decltype(&::fake_nccl_set_version) set_version;
  decltype(&::fake_nccl_live_communicators) live_communicators;
  decltype(&::fake_nccl_live_operators) live_operators;
};

std::string fake_nccl_path();

// Opens the fake library, lets it enqueue work on streams of the simulated device too, and resets the state that an
// earlier test set.
FakeNccl fresh_fake_nccl();

// A test that needs the fake library, and checks that no communicators or operators are left in it.
class WithFakeNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!comm::nccl_is_built_in()) GTEST_SKIP() << "built without NCCL's headers";
    fake = fresh_fake_nccl();
  }
  void TearDown() override {
    if (!comm::nccl_is_built_in()) return;
    EXPECT_EQ(fake.live_communicators(), 0);
    EXPECT_EQ(fake.live_operators(), 0);
  }
  FakeNccl fake{};
};

// Runs `body` once for each rank, each in its own thread, with a communicator over the fake library for tensors on
// `device`. The device is the CPU, where collectives block, or the simulated device; each rank has its own stream as
// the current one there. Errors are reported as by run_ranks.
void run_nccl_ranks(int size, c10::Device device, const std::function<void(std::shared_ptr<Communicator>)>& body,
                    const NcclOptions& options = {});

// Does the same as run_nccl_ranks, with a separate simulated device for each rank, which ranks that train need.
void run_nccl_ranks_on_own_devices(int size, const std::function<void(std::shared_ptr<Communicator>)>& body);

}  // namespace fsdp::testing
