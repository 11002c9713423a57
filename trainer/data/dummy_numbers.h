// Random numbers for dummy data: an infinite sequence that depends on seed, stream and position only.
#pragma once

#include <cstdint>

namespace fsdp::trainer {

class DummyNumbers {
 public:
  DummyNumbers(uint64_t seed, uint64_t stream) : key_(mix(mix(seed) + stream)) {}

  // Returns a number below `bound`, which is at most 2^32.
  int64_t below(uint64_t bound, uint64_t position) const {
    // The upper half of the product maps 32 random bits to [0, bound) without a division.
    return static_cast<int64_t>(((mix(key_ + position) >> 32) * bound) >> 32);
  }
  // Returns a number in [0, 1), a multiple of 2^-24.
  float fraction(uint64_t position) const { return static_cast<float>(mix(key_ + position) >> 40) * 0x1p-24f; }

 private:
  // SplitMix64's output function: a bijection of 64-bit integers whose results look random.
  static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
  }

  uint64_t key_;
};

}  // namespace fsdp::trainer
