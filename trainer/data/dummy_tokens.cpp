#include "data/token_source.h"

namespace fsdp::trainer {

namespace {

// SplitMix64's output function: a bijection of 64-bit integers whose results look random.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

class DummyTokens : public TokenSource {
 public:
  DummyTokens(std::string name, int64_t size, int64_t vocab_size, uint64_t seed, uint64_t stream)
      : name_(std::move(name)),
        size_(size),
        vocab_size_(static_cast<uint64_t>(vocab_size)),
        key_(mix(mix(seed) + stream)) {}

  std::string name() const override { return name_; }
  int64_t size() const override { return size_; }
  void read(int64_t begin, int64_t count, int64_t* out) const override {
    for (int64_t i = 0; i < count; ++i) out[i] = token(static_cast<uint64_t>(begin + i));
  }

 private:
  // The upper half of the product maps 32 random bits to [0, vocab_size) without a division.
  int64_t token(uint64_t position) const {
    return static_cast<int64_t>(((mix(key_ + position) >> 32) * vocab_size_) >> 32);
  }

  std::string name_;
  int64_t size_;
  uint64_t vocab_size_;
  uint64_t key_;
};

}  // namespace

std::unique_ptr<TokenSource> make_dummy_tokens(const std::string& name, int64_t size, int64_t vocab_size, uint64_t seed,
                                               uint64_t stream) {
  return std::make_unique<DummyTokens>(name, size, vocab_size, seed, stream);
}

}  // namespace fsdp::trainer
