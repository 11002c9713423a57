// Reads the manifest of a checkpoint. The input is the whole file, or only its content, to which the target adds the
// checksum.
#include "formats/common/checksum.h"
#include "formats/own/manifest.h"
#include "reader_check.h"

using namespace fsdp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  const std::string whole = text.starts_with("{\"checksum\"") ? std::string(text) : fuzz::with_checksum(text);
  std::string written;
  fuzz::check_reader(size, "manifest.json",
                     [&] { written = manifest_text(formats::parse_manifest(whole, "manifest.json"), "written"); });
  if (!written.empty()) {
    fuzz::require(manifest_text(formats::parse_manifest(written, "again"), "again") == written,
                  "what is written reads back");
  }
  return 0;
}
