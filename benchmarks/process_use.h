// What this process and its training thread use of the machine, as Linux counts it. comparison/process_use.py counts
// the same for PyTorch's side.
#pragma once

#include <chrono>
#include <cstdint>

namespace fsdp::benchmarks {

// Wall time of a part of a step, and how much of it the calling thread was blocked: neither running nor ready to run.
struct PartTime {
  double seconds = 0;
  double blocked = 0;
};

// Of the calling thread, from when it is made.
class PartClock {
 public:
  PartClock();
  PartTime elapsed() const;

 private:
  std::chrono::steady_clock::time_point start_;
  double busy_;
};

// Processor time of all of this process's threads so far.
double process_cpu_seconds();

// Bytes that all network interfaces of this process's network namespace have sent so far, headers included.
uint64_t network_bytes_sent();

// Makes the high-water mark of resident memory what is resident now; false where the system does not allow it.
bool reset_peak_resident();
int64_t peak_resident_bytes();

// Limits what this process may take of memory of its own (RLIMIT_DATA: private mappings that can be written, so heap,
// stacks of threads, tensors) to `more` bytes beside what it has now, which it returns. Threads that start later
// reserve 1 MiB for their stack instead of the usual 8, since what is reserved counts.
int64_t limit_memory(int64_t more);

}  // namespace fsdp::benchmarks
