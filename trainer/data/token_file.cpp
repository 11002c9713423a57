#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>

#include "checkpoint/mapped_file.h"
#include "data/token_source.h"

namespace fsdp::trainer {

namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

// A file as an array of ids of type Id.
template <typename Id>
class TokenFile : public TokenSource {
 public:
  TokenFile(const std::string& path, int64_t vocab_size) : path_(path), file_(checkpoint::MappedFile::open(path)) {
    TORCH_CHECK(bytes() > 0, path, ": the file is empty");
    TORCH_CHECK(bytes() % sizeof(Id) == 0, path, ": the size, ", bytes(), " bytes, is no multiple of ", sizeof(Id),
                ", the bytes of a token id when the vocabulary size is ", vocab_size);
    check_ids(vocab_size);
  }

  std::string name() const override { return path_; }
  int64_t size() const override { return static_cast<int64_t>(bytes() / sizeof(Id)); }
  void read(int64_t begin, int64_t count, int64_t* out) const override { std::copy_n(ids() + begin, count, out); }

 private:
  size_t bytes() const { return file_->bytes().size(); }
  const Id* ids() const { return reinterpret_cast<const Id*>(file_->bytes().data()); }
  void check_ids(int64_t vocab_size) const;

  std::string path_;
  std::shared_ptr<const checkpoint::MappedFile> file_;
};

template <typename Id>
void TokenFile<Id>::check_ids(int64_t vocab_size) const {
  const Id* end = ids() + size();
  Id largest = 0;
  for (const Id* id = ids(); id != end; ++id) largest = std::max(largest, *id);
  if (static_cast<int64_t>(largest) < vocab_size) return;
  const Id* first = std::find_if(ids(), end, [&](Id id) { return static_cast<int64_t>(id) >= vocab_size; });
  const int64_t position = first - ids();
  TORCH_CHECK(false, path_, ": token id ", static_cast<int64_t>(*first), " at token ", position, " (byte offset ",
              position * static_cast<int64_t>(sizeof(Id)), ") is not below the model's vocabulary size, ", vocab_size,
              sizeof(Id) == 1 ? "; a file whose name does not end in .bin is read as bytes" : "");
}

}  // namespace

std::unique_ptr<TokenSource> open_token_file(const std::string& path, int64_t vocab_size) {
  constexpr int64_t kUint16Ids = 65536;
  if (!path.ends_with(".bin")) return std::make_unique<TokenFile<uint8_t>>(path, vocab_size);
  if (vocab_size <= kUint16Ids) return std::make_unique<TokenFile<uint16_t>>(path, vocab_size);
  return std::make_unique<TokenFile<uint32_t>>(path, vocab_size);
}

}  // namespace fsdp::trainer
