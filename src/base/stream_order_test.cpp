// Tests ordering by events on the simulated device: one stream is held back while another one continues.
#include "base/stream_order.h"

#include <gtest/gtest.h>

#include "support/devices/held_stream.h"

namespace fsdp::base::stream_order_test {
namespace {

using testing::first_of;
using testing::goes_on;
using testing::HeldStream;
using testing::simulated_device;

at::Tensor ones(int64_t numel) { return testing::ones_on_device(numel); }
at::Tensor zeros(int64_t numel) { return testing::zeros_on_device(numel); }

class StreamOrder : public ::testing::Test {
 protected:
  const c10::Device device_ = simulated_device();
  const c10::Stream stream_ = take_stream(device_);
};

TEST_F(StreamOrder, MemoryIsUsedAgainAfterItsLastUse) {
  const at::Tensor memory = ones(8), copy = zeros(4);
  MemoryOrder order;
  HeldStream reader;
  {
    const CurrentStreamGuard on_reader(reader);
    copy.copy_(memory.narrow(0, 0, 4));
    order.after_use(memory.narrow(0, 0, 4));
  }
  const CurrentStreamGuard on_stream(stream_);
  order.before_use(memory.narrow(0, 4, 4));
  memory.narrow(0, 4, 4).fill_(2);
  EXPECT_TRUE(goes_on(stream_)) << "other bytes are free";
  order.before_use(memory);
  memory.fill_(3);
  reader.let_go();
  EXPECT_EQ(first_of(copy), 1);
  EXPECT_EQ(first_of(memory), 3);
}

TEST_F(StreamOrder, OfSeveralUsesTheLastOfEachPieceCounts) {
  const at::Tensor memory = ones(8), copy = zeros(4);
  MemoryOrder order;
  order.after_use(memory);
  HeldStream reader;
  {
    const CurrentStreamGuard on_reader(reader);
    order.before_use(memory.narrow(0, 2, 4));
    copy.copy_(memory.narrow(0, 2, 4));
    order.after_use(memory.narrow(0, 2, 4));
  }
  const CurrentStreamGuard on_stream(stream_);
  order.before_use(memory.narrow(0, 5, 3));  // overlaps in one element
  memory.narrow(0, 5, 3).fill_(7);
  reader.let_go();
  EXPECT_TRUE(torch::equal(copy.cpu(), torch::ones({4})));
}

TEST_F(StreamOrder, TurnsWaitForTheOneBefore) {
  const at::Tensor sum = ones(4);
  StreamTurns turns;
  HeldStream first;
  {
    const CurrentStreamGuard on_first(first);
    turns.take(device_);
    sum.add_(1);
  }
  const CurrentStreamGuard on_stream(stream_);
  turns.take(device_);
  sum.mul_(10);
  first.let_go();
  EXPECT_EQ(first_of(sum), 20);
}

TEST_F(StreamOrder, AThingThatIsAnotherHasNoTurnsBefore) {
  StreamTurns turns;
  HeldStream first;
  {
    const CurrentStreamGuard on_first(first);
    turns.take(device_);
  }
  turns.clear();
  const CurrentStreamGuard on_stream(stream_);
  turns.take(device_);
  EXPECT_TRUE(goes_on(stream_));
}

TEST_F(StreamOrder, ReadersWaitForTheFirstAndTheEndForAll) {
  const at::Tensor memory = ones(4), copy = zeros(4);
  StreamReaders readers;
  const CurrentStreamGuard on_stream(stream_);
  HeldStream maker, reader;
  {
    const CurrentStreamGuard on_maker(maker);
    memory.fill_(5);
    readers.begin(device_);
  }
  {
    const CurrentStreamGuard on_reader(reader);
    readers.add(device_);
    copy.copy_(memory);
  }
  maker.let_go();
  readers.end(device_);
  memory.fill_(6);
  reader.let_go();
  EXPECT_EQ(first_of(copy), 5);
  EXPECT_EQ(first_of(memory), 6);
}

TEST(StreamOrderOnTheCpu, NothingHappens) {
  const at::Tensor memory = torch::ones({4});
  MemoryOrder order;
  StreamTurns turns;
  StreamReaders readers;
  order.before_use(memory);
  order.after_use(memory);
  turns.take(memory.device());
  readers.begin(memory.device());
  readers.add(memory.device());
  readers.end(memory.device());
  order_streams(current_stream(memory.device()), current_stream(memory.device()));
  EXPECT_TRUE(torch::equal(memory, torch::ones({4})));
}

}  // namespace
}  // namespace fsdp::base::stream_order_test
