// Archives of torch.save that targets pack from pieces of their input: mutations then need not guess checksums and
// places.
#pragma once

#include <filesystem>
#include <string>

namespace fsdp::fuzz {

struct ArchivePieces {
  std::string pickle;   // data.pkl
  std::string storage;  // data/0
  std::string order = "little";
  std::string version = "3\n";
};

// The length of an archive is a multiple of it: what names the archive's place stays right when a piece grows a little.
constexpr size_t kArchiveUnit = 2048;

// A file of one archive with these records or, where `pickle` begins as a zip archive does, with those bytes.
void write_archive(const std::filesystem::path& path, const ArchivePieces& pieces);

// The pieces of the archive in a file.
ArchivePieces read_pieces(const std::filesystem::path& path);

}  // namespace fsdp::fuzz
