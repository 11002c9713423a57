#include "formats/torch_archive/zip_writer.h"

#include <algorithm>

#include "base/check.h"
#include "formats/common/crc32.h"
#include "formats/torch_archive/zip_format.h"

namespace fsdp::formats {
namespace {

using namespace zip;

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kMaxPendingBytes = uint64_t{64} << 10;
constexpr uint16_t kPadding = 0x4246;  // the extra field that torch.save uses for padding

// Returns the fields that a record's own header and its entry in the directory share.
std::string common_fields(uint32_t crc32, uint32_t bytes, size_t name_bytes, size_t extra_bytes) {
  std::string fields;
  add_number<uint16_t>(fields, 0);  // version needed
  add_number<uint16_t>(fields, kUtf8Names);
  add_number<uint16_t>(fields, kStored);
  add_number<uint32_t>(fields, 0);  // time
  add_number<uint32_t>(fields, crc32);
  add_number<uint32_t>(fields, bytes);
  add_number<uint32_t>(fields, bytes);
  add_number<uint16_t>(fields, static_cast<uint16_t>(name_bytes));
  add_number<uint16_t>(fields, static_cast<uint16_t>(extra_bytes));
  return fields;
}

std::string signature(uint32_t number) {
  std::string bytes;
  add_number(bytes, number);
  return bytes;
}

}  // namespace

void ZipWriter::begin(const std::string& name) {
  end_record();
  Record record;
  record.name = name;
  record.header = place(end_);
  const uint64_t least = record.header + kLocalBytes + name.size() + 4;  // with an empty extra field
  record.data = place(begin_ + (least + kAlignment - 1) / kAlignment * kAlignment);
  end_ = begin_ + record.data;
  records_.push_back(record);
  is_open_ = true;
}

void ZipWriter::append(std::string_view bytes) {
  put(end_, bytes);
  end_ += bytes.size();
  Record& record = records_.back();
  record.crc32 = crc32_of(bytes, record.crc32);
  record.bytes = place(end_) - record.data;
}

void ZipWriter::add(const std::string& name, std::string_view bytes) {
  begin(name);
  append(bytes);
}

// Writes the header last, when the checksum is known.
void ZipWriter::end_record() {
  if (!is_open_) return;
  const Record& record = records_.back();
  const size_t extra = record.data - record.header - kLocalBytes - record.name.size();
  std::string header =
      signature(kLocalSignature) + common_fields(record.crc32, record.bytes, record.name.size(), extra) + record.name;
  add_number<uint16_t>(header, kPadding);
  add_number<uint16_t>(header, static_cast<uint16_t>(extra - 4));
  header.append(extra - 4, 'Z');
  put(begin_ + record.header, header);
  is_open_ = false;
}

uint64_t ZipWriter::finish() {
  end_record();
  std::string directory;
  for (const Record& record : records_) {
    directory += signature(kCentralSignature) + std::string(2, '\0') +
                 common_fields(record.crc32, record.bytes, record.name.size(), 0) + std::string(10, '\0');
    add_number(directory, record.header);
    directory += record.name;
  }
  std::string end = signature(kEndSignature) + std::string(4, '\0');
  add_number(end, static_cast<uint16_t>(records_.size()));
  add_number(end, static_cast<uint16_t>(records_.size()));
  add_number(end, static_cast<uint32_t>(directory.size()));
  add_number(end, place(end_));
  end += std::string(2, '\0');
  put(end_, directory + end);
  write_pending();
  return end_ + directory.size() + end.size();
}

// An archive of one small tensor consists of nine pieces. Where there are 100,000 archives, a system call for each
// piece would take a third of the time.
void ZipWriter::put(uint64_t offset, std::string_view bytes) {
  const bool is_after = offset >= pending_begin_;
  if (is_after && offset + bytes.size() - pending_begin_ <= kMaxPendingBytes) {
    const uint64_t at = offset - pending_begin_;
    pending_.resize(std::max<size_t>(pending_.size(), at + bytes.size()));
    std::copy(bytes.begin(), bytes.end(), pending_.begin() + static_cast<std::ptrdiff_t>(at));
    return;
  }
  if (is_after) {
    write_pending();
    pending_begin_ = offset + bytes.size();
  }
  file_.write(offset, bytes);
}

void ZipWriter::write_pending() {
  file_.write(pending_begin_, pending_);
  pending_begin_ += pending_.size();
  pending_.clear();
}

uint32_t ZipWriter::place(uint64_t offset) const {
  FSDP_CHECK_WITH(FileError, offset - begin_ < kIn64, file_.target().string(), ": a zip archive of ", offset - begin_,
                  " bytes; they must be less than 4 GiB");
  return static_cast<uint32_t>(offset - begin_);
}

}  // namespace fsdp::formats
