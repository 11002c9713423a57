// Streams and events of the simulated device: threads that do, in order, what was enqueued, a little late.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace fsdp::testing {

// Whether a stream lets time pass before it does an item.
enum class Lateness : uint8_t {
  kAlways,     // what orders streams, or moves data between them: copies, fills, events, collectives
  kNowAndThen  // whatever there is much of: every 16th such item of a stream
};

// Threads: safe. Items run outside autograd, each operator on one thread.
class SimulatedStream {
 public:
  SimulatedStream() : thread_([this] { run(); }) {}

  void enqueue(std::function<void()> work, Lateness lateness = Lateness::kAlways);
  // Whether all that was enqueued is done.
  bool idle();
  // Blocks until what was enqueued before is done. Throws what an item has thrown, once.
  void synchronize();
  // What an item has thrown that nobody was told; called by items of this stream.
  std::exception_ptr error();
  // Blocks until what was enqueued before is done, and returns what synchronize() would throw.
  std::exception_ptr drain();

 private:
  struct Item {
    std::function<void()> work;
    Lateness lateness;
  };
  void run();
  bool is_late(const Item& item);
  void perform(Item item);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  uint64_t enqueued_ = 0;
  uint64_t done_ = 0;
  uint64_t seen_now_and_then_ = 0;
  std::exception_ptr error_;
  std::thread thread_;
};

// A point in the work of a stream. Threads: safe.
class SimulatedEvent {
 public:
  static void record(const std::shared_ptr<SimulatedEvent>& event, SimulatedStream& stream);
  static void block(const std::shared_ptr<SimulatedEvent>& event, SimulatedStream& stream);
  bool is_reached();
  // Throws what an item of the recorded stream had thrown before.
  void synchronize();

 private:
  void reach(uint64_t version, std::exception_ptr error);
  void wait_for(uint64_t version);
  uint64_t recorded();

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t recorded_ = 0;
  uint64_t reached_ = 0;
  std::exception_ptr error_;
};

constexpr int kSimulatedStreams = 97;  // of each device: the default one and a pool

// Made at their first use. What is enqueued on them when the process ends is done before; an error that nobody was told
// ends the process with its message.
SimulatedStream& simulated_stream(c10::DeviceIndex device, c10::StreamId id);
inline SimulatedStream& simulated_stream(const c10::Stream& stream) {
  return simulated_stream(stream.device_index(), stream.id());
}
// Blocks until what was enqueued on the device's streams is done.
void synchronize_simulated_streams(c10::DeviceIndex device);

}  // namespace fsdp::testing
