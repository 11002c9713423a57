// Resources of the machine that this process and its training thread use, as counted by Linux.
// comparison/process_use.py counts the same for PyTorch's side.
#pragma once

#include <chrono>
#include <cstdint>

namespace fsdp::benchmarks {

// Wall time of a part of a step, and the time in it during which the calling thread was blocked: neither running nor
// ready.
struct PartTime {
  double seconds = 0;
  double blocked = 0;
};

// Measures the calling thread's time from the construction of the clock.
class PartClock {
 public:
  PartClock();
  PartTime elapsed() const;

 private:
  std::chrono::steady_clock::time_point start_;
  double busy_;
};

// Returns the processor time of all threads of this process so far.
double process_cpu_seconds();

// Returns the bytes that all network interfaces of this process's network namespace have sent so far, headers included.
uint64_t network_bytes_sent();

// Resets the high-water mark of resident memory to the current value. Returns false if the system does not allow it.
bool reset_peak_resident();
int64_t peak_resident_bytes();

// Limits the private memory of this process (RLIMIT_DATA: writable private mappings, that is heap, thread stacks,
// tensors) to its current size plus `more` bytes, and returns the current size. Threads that start later reserve 1 MiB
// for their stack instead of the usual 8 MiB, since reserved memory counts.
int64_t limit_memory(int64_t more);

}  // namespace fsdp::benchmarks
