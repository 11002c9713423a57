// Tests streams, events and the current stream, on a simulated device and on the CPU.
#include "base/device_stream.h"

#include <thread>

#include "support/devices/simulated_device.h"

namespace fsdp::base::device_stream_test {
namespace {

using testing::simulated_device;

TEST(StreamsOfTheCpu, DoNothing) {
  const c10::Device cpu(c10::kCPU);
  EXPECT_FALSE(has_streams(cpu));
  const auto stream = take_stream(cpu, StreamPriority::kHigh);
  EXPECT_EQ(stream, current_stream(cpu));
  EXPECT_EQ(native_stream(stream), nullptr);
  CurrentStreamGuard guard(stream);
  DeviceEvent event;
  event.record_current(cpu);
  event.block_current();
  event.synchronize();
  EXPECT_TRUE(event.reached());
}

TEST(Devices, AreCounted) {
  simulated_device();
  EXPECT_EQ(device_count(c10::kCPU), 1);
  EXPECT_EQ(device_count(c10::kPrivateUse1), testing::kSimulatedDevices);
  EXPECT_EQ(device_count(c10::kHPU), 0);  // LibTorch has no support for it
}

TEST(CurrentStream, IsSetForAScopeAndThread) {
  const auto first = simulated_device(0);
  const auto second = simulated_device(1);
  const auto before = current_stream(second);
  const auto stream = take_stream(second);
  EXPECT_NE(stream, before);
  EXPECT_NE(native_stream(stream), nullptr);
  {
    CurrentStreamGuard guard(stream);
    EXPECT_EQ(current_stream(second), stream);
    EXPECT_EQ(with_index(c10::Device(c10::kPrivateUse1)), second);  // the guard also sets the device
    EXPECT_EQ(current_stream(first).device(), first);
    std::thread([&] { EXPECT_EQ(current_stream(second), before); }).join();
  }
  EXPECT_EQ(current_stream(second), before);
  EXPECT_EQ(with_index(c10::Device(c10::kPrivateUse1)), first);
}

TEST(Event, OrdersStreamsWithoutTheHost) {
  const auto device = simulated_device();
  const auto writer = take_stream(device);
  const auto reader = take_stream(device);
  auto data = torch::zeros({1000}, device);
  auto copy = torch::zeros({1000}, device);
  DeviceEvent ready;
  ready.record_current(device);
  ready.block(writer);
  ready.block(reader);
  for (int round = 1; round <= 5; ++round) {
    DeviceEvent written;
    DeviceEvent read;
    {
      CurrentStreamGuard guard(writer);
      for (int i = 0; i < 3; ++i) data.fill_(10 * round + i);
      written.record_current(device);
    }
    {
      CurrentStreamGuard guard(reader);
      written.block_current();
      copy.copy_(data);
      read.record_current(device);
    }
    read.synchronize();
    EXPECT_TRUE(read.reached());
    read.block(current_stream(device));
    EXPECT_TRUE(torch::equal(copy.cpu(), torch::full({1000}, 10.f * round + 2)));
  }
}

TEST(Event, MayBeRecordedAgainOnAnotherDevice) {
  DeviceEvent event;
  event.record(take_stream(simulated_device(0)));
  event.synchronize();
  event.record(take_stream(simulated_device(1)));
  event.synchronize();
  EXPECT_TRUE(event.reached());
}

TEST(Event, ThatWasNeverRecordedLiesInThePast) {
  DeviceEvent event;
  EXPECT_TRUE(event.reached());
  event.block(current_stream(simulated_device()));
  event.synchronize();
}

}  // namespace
}  // namespace fsdp::base::device_stream_test
