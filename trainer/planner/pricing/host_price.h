// The time of kernels and collectives of ranks that compute on CPUs.
#pragma once

#include <cstdint>
#include <string>

#include "planner/pricing/kernel_price.h"
#include "planner/tape/tape.h"
#include "planner/target/host_speed.h"

namespace fsdp::planner {

// Returns the seconds at so many bytes: between two points a power of the bytes, below the first as long as that, above
// the last in proportion to the bytes. After a point at 0 bytes, the next one's time holds up to it.
double seconds_at(const TimeCurve& points, double bytes);

// Return the time of an operator in a model that computes in `dtype`: products at the rate of the nearest measured ones
// of their type, other operators at their KernelTraffic::bytes. Throw a std::invalid_argument if nothing like it was
// measured.
double seconds_of(const ProductWork& work, const HostSpeed& speed);
double seconds_of(const std::string& name, int64_t bytes, at::ScalarType dtype, const HostSpeed& speed);

// Returns the time of an entry of kind kKernel, likewise.
KernelPrice price_on_host(const Tape& tape, const TapeEntry& entry, const HostSpeed& speed, at::ScalarType dtype);

// Returns the time of a collective of this tape, from its issue to the end of the wait; 0 for a group of one rank. Of a
// message, the sender's part or the receiver's: half of the measured time each.
// Throws a std::invalid_argument if its kind was not measured.
double exchange_seconds(const Tape& tape, size_t collective, const HostSpeed& speed);

}  // namespace fsdp::planner
