// Reads a zip archive in the middle of a file.
#include "formats/torch_archive/zip_archive.h"

#include <algorithm>
#include <optional>

#include "formats/common/crc32.h"
#include "formats/torch_archive/zip_format.h"
#include "reader_check.h"

using namespace fsdp;

namespace {

constexpr uint64_t kAround = 100;  // bytes of the file before and after the archive

void check_places(const formats::ZipArchive& zip, uint64_t bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const formats::ZipRecord& record : zip.records()) {
    fuzz::require(zip.find(record.name) == &record, "records are found by name, and no name is there twice");
    places.emplace_back(record.offset, record.bytes);
  }
  std::sort(places.begin(), places.end());
  uint64_t taken = kAround;
  for (const auto& [offset, length] : places) {
    fuzz::require(offset >= taken + formats::zip::kLocalBytes, "records and their headers share no bytes");
    taken = offset + length;
    fuzz::require(length <= taken && taken + formats::zip::kEndBytes <= kAround + bytes, "records lie in the archive");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::TemporaryFolder folder;
  const std::string text(fuzz::text_of(data, size)), around(kAround, '.');
  const formats::InputFile file(folder.write("x.zip", around + text + around));
  std::optional<formats::ZipArchive> zip;
  fuzz::check_reader(size, "Z: ", [&] { zip.emplace(file, kAround, size, "Z"); });
  if (!zip) return 0;
  check_places(*zip, size);
  for (const formats::ZipRecord& record : zip->records()) {
    const std::string stored = text.substr(record.offset - kAround, record.bytes);
    bool is_read = false, is_verified = false;
    fuzz::check_reader(size, "Z: record ", [&] {
      fuzz::require(zip->read(record, size) == stored, "a record has the bytes that lie there");
      is_read = true;
    });
    fuzz::check_reader(size, "Z: record ", [&] {
      zip->verify(record);
      is_verified = true;
    });
    const bool is_right = formats::crc32_of(stored) == record.crc32;
    fuzz::require(is_read == is_right && is_verified == is_right, "a record is read if it has its checksum");
  }
  return 0;
}
