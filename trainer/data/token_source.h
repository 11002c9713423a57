// A sequence of token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace fsdp::trainer {

// Threads: const, so any number may read.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  // For messages: "dummy:1024", a file's path.
  virtual std::string name() const = 0;
  // Number of tokens.
  virtual int64_t size() const = 0;
  // Writes tokens [begin, begin + count) to `out`. The range must lie inside [0, size()). Errors: those of a file.
  virtual void read(int64_t begin, int64_t count, int64_t* out) const = 0;
  // A remark on tokens that look wrong but need not be; empty: there is none.
  virtual std::string remark() const { return {}; }
};

// The first `size` tokens of an endless random sequence below `vocab_size`, a function of `seed`, `stream`
// and the position alone: the same for every rank and any number of ranks.
std::unique_ptr<TokenSource> make_dummy_tokens(const std::string& name, int64_t size, int64_t vocab_size, uint64_t seed,
                                               uint64_t stream);

// The token ids of a file: one a byte, or, when its name ends in ".bin", little-endian uint16 (uint32 when vocab_size
// is over 65536). A file that is missing, empty, no regular file or of a size that is no multiple of an id's is an
// error. So is an id that is not below vocab_size, where it is read: file, offset and value are named. Opening reads a
// few thousand ids only, spread over the file.
std::unique_ptr<TokenSource> open_token_file(const std::string& path, int64_t vocab_size);

}  // namespace fsdp::trainer
