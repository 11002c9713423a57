#ifndef USE_DISTRIBUTED
#define USE_DISTRIBUTED
#endif
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include "torch_seams/gloo_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

namespace fsdp::seams::gloo_thread_test {
namespace {

std::shared_ptr<::gloo::transport::Device> make_device() {
  return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
}

void wait_for(GlooThread& thread) {
  std::promise<void> reached;
  thread.run([&] { reached.set_value(); });
  reached.get_future().wait();
}

TEST(GlooThread, RunsTasksInOrderOnOneThread) {
  GlooThread thread(make_device());
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 1000; ++i) {
    thread.run([&, i] {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
  }
  wait_for(thread);
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_NE(threads.front(), std::this_thread::get_id());
  EXPECT_EQ(threads, std::vector<std::thread::id>(1000, threads.front()));
}

TEST(GlooThread, TasksMayAddTasks) {
  GlooThread thread(make_device());
  std::promise<int> last;
  thread.run([&] { thread.run([&] { thread.run([&] { last.set_value(3); }); }); });
  EXPECT_EQ(last.get_future().get(), 3);
}

TEST(GlooThread, TakesFromManyThreads) {
  GlooThread thread(make_device());
  int sum = 0;  // written on one thread only
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 500; ++i) thread.run([&] { ++sum; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  wait_for(thread);
  EXPECT_EQ(sum, 2000);
}

TEST(GlooThread, EndsAfterItsTasks) {
  std::atomic<int> done{0};
  {
    GlooThread thread(make_device());
    for (int i = 0; i < 100; ++i) {
      thread.run([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        ++done;
      });
    }
  }
  EXPECT_EQ(done, 100);
}

// Other users of the device continue to use it.
TEST(GlooThread, ADeviceOutlivesIt) {
  const auto device = make_device();
  for (int i = 0; i < 3; ++i) {
    GlooThread thread(device);
    wait_for(thread);
  }
}

TEST(GlooThread, ADeviceOfAnotherTransportIsAnError) { EXPECT_ANY_THROW(GlooThread(nullptr)); }

}  // namespace
}  // namespace fsdp::seams::gloo_thread_test
