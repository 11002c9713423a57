#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "data/token_source.h"

namespace fsdp::trainer {

namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

// Opening reads ids at this many places, so that a file that does not belong to the model is found before ranks start.
constexpr int64_t kPlaces = 16, kIdsOfAPlace = 1024;

// A regular file that is read, not mapped: if the file is truncated during training, the error names it.
class ReadFile {
 public:
  explicit ReadFile(const std::string& path);
  ~ReadFile() { ::close(file_); }
  ReadFile(const ReadFile&) = delete;
  ReadFile& operator=(const ReadFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // size when it was opened
  void read(int64_t offset, char* to, size_t bytes) const;

 private:
  std::string path_;
  int file_;
  int64_t bytes_ = 0;
};

ReadFile::ReadFile(const std::string& path)
    // Without O_NONBLOCK, opening a named pipe would block.
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  FSDP_CHECK_WITH(FileError, file_ >= 0, path, ": cannot be opened: ", std::strerror(errno));
  struct stat status{};
  if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file_);
    FSDP_CHECK_WITH(FileError, false, path, ": not a regular file");
  }
  bytes_ = status.st_size;
}

void ReadFile::read(int64_t offset, char* to, size_t bytes) const {
  while (bytes > 0) {
    const ssize_t done = ::pread(file_, to, bytes, offset);
    if (done < 0 && errno == EINTR) continue;
    FSDP_CHECK_WITH(FileError, done >= 0, path_, ": reading failed at byte ", offset, ": ", std::strerror(errno));
    FSDP_CHECK_WITH(FileError, done > 0, path_, ": ends at byte ", offset, ", but had ", bytes_,
                    " bytes when it was opened: it was cut short while training read it; resume with the whole file");
    to += done;
    offset += done;
    bytes -= static_cast<size_t>(done);
  }
}

// A file as an array of ids of type Id.
template <typename Id>
class TokenFile : public TokenSource {
 public:
  TokenFile(const std::string& path, int64_t vocab_size) : file_(path), vocab_size_(vocab_size) {
    FSDP_CHECK_WITH(FileError, file_.bytes() > 0, path, ": the file is empty");
    FSDP_CHECK_WITH(FileError, file_.bytes() % sizeof(Id) == 0, path, ": the size, ", file_.bytes(),
                    " bytes, is not a multiple of ", sizeof(Id),
                    ", the bytes of a token id when the vocabulary size is ", vocab_size);
    look_at_some();
  }

  std::string name() const override { return file_.path(); }
  int64_t size() const override { return file_.bytes() / static_cast<int64_t>(sizeof(Id)); }
  void read(int64_t begin, int64_t count, int64_t* out) const override {
    const std::vector<Id> ids = read_ids(begin, count);
    std::copy(ids.begin(), ids.end(), out);
  }
  std::string remark() const override { return remark_; }

 private:
  std::vector<Id> read_ids(int64_t begin, int64_t count) const;
  void check(const std::vector<Id>& ids, int64_t begin) const;
  void look_at_some();

  ReadFile file_;
  int64_t vocab_size_;
  std::string remark_;
};

template <typename Id>
std::vector<Id> TokenFile<Id>::read_ids(int64_t begin, int64_t count) const {
  std::vector<Id> ids(static_cast<size_t>(count));
  file_.read(begin * static_cast<int64_t>(sizeof(Id)), reinterpret_cast<char*>(ids.data()), ids.size() * sizeof(Id));
  check(ids, begin);
  return ids;
}

template <typename Id>
void TokenFile<Id>::check(const std::vector<Id>& ids, int64_t begin) const {
  const auto first =
      std::find_if(ids.begin(), ids.end(), [this](Id id) { return static_cast<int64_t>(id) >= vocab_size_; });
  if (first == ids.end()) return;
  const int64_t position = begin + (first - ids.begin());
  FSDP_CHECK_WITH(FileError, false, name(), ": token id ", static_cast<int64_t>(*first), " at token ", position,
                  " (byte offset ", position * static_cast<int64_t>(sizeof(Id)),
                  ") is not below the model's vocabulary size, ", vocab_size_,
                  sizeof(Id) == 1 ? "; a file whose name does not end in .bin is read as bytes"
                                  : "; regenerate the file with the tokenizer of this model");
}

// Whether every second id is 0 and enough of the others are not, as if four-byte ids were read as pairs of two-byte
// ids.
template <typename Id>
bool seems_twice_as_wide(const std::vector<Id>& ids) {
  constexpr size_t kFew = 32;
  size_t others = 0;
  for (size_t i = 0; i + 1 < ids.size(); i += 2) {
    if (ids[i + 1] != 0) return false;
    others += ids[i] != 0;
  }
  return others >= kFew;
}

template <typename Id>
void TokenFile<Id>::look_at_some() {
  const int64_t count = std::min(kIdsOfAPlace, size());
  const int64_t places = size() == count ? 1 : kPlaces;
  for (int64_t place = 0; place < places; ++place) {
    const bool is_last = place + 1 == places;
    const int64_t begin = is_last ? size() - count : (size() - count) / (places - 1) * place;
    const std::vector<Id> ids = read_ids(begin, count);
    if (place > 0 || sizeof(Id) != 2 || !seems_twice_as_wide(ids)) continue;
    remark_ = c10::str(name(), ": every second of its first token ids is 0, as in a uint32 file, but it is read as ",
                       "uint16, because the model's vocabulary has ", vocab_size_,
                       " entries, not more than 65536. If its ids are uint32, write them as uint16");
  }
}

}  // namespace

std::unique_ptr<TokenSource> open_token_file(const std::string& path, int64_t vocab_size) {
  constexpr int64_t kUint16Ids = 65536;
  if (!path.ends_with(".bin")) return std::make_unique<TokenFile<uint8_t>>(path, vocab_size);
  if (vocab_size <= kUint16Ids) return std::make_unique<TokenFile<uint16_t>>(path, vocab_size);
  return std::make_unique<TokenFile<uint32_t>>(path, vocab_size);
}

}  // namespace fsdp::trainer
