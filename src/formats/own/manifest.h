// manifest.json of a training checkpoint: which file holds which part of which tensor, with sizes and checksums.
//
//   {"checksum":"<16 hexadecimal digits>","content":{
//     "format": "fsdp.cpp checkpoint", "version": 1, "block_bytes": 1048576,
//     "files": [{"name": "rank-00000.safetensors", "bytes": 4096, "header_bytes": 96, "header_checksum": "…"}, …],
//     "tensors": {"model/head.weight": {"dtype": "F32", "shape": [3, 5], "strides": [1, 3],
//        "parts": [{"begin": 0, "end": 8, "file": 0, "offset": 96, "checksums": "…"}, …]}, …},
//     "state": {…}}}
//
// checksum: covers the text of `content`, all bytes from its first brace to the brace before the last one of the file.
// begin, end: elements, in the order in which the tensor lies in memory: row-major, or as given by `strides`, which is
// present only if the order is another one. offset: of the part's first byte in its file. checksums: one for each block
// of block_bytes of the part, 16 digits each. state: all other contents of the checkpoint. All checksums are XXH3 with
// 64 bits.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "formats/common/tensor_info.h"

namespace fsdp::formats {

constexpr const char* kManifestName = "manifest.json";

struct StoredFile {
  std::string name;  // in the manifest's folder
  uint64_t bytes = 0;
  uint64_t header_bytes = 0;  // bytes before the data
  uint64_t header_checksum = 0;
};

struct StoredPart {
  int64_t begin = 0;
  int64_t end = 0;
  size_t file = 0;
  uint64_t offset = 0;
  std::vector<uint64_t> checksums;
};

struct StoredTensor {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;   // empty: row-major
  std::vector<StoredPart> parts;  // in the order of their elements

  int64_t numel() const { return TensorInfo{"", dtype, shape}.numel(); }
};

struct Manifest {
  std::vector<StoredFile> files;
  std::map<std::string, StoredTensor> tensors;
  nlohmann::json state = nlohmann::json::object();
};

// The data that one rank has written.
struct RankFile {
  StoredFile file;
  std::map<std::string, StoredTensor> tensors;  // the parts' `file` is ignored
};
// Converts a RankFile to text, for the rank that writes the manifest, and back.
std::string rank_file_text(const RankFile& file);
RankFile parse_rank_file(std::string_view text, const std::string& source);
// Adds a rank's file to the manifest. Throws if a tensor's dtype, shape or strides differ from those of another rank.
void add_rank_file(RankFile file, Manifest& manifest);

// Returns the manifest's text, with the parts of each tensor sorted. Throws the errors of parse_manifest, so a manifest
// that could not be read is not written.
std::string manifest_text(Manifest manifest, const std::string& source);

// Parses a manifest and treats its text as if an attacker had written it. Checks the checksum, all types, file names
// (in this folder, not hidden, no duplicates) and shapes, that parts cover their tensor without gap or overlap, and
// that they lie in their file's data without sharing bytes. Errors begin with `source` and name the file or tensor.
Manifest parse_manifest(std::string_view text, const std::string& source);

}  // namespace fsdp::formats
