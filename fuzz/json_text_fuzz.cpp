// Reads JSON text with the parser that all JSON readers use.
#include "formats/common/json_text.h"
#include "reader_check.h"

using namespace fsdp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::check_reader(size, "x.json:", [&] {
    fuzz::require(formats::quoted_name(text).size() < 2000, "names in errors are short");
    const nlohmann::json value = formats::parse_json(text, "x.json");
    fuzz::require(text.find('\0') == std::string_view::npos, "the whole text was read");
    fuzz::require(formats::json_text(value).size() < 2000, "values in errors are short");
    fuzz::require(formats::parse_json(value.dump(), "again") == value, "what is written reads back");
  });
  return 0;
}
