// A sequence of token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace fsdp::trainer {

// Threads: all functions are const, so any number of threads may call them at once.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  // Returns a name for messages: "dummy:1024", a file's path.
  virtual std::string name() const = 0;
  // Returns the number of tokens.
  virtual int64_t size() const = 0;
  // Writes tokens [begin, begin + count) to `out`. The range must lie inside [0, size()). Throws the errors of reading
  // a file.
  virtual void read(int64_t begin, int64_t count, int64_t* out) const = 0;
  // Returns a remark on tokens that look wrong but may be right, or an empty string.
  virtual std::string remark() const { return {}; }
};

// Makes the first `size` tokens of an infinite random sequence below `vocab_size`, which depends on `seed`, `stream`
// and the position only: it is the same for every rank and any number of ranks.
std::unique_ptr<TokenSource> make_dummy_tokens(const std::string& name, int64_t size, int64_t vocab_size, uint64_t seed,
                                               uint64_t stream);

// Opens the token ids of a file: one id per byte or, if its name ends in ".bin", little-endian uint16 (uint32 if
// vocab_size is over 65536). Throws an error if the file is missing, empty, not a regular file, or if its size is not a
// multiple of an id's size. Reading throws an error that names file, offset and value if an id is not below vocab_size.
// Opening only reads a few thousand ids, spread over the file.
std::unique_ptr<TokenSource> open_token_file(const std::string& path, int64_t vocab_size);

}  // namespace fsdp::trainer
