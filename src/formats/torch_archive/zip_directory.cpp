#include "formats/torch_archive/zip_directory.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "formats/common/json_text.h"
#include "formats/torch_archive/zip_format.h"

namespace fsdp::formats::zip {
namespace {

constexpr uint64_t kMaxDirectoryBytes = uint64_t{1} << 26;

// The position of the directory in the archive.
struct Extent {
  uint64_t begin, bytes, count;
};

// The end of an archive: a record with 32-bit numbers, possibly preceded by a record with 64-bit numbers and a locator.
class End {
 public:
  End(const InputFile& file, uint64_t offset, uint64_t length, const std::string& source)
      : length_(length), source_(source) {
    const uint64_t kept = std::min<uint64_t>(length, kEnd64Bytes + kLocator64Bytes + kEndBytes);
    tail_ = file.read(offset + length - kept, kept);
    FSDP_CHECK_WITH(
        FileError,
        kept >= kEndBytes && number_at<uint32_t>(end(), 0) == kEndSignature && number_at<uint16_t>(end(), 20) == 0,
        source, ": has no zip end record at its end: it was cut short, has an archive comment or is not a zip archive");
  }

  Extent find() const {
    const bool is_64 =
        tail_.size() >= kEndBytes + kLocator64Bytes && number_at<uint32_t>(locator(), 0) == kLocator64Signature;
    const Extent found = is_64 ? find_64() : find_32();
    const uint64_t end = length_ - kEndBytes - (is_64 ? kLocator64Bytes + kEnd64Bytes : 0);
    FSDP_CHECK_WITH(FileError, found.begin <= end && found.bytes == end - found.begin, source_, ": the zip directory, ",
                    found.bytes, " bytes from ", found.begin, " on, does not end at byte ", end,
                    ": the archive is damaged");
    FSDP_CHECK_WITH(FileError, found.bytes <= kMaxDirectoryBytes, source_, ": a zip directory of ", found.bytes,
                    " bytes; at most ", kMaxDirectoryBytes, " are supported");
    return found;
  }

 private:
  std::string_view from_end(size_t bytes) const { return std::string_view(tail_).substr(tail_.size() - bytes); }
  std::string_view end() const { return from_end(kEndBytes); }
  std::string_view locator() const { return from_end(kEndBytes + kLocator64Bytes); }

  Extent find_32() const {
    const bool is_whole = number_at<uint16_t>(end(), 4) == 0 && number_at<uint16_t>(end(), 6) == 0 &&
                          number_at<uint16_t>(end(), 8) == number_at<uint16_t>(end(), 10);
    FSDP_CHECK_WITH(FileError, is_whole, source_, ": a part of a split zip archive, or damaged");
    return {number_at<uint32_t>(end(), 16), number_at<uint32_t>(end(), 12), number_at<uint16_t>(end(), 10)};
  }

  Extent find_64() const {
    const uint64_t before = length_ - kEndBytes - kLocator64Bytes;
    FSDP_CHECK_WITH(FileError, before >= kEnd64Bytes && number_at<uint64_t>(locator(), 8) == before - kEnd64Bytes,
                    source_, ": the zip archive's end is damaged");
    const std::string_view record = from_end(kEndBytes + kLocator64Bytes + kEnd64Bytes);
    const bool is_whole = number_at<uint32_t>(record, 0) == kEnd64Signature &&
                          number_at<uint64_t>(record, 4) == kEnd64Bytes - 12 && number_at<uint32_t>(record, 16) == 0 &&
                          number_at<uint32_t>(record, 20) == 0 &&
                          number_at<uint64_t>(record, 24) == number_at<uint64_t>(record, 32);
    FSDP_CHECK_WITH(FileError, is_whole, source_, ": the zip archive's end is damaged");
    return {number_at<uint64_t>(record, 48), number_at<uint64_t>(record, 40), number_at<uint64_t>(record, 32)};
  }

  uint64_t length_;
  const std::string& source_;
  std::string tail_;
};

class EntryParser {
 public:
  EntryParser(std::string_view directory, const std::string& source) : left_(directory), source_(source) {}

  bool is_at_end() const { return left_.empty(); }

  Entry next() {
    const std::string_view header = take(kCentralBytes);
    FSDP_CHECK_WITH(FileError, number_at<uint32_t>(header, 0) == kCentralSignature, source_,
                    ": the zip directory is damaged");
    Entry entry;
    entry.flags = number_at<uint16_t>(header, 8);
    entry.crc32 = number_at<uint32_t>(header, 16);
    uint64_t stored = number_at<uint32_t>(header, 20);
    entry.bytes = number_at<uint32_t>(header, 24);
    entry.header = number_at<uint32_t>(header, 42);
    entry.name = take(number_at<uint16_t>(header, 28));
    const std::string_view extra = take(number_at<uint16_t>(header, 30));
    take(number_at<uint16_t>(header, 32));  // comment
    read_64({&entry.bytes, &stored, &entry.header}, extra, entry.name);
    check(entry, number_at<uint16_t>(header, 10), stored);
    return entry;
  }

 private:
  std::string_view take(size_t bytes) {
    FSDP_CHECK_WITH(FileError, bytes <= left_.size(), source_, ": the zip directory ends within an entry");
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }

  // Reads the numbers that did not fit into 32 bits, in this order.
  void read_64(const std::vector<uint64_t*>& numbers, std::string_view extra, const std::string& name) const {
    std::string_view wide;
    while (extra.size() >= 4) {
      const size_t bytes = number_at<uint16_t>(extra, 2);
      FSDP_CHECK_WITH(FileError, bytes <= extra.size() - 4, where(name), "its extra field is damaged");
      if (number_at<uint16_t>(extra, 0) == kExtra64) wide = extra.substr(4, bytes);
      extra.remove_prefix(4 + bytes);
    }
    for (uint64_t* number : numbers) {
      if (*number != kIn64) continue;
      FSDP_CHECK_WITH(FileError, wide.size() >= 8, where(name), "a 64-bit number is missing");
      *number = number_at<uint64_t>(wide, 0);
      wide.remove_prefix(8);
    }
  }

  void check(const Entry& entry, uint16_t method, uint64_t stored) const {
    FSDP_CHECK_WITH(FileError, method == kStored && stored == entry.bytes, where(entry.name),
                    "is compressed, which torch.save does not do");
    FSDP_CHECK_WITH(FileError, (entry.flags & ~(kSizesFollowData | kUtf8Names)) == 0, where(entry.name),
                    "has zip flags ", entry.flags, ", which are not supported (encryption is one)");
  }

  std::string where(const std::string& name) const { return source_ + ": record " + quoted_name(name) + ": "; }

  std::string_view left_;
  const std::string& source_;
};

}  // namespace

Directory read_directory(const InputFile& file, uint64_t offset, uint64_t length, const std::string& source) {
  const Extent extent = End(file, offset, length, source).find();
  const std::string bytes = file.read(offset + extent.begin, extent.bytes);
  EntryParser parser(bytes, source);
  Directory directory{extent.begin, {}};
  while (!parser.is_at_end()) directory.entries.push_back(parser.next());
  FSDP_CHECK_WITH(FileError, directory.entries.size() == extent.count, source, ": the zip directory has ",
                  directory.entries.size(), " entries, but says ", extent.count);
  return directory;
}

}  // namespace fsdp::formats::zip
