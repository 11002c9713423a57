#include "data/dummy_numbers.h"
#include "data/token_source.h"

namespace fsdp::trainer {

namespace {

class DummyTokens : public TokenSource {
 public:
  DummyTokens(std::string name, int64_t size, int64_t vocab_size, const DummyNumbers& numbers)
      : name_(std::move(name)), size_(size), vocab_size_(static_cast<uint64_t>(vocab_size)), numbers_(numbers) {}

  std::string name() const override { return name_; }
  int64_t size() const override { return size_; }
  void read(int64_t begin, int64_t count, int64_t* out) const override {
    for (int64_t i = 0; i < count; ++i) out[i] = numbers_.below(vocab_size_, static_cast<uint64_t>(begin + i));
  }

 private:
  std::string name_;
  int64_t size_;
  uint64_t vocab_size_;
  DummyNumbers numbers_;
};

}  // namespace

std::unique_ptr<TokenSource> make_dummy_tokens(const std::string& name, int64_t size, int64_t vocab_size, uint64_t seed,
                                               uint64_t stream) {
  return std::make_unique<DummyTokens>(name, size, vocab_size, DummyNumbers(seed, stream));
}

}  // namespace fsdp::trainer
