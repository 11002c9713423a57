#include "formats/torch_archive/zip_archive.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "formats/common/crc32.h"
#include "formats/common/json_text.h"
#include "formats/torch_archive/zip_directory.h"
#include "formats/torch_archive/zip_format.h"

namespace fsdp::formats {
namespace {

using namespace zip;

std::string where_of(const std::string& source, const std::string& name) {
  return source + ": record " + quoted_name(name) + ": ";
}

// Returns the offset in the archive of the data after an entry's header. Throws unless the header agrees with the
// directory.
uint64_t data_of(const Entry& entry, const InputFile& file, uint64_t offset, uint64_t end, const std::string& where) {
  FSDP_CHECK_WITH(FileError, entry.header <= end && kLocalBytes <= end - entry.header, where,
                  "its header lies outside of the records");
  const std::string header = file.read(offset + entry.header, kLocalBytes);
  const size_t name_bytes = number_at<uint16_t>(header, 26);
  const uint64_t data = entry.header + kLocalBytes + name_bytes + number_at<uint16_t>(header, 28);
  FSDP_CHECK_WITH(FileError, data <= end && entry.bytes <= end - data, where, entry.bytes,
                  " bytes reach beyond the records' end");
  const bool same = number_at<uint32_t>(header, 0) == kLocalSignature &&
                    number_at<uint16_t>(header, 6) == entry.flags && number_at<uint16_t>(header, 8) == kStored &&
                    file.read(offset + entry.header + kLocalBytes, name_bytes) == entry.name;
  FSDP_CHECK_WITH(FileError, same, where,
                  "its header is not the one that the zip directory describes: the archive is damaged");
  if ((entry.flags & kSizesFollowData) == 0) {
    const auto crc32 = number_at<uint32_t>(header, 14), bytes = number_at<uint32_t>(header, 22);
    FSDP_CHECK_WITH(FileError, crc32 == entry.crc32 && (bytes == entry.bytes || bytes == kIn64), where,
                    "its header has another size or CRC-32 than the zip directory: the archive is damaged");
  }
  return data;
}

// Byte ranges of the archive, each owned by a record.
class Claims {
 public:
  explicit Claims(const std::string& source) : source_(source) {}

  void add(uint64_t begin, uint64_t end, const std::string& name) { claims_.push_back({begin, end, name}); }

  void check() {
    std::sort(claims_.begin(), claims_.end(), [](const Claim& a, const Claim& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < claims_.size(); ++i) {
      FSDP_CHECK_WITH(FileError, claims_[i - 1].end <= claims_[i].begin, source_, ": records ",
                      quoted_name(claims_[i - 1].name), " and ", quoted_name(claims_[i].name), " share bytes");
    }
  }

 private:
  struct Claim {
    uint64_t begin, end;
    std::string name;
  };
  const std::string& source_;
  std::vector<Claim> claims_;
};

}  // namespace

ZipArchive::ZipArchive(const InputFile& file, uint64_t offset, uint64_t length, std::string source)
    : file_(file), source_(std::move(source)) {
  FSDP_CHECK_WITH(FileError, offset <= file.bytes() && length <= file.bytes() - offset, source_, ": bytes ", offset,
                  " + ", length, " reach beyond the end of the file, which has ", file.bytes(), ": it was cut short");
  const Directory directory = read_directory(file, offset, length, source_);
  std::set<std::string_view> names;
  Claims claims(source_);
  for (const Entry& entry : directory.entries) {
    const std::string where = where_of(source_, entry.name);
    FSDP_CHECK_WITH(FileError, names.insert(entry.name).second, where, "occurs twice");
    const uint64_t data = data_of(entry, file, offset, directory.begin, where);
    claims.add(entry.header, data + entry.bytes, entry.name);
    records_.push_back({entry.name, offset + data, entry.bytes, entry.crc32});
  }
  claims.check();
}

const ZipRecord* ZipArchive::find(std::string_view name) const {
  const auto found =
      std::find_if(records_.begin(), records_.end(), [&](const ZipRecord& record) { return record.name == name; });
  return found == records_.end() ? nullptr : &*found;
}

std::string ZipArchive::read(const ZipRecord& record, uint64_t max_bytes) const {
  FSDP_CHECK_WITH(FileError, record.bytes <= max_bytes, where_of(source_, record.name), record.bytes,
                  " bytes are more than the limit of ", max_bytes);
  std::string bytes = file_.read(record.offset, record.bytes);
  check_crc(record, crc32_of(bytes));
  return bytes;
}

void ZipArchive::verify(const ZipRecord& record) const {
  constexpr uint64_t kBlock = uint64_t{1} << 20;
  uint32_t crc32 = 0;
  for (uint64_t at = 0; at < record.bytes; at += kBlock) {
    crc32 = crc32_of(file_.read(record.offset + at, std::min(kBlock, record.bytes - at)), crc32);
  }
  check_crc(record, crc32);
}

void ZipArchive::check_crc(const ZipRecord& record, uint32_t crc32) const {
  FSDP_CHECK_WITH(FileError, crc32 == record.crc32, where_of(source_, record.name),
                  "its bytes do not have the CRC-32 of the zip directory: the file is damaged, or was written without "
                  "checksums (torch.serialization.set_crc32_options)");
}

}  // namespace fsdp::formats
