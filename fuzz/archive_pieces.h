// torch.save archives that fuzz targets pack from pieces of their input, so that mutations need not guess checksums and
// offsets.
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

// The length of an archive is a multiple of this number. A stored offset or length of an archive therefore stays right
// when a piece grows a little.
constexpr size_t kArchiveUnit = 2048;

// Writes a file with one archive of these records. If `pickle` begins like a zip archive, the file contains exactly
// those bytes instead.
void write_archive(const std::filesystem::path& path, const ArchivePieces& pieces);

// Returns the pieces of the archive in a file.
ArchivePieces read_pieces(const std::filesystem::path& path);

}  // namespace fsdp::fuzz
