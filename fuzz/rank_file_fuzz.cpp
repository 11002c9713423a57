// Reads the descriptions that ranks give of their files. The input contains the descriptions of two ranks, which are
// added to one manifest.
#include <optional>

#include "formats/own/manifest.h"
#include "reader_check.h"

using namespace fsdp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  formats::Manifest manifest;
  for (const std::string& text : fuzz::split_files(fuzz::text_of(data, size), 2)) {
    std::optional<formats::RankFile> file;
    fuzz::check_reader(size, "rank file", [&] { file = formats::parse_rank_file(text, "rank file"); });
    if (file) {
      const std::string written = rank_file_text(*file);
      fuzz::require(rank_file_text(formats::parse_rank_file(written, "again")) == written,
                    "what is written reads back");
      fuzz::check_reader(size, "tensor ", [&] { add_rank_file(*file, manifest); });
    }
  }
  fuzz::check_reader(size, "manifest.json", [&] { manifest_text(manifest, "manifest.json"); });
  return 0;
}
