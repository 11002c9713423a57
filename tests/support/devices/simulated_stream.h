// Streams and events of the simulated device: threads that run the enqueued work in order, a little late.
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

// Whether a stream sleeps before it runs an item.
enum class Lateness : uint8_t {
  kAlways,     // work that orders streams or moves data between them: copies, fills, events, collectives
  kNowAndThen  // frequent work: every 16th such item of a stream sleeps
};

// Thread-safe. Items run outside autograd, each operator on one thread.
class SimulatedStream {
 public:
  SimulatedStream() : thread_([this] { run(); }) {}

  void enqueue(std::function<void()> work, Lateness lateness = Lateness::kAlways);
  // Whether all enqueued work is done.
  bool idle();
  // Blocks until all work enqueued before is done. Throws the exception of a failed item, once.
  void synchronize();
  // Returns the exception of a failed item that has not been reported yet. Called by items of this stream.
  std::exception_ptr error();
  // Blocks until all work enqueued before is done, and returns the exception that synchronize() would throw, or null.
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

// A point in the work of a stream. Thread-safe.
class SimulatedEvent {
 public:
  static void record(const std::shared_ptr<SimulatedEvent>& event, SimulatedStream& stream);
  static void block(const std::shared_ptr<SimulatedEvent>& event, SimulatedStream& stream);
  bool is_reached();
  // Throws the exception of an item that failed on the recorded stream before the point.
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

constexpr int kSimulatedStreams = 97;  // of each device: the default stream and a pool

// Returns a stream, which is created at its first use. Work that is still enqueued at the end of the process is
// finished first; an error that has not been reported ends the process with its message.
SimulatedStream& simulated_stream(c10::DeviceIndex device, c10::StreamId id);
inline SimulatedStream& simulated_stream(const c10::Stream& stream) {
  return simulated_stream(stream.device_index(), stream.id());
}
// Blocks until all work enqueued on the device's streams is done.
void synchronize_simulated_streams(c10::DeviceIndex device);

}  // namespace fsdp::testing
