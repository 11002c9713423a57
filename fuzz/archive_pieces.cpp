#include "archive_pieces.h"

#include "formats/torch_archive/torch_archive.h"
#include "formats/torch_archive/zip_format.h"
#include "formats/torch_archive/zip_writer.h"

namespace fsdp::fuzz {
namespace {

using namespace formats::zip;

constexpr size_t kAlignment = 64;  // alignment of the data of records, see ZipWriter

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

class Packer {
 public:
  explicit Packer(formats::OutputFile& file) : zip_(file, 0) {}

  void add(const std::string& name, const std::string& bytes) {
    zip_.add(name, bytes);
    end_ = data_of(name) + bytes.size();
    directory_ += kCentralBytes + name.size();
  }
  void add_padding(const std::string& name) {
    const size_t least = data_of(name) + directory_ + kCentralBytes + name.size();
    add(name, std::string(round_up(least, kArchiveUnit) - least, '\0'));
  }
  void finish() { zip_.finish(); }

 private:
  // Returns the offset of the next record's data.
  size_t data_of(const std::string& name) const { return round_up(end_ + kLocalBytes + name.size() + 4, kAlignment); }

  formats::ZipWriter zip_;
  size_t end_ = 0, directory_ = kEndBytes;
};

}  // namespace

void write_archive(const std::filesystem::path& path, const ArchivePieces& pieces) {
  formats::OutputFile file(path);
  if (pieces.pickle.starts_with("PK")) {
    file.write(0, pieces.pickle);
  } else {
    Packer packer(file);
    packer.add("archive/data.pkl", pieces.pickle);
    packer.add("archive/byteorder", pieces.order);
    packer.add("archive/data/0", pieces.storage);
    packer.add("archive/version", pieces.version);
    packer.add_padding("archive/.padding");
    packer.finish();
  }
  file.commit();
}

ArchivePieces read_pieces(const std::filesystem::path& path) {
  const formats::InputFile file(path);
  const formats::ZipArchive zip(file, 0, file.bytes(), path.string());
  const auto read = [&](const char* name) {
    const formats::ZipRecord* record = zip.find(std::string("archive/") + name);
    return record == nullptr ? "" : zip.read(*record, file.bytes());
  };
  return {read("data.pkl"), read("data/0"), read("byteorder"), read("version")};
}

}  // namespace fsdp::fuzz
