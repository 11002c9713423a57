#include "formats/torch_archive/zip_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/common/crc32.h"
#include "formats/testing/pickles.h"
#include "formats/torch_archive/zip_format.h"
#include "formats/torch_archive/zip_writer.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"

namespace fsdp::formats::zip_archive_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kNoError;
using ::testing::StartsWith;
using testing::TemporaryFolder;

// An archive of "a/x" and "a/y" that begins 100 bytes into a file.
constexpr uint64_t kBefore = 100;

class Archive : public ::testing::Test {
 protected:
  Archive() {
    {
      OutputFile file(folder / "zip");
      file.write(0, std::string(kBefore, '.'));
      ZipWriter writer(file, kBefore);
      writer.begin("a/x");
      writer.append("some ");
      writer.append("bytes");
      writer.add("a/y", "");
      writer.finish();
      file.commit();
    }
    bytes = read_file(folder / "zip", 1 << 20).substr(kBefore);
  }

  // Returns the error of opening these bytes and reading both records.
  std::string error(const std::string& archive) const {
    folder.write("changed", std::string(kBefore, '.') + archive);
    return error_of([&] {
      const InputFile file(folder / "changed");
      const ZipArchive zip(file, kBefore, archive.size(), "Z");
      const ZipRecord *x = zip.find("a/x"), *y = zip.find("a/y");
      TORCH_CHECK(x != nullptr && y != nullptr, "Z: a name is gone");
      EXPECT_EQ(zip.read(*x, 100), "some bytes");
      EXPECT_EQ(zip.read(*y, 100), "");
      zip.verify(*x);
    });
  }
  template <typename Number>
  std::string error_with(size_t at, Number number) const {
    std::string changed = bytes, field;
    zip::add_number(field, number);
    changed.replace(at, field.size(), field);
    return error(changed);
  }
  size_t directory() const { return bytes.find("PK\x01\x02"); }
  size_t second_entry() const { return bytes.find("PK\x01\x02", directory() + 1); }
  size_t end() const { return bytes.find("PK\x05\x06"); }

  TemporaryFolder folder;
  std::string bytes;
};

TEST(Crc32, IsThatOfZip) {
  EXPECT_EQ(crc32_of(""), 0u);
  EXPECT_EQ(crc32_of("123456789"), 0xcbf43926u);  // the check value of the standard
  EXPECT_EQ(crc32_of("6789", crc32_of("12345")), 0xcbf43926u);
  EXPECT_EQ(crc32_of(std::string(1000, '\0')), crc32_of(std::string(990, '\0'), crc32_of(std::string(10, '\0'))));
}

TEST_F(Archive, IsRead) {
  EXPECT_EQ(error(bytes), kNoError);
  const InputFile file(folder / "zip");
  const ZipArchive zip(file, kBefore, bytes.size(), "Z");
  ASSERT_EQ(zip.records().size(), 2u);
  EXPECT_EQ(zip.find("a/z"), nullptr);
  for (const ZipRecord& record : zip.records()) EXPECT_EQ((record.offset - kBefore) % 64, 0u) << record.name;
  EXPECT_THAT(error_of([&] { zip.read(zip.records()[0], 9); }), AllOf(HasSubstr("\"a/x\""), HasSubstr("limit of 9")));
}

TEST_F(Archive, CutAnywhere) {
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THAT(error(bytes.substr(0, length)), HasSubstr("Z: has no zip end record at its end")) << length;
  }
  const InputFile file(folder / "zip");
  EXPECT_THAT(error_of([&] { ZipArchive(file, kBefore, bytes.size() + 1, "Z"); }), HasSubstr("cut short"));
  EXPECT_THAT(error_of([&] { ZipArchive(file, UINT64_MAX, 1, "Z"); }), HasSubstr("cut short"));
}

// The records are unchanged, or there is an error.
TEST_F(Archive, AnyByteChanged) {
  size_t noticed = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
    const std::string what = error(changed);
    noticed += what == kNoError ? 0 : 1;
    EXPECT_THAT(what, AnyOf(kNoError, StartsWith("Z"))) << at;
  }
  EXPECT_GT(noticed, 100u);  // all but versions, times, attributes and padding
}

TEST_F(Archive, HostileNumbers) {
  EXPECT_THAT(error_with(directory() + 10, uint16_t{8}), HasSubstr("\"a/x\": is compressed"));
  EXPECT_THAT(error_with(directory() + 24, uint32_t{11}), HasSubstr("is compressed"));
  EXPECT_THAT(error_with(directory() + 8, uint16_t{1}), HasSubstr("encryption"));
  EXPECT_THAT(error_with(directory() + 16, uint32_t{1}), AllOf(HasSubstr("\"a/x\""), HasSubstr("CRC-32")));
  EXPECT_THAT(error_with(directory() + 42, uint32_t{0x7fffffff}), HasSubstr("outside of the records"));
  EXPECT_THAT(error_with(directory() + 42, uint32_t{0xffffffff}), HasSubstr("64-bit number is missing"));
  EXPECT_THAT(error_with(directory() + 28, uint16_t{0xffff}), HasSubstr("ends within an entry"));
  EXPECT_THAT(error_with(26, uint16_t{0xffff}), HasSubstr("reach beyond"));
  EXPECT_THAT(error_with(end() + 10, uint16_t{3}), HasSubstr("split"));
  EXPECT_THAT(error_with(end() + 12, uint32_t{0xffffffff}), HasSubstr("does not end at byte"));
  EXPECT_THAT(error_with(end() + 16, uint32_t{0xfffffff0}), HasSubstr("does not end at byte"));
  EXPECT_THAT(error_with(end() + 8, uint32_t{0xffffffff}), HasSubstr("says 65535"));
}

TEST_F(Archive, RecordsThatShareBytesOrNames) {
  std::string one_place = bytes, one_name = bytes;
  one_place.replace(second_entry() + 42, 4, std::string(4, '\0'));  // the header of the other record
  EXPECT_THAT(error(one_place), AllOf(HasSubstr("\"a/y\""), HasSubstr("header is not the one")));
  one_name[second_entry() + zip::kCentralBytes + 2] = 'x';
  EXPECT_THAT(error(one_name), AllOf(HasSubstr("\"a/x\""), HasSubstr("occurs twice")));
}

// Small pieces are written together, large ones at once, and headers follow their data: in any order of sizes.
TEST(ZipWriter, PiecesOfAnySizeAreInTheirPlaces) {
  constexpr size_t kPending = size_t{64} << 10;
  const std::vector<size_t> sizes{1, kPending - 1, 0, kPending, kPending + 1, 7, 3 * kPending, kPending / 2, 5};
  const TemporaryFolder folder;
  for (size_t piece : {size_t{1000}, kPending - 40, kPending, 10 * kPending}) {
    OutputFile target(folder / "zip");
    ZipWriter writer(target, kBefore);
    const auto data_of = [&](size_t record) {
      std::string data(sizes[record], '\0');
      for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(record + i % 251);
      return data;
    };
    for (size_t record = 0; record < sizes.size(); ++record) {
      writer.begin(std::to_string(record));
      const std::string data = data_of(record);
      for (size_t at = 0; at < data.size(); at += piece) writer.append(std::string_view(data).substr(at, piece));
    }
    const uint64_t end = writer.finish();
    target.commit();
    const InputFile file(folder / "zip");
    ASSERT_EQ(file.bytes(), end);
    const ZipArchive zip(file, kBefore, end - kBefore, "Z");
    for (size_t record = 0; record < sizes.size(); ++record) {
      const ZipRecord* found = zip.find(std::to_string(record));
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(zip.read(*found, 1 << 20), data_of(record)) << record << ", pieces of " << piece;
    }
  }
}

// A record whose data contain the header of another record: both headers are valid, but they share bytes.
TEST_F(Archive, RecordWithinAnother) {
  OutputFile file(folder / "outer");
  ZipWriter writer(file, 0);
  const size_t inner = bytes.find("PK\x03\x04", 4);  // the header of "a/y", which is empty
  writer.add("a/x", bytes.substr(inner, directory() - inner));
  const uint64_t end = writer.finish();
  file.commit();
  std::string outer = read_file(folder / "outer", 1 << 20);
  ASSERT_EQ(outer.size(), end);
  const size_t at = outer.find("PK\x01\x02");
  std::string entry = bytes.substr(second_entry(), this->end() - second_entry());
  entry.replace(42, 4, pickled::little_endian(outer.find("PK\x03\x04", 4), 4));
  const std::string tail = outer.substr(outer.find("PK\x05\x06"));
  outer = outer.substr(0, outer.size() - tail.size()) + entry + tail;
  const size_t end_at = outer.size() - tail.size();
  outer.replace(end_at + 8, 2, pickled::little_endian(2, 2)).replace(end_at + 10, 2, pickled::little_endian(2, 2));
  outer.replace(end_at + 12, 4, pickled::little_endian(end_at - at, 4));
  EXPECT_THAT(error(outer), HasSubstr("records \"a/x\" and \"a/y\" share bytes"));
}

}  // namespace
}  // namespace fsdp::formats::zip_archive_test
