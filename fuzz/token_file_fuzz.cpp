// Reads a file of tokens. The first byte of the input selects the kind of file.
#include "data/token_source.h"
#include "reader_check.h"

using namespace fsdp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::TemporaryFolder folder;
  if (size == 0) return 0;
  static constexpr struct {
    const char* name;
    int64_t vocab_size;
  } kKinds[] = {{"tokens.txt", 200}, {"tokens.txt", 256}, {"tokens.bin", 50'000}, {"tokens.bin", 100'000}};
  const auto& kind = kKinds[data[0] % 4];
  const std::string path = (folder / kind.name).string();
  folder.write(kind.name, std::string(fuzz::text_of(data + 1, size - 1)));
  fuzz::check_reader(size, path, [&] {
    const auto tokens = trainer::open_token_file(path, kind.vocab_size);
    std::vector<int64_t> ids(static_cast<size_t>(tokens->size()));
    tokens->read(0, tokens->size(), ids.data());
    for (const int64_t id : ids) fuzz::require(id >= 0 && id < kind.vocab_size, "ids are below the vocabulary size");
  });
  return 0;
}
