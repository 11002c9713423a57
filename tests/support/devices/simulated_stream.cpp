#include "support/devices/simulated_stream.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "support/devices/simulated_device.h"
#include "torch_seams/clean_dispatch.h"

namespace fsdp::testing {
namespace {

constexpr auto kLateness = std::chrono::microseconds(300);
constexpr uint64_t kOneLateOf = 16;

const char* what_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    thread_local std::string text;
    text = known.what();
    return text.c_str();
  } catch (...) {
    return "unknown error";
  }
}

// All streams of the process. Never destroyed, because tensors may outlive them and release their memory on a stream.
class Streams {
 public:
  SimulatedStream& at(c10::DeviceIndex device, c10::StreamId id) {
    std::lock_guard lock(mutex_);
    auto& stream = streams_.at(static_cast<size_t>(device)).at(static_cast<size_t>(id));
    if (!stream) stream = new SimulatedStream;
    return *stream;
  }
  std::array<SimulatedStream*, kSimulatedStreams> of(c10::DeviceIndex device) {
    std::lock_guard lock(mutex_);
    return streams_.at(static_cast<size_t>(device));
  }

 private:
  std::mutex mutex_;
  std::array<std::array<SimulatedStream*, kSimulatedStreams>, kSimulatedDevices> streams_{};
};

struct DrainAtExit {
  Streams& streams;
  ~DrainAtExit() {
    for (int device = 0; device < kSimulatedDevices; ++device) {
      for (auto* stream : streams.of(static_cast<c10::DeviceIndex>(device))) {
        const auto error = stream ? stream->drain() : nullptr;
        if (!error) continue;
        std::fprintf(stderr, "simulated device %d: an operator failed, and nothing waited for it: %s\n", device,
                     what_of(error));
        std::_Exit(1);
      }
    }
  }
};

Streams& all_streams() {
  static Streams& streams = *new Streams;
  static DrainAtExit drain{streams};
  return streams;
}

}  // namespace

void SimulatedStream::enqueue(std::function<void()> work, Lateness lateness) {
  std::lock_guard lock(mutex_);
  queue_.push_back({std::move(work), lateness});
  ++enqueued_;
  changed_.notify_all();
}

bool SimulatedStream::idle() {
  std::lock_guard lock(mutex_);
  return done_ == enqueued_;
}

std::exception_ptr SimulatedStream::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&, until = enqueued_] { return done_ >= until; });
  return std::exchange(error_, nullptr);
}

void SimulatedStream::synchronize() {
  if (const auto error = drain()) std::rethrow_exception(error);
}

std::exception_ptr SimulatedStream::error() {
  std::lock_guard lock(mutex_);
  return error_;
}

bool SimulatedStream::is_late(const Item& item) {
  return item.lateness == Lateness::kAlways || ++seen_now_and_then_ % kOneLateOf == 1;
}

// Runs an item. It is passed by value, so that its captured objects are freed before it counts as done.
void SimulatedStream::perform(Item item) {
  if (is_late(item)) std::this_thread::sleep_for(kLateness);
  try {
    item.work();
  } catch (...) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void SimulatedStream::run() {
  at::set_num_threads(1);
  const seams::CleanDispatchGuard clean;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !queue_.empty(); });
    Item item = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    perform(std::move(item));
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

void SimulatedEvent::record(const std::shared_ptr<SimulatedEvent>& event, SimulatedStream& stream) {
  uint64_t version = 0;
  {
    std::lock_guard lock(event->mutex_);
    version = ++event->recorded_;
  }
  stream.enqueue([event, version, &stream] { event->reach(version, stream.error()); });
}

void SimulatedEvent::block(const std::shared_ptr<SimulatedEvent>& event, SimulatedStream& stream) {
  stream.enqueue([event, version = event->recorded()] { event->wait_for(version); });
}

bool SimulatedEvent::is_reached() {
  std::lock_guard lock(mutex_);
  return reached_ >= recorded_;
}

void SimulatedEvent::synchronize() { wait_for(recorded()); }

uint64_t SimulatedEvent::recorded() {
  std::lock_guard lock(mutex_);
  return recorded_;
}

void SimulatedEvent::reach(uint64_t version, std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  reached_ = std::max(reached_, version);
  error_ = std::move(error);
  changed_.notify_all();
}

void SimulatedEvent::wait_for(uint64_t version) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_ >= version; });
  if (error_) std::rethrow_exception(error_);
}

SimulatedStream& simulated_stream(c10::DeviceIndex device, c10::StreamId id) { return all_streams().at(device, id); }

void synchronize_simulated_streams(c10::DeviceIndex device) {
  for (auto* stream : all_streams().of(device)) {
    if (stream) stream->synchronize();
  }
}

}  // namespace fsdp::testing
