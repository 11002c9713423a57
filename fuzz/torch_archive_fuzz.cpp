// Reads a torch.save archive. The input contains data.pkl, storage, byte order and version, or the whole archive.
#include "formats/torch_archive/torch_archive.h"

#include <cstring>
#include <optional>

#include "archive_pieces.h"
#include "formats/dcp/dcp_globals.h"
#include "reader_check.h"

using namespace fsdp;

namespace {

using formats::PickleValue;
using formats::StoredArray;

// Compares the array's dtype with the names in data.pkl.
void check_dtype(const PickleValue& tensor, const StoredArray& array) {
  const auto& arguments = tensor.arguments->items;
  const std::string& type = arguments[0]->arguments->items[1]->text;
  if (arguments.size() == 6) {
    fuzz::require(type == c10::str("torch.", c10::toString(array.dtype), "Storage"), "a dtype is its storage's");
  } else {
    const std::string dtype = "torch." + formats::dcp::dtype_name(array.dtype);
    fuzz::require(type == "torch.storage.UntypedStorage" && arguments[6]->text == dtype, "a dtype is the one given");
  }
}

// Returns the position of an element in the storage.
int64_t place_of(const StoredArray& array, int64_t element) {
  int64_t place = array.offset;
  for (size_t i = array.sizes.size(); i-- > 0;) {
    place += element % array.sizes[i] * array.strides[i];
    element /= array.sizes[i];
  }
  return place;
}

void check_array(const formats::TorchArchive& archive, const StoredArray& array) {
  const formats::ZipRecord& record = archive.storage(array);
  const size_t size = c10::elementSize(array.dtype);
  const int64_t numel = array.numel();
  fuzz::require(numel >= 0 && numel <= array.storage_numel, "a tensor has no more elements than its storage");
  fuzz::require(record.bytes == static_cast<uint64_t>(array.storage_numel) * size, "a storage has its size");
  std::string whole(static_cast<size_t>(numel) * size, '\0');
  archive.read(array, 0, numel, whole.data(), false);
  const std::string storage = archive.zip().read(record, record.bytes);
  for (int64_t i = 0; i < numel; ++i) {
    const int64_t place = place_of(array, i);
    fuzz::require(place >= 0 && place < array.storage_numel, "elements lie in the storage");
    fuzz::require(std::memcmp(whole.data() + static_cast<size_t>(i) * size,
                              storage.data() + static_cast<size_t>(place) * size, size) == 0,
                  "elements are those of the storage");
  }
  std::string part(static_cast<size_t>(numel - numel / 3) * size, '\0');
  archive.read(array, numel / 3, numel, part.data(), true);
  fuzz::require(whole.ends_with(part), "a part has the elements that the whole has");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::TemporaryFolder folder;
  static const std::string path = (folder / "x.pt").string();
  const std::string_view text = fuzz::text_of(data, size);
  const auto pieces = fuzz::split_files(text, text.starts_with("PK") ? 1 : 4);
  fuzz::write_archive(path, pieces.size() == 1 ? fuzz::ArchivePieces{pieces[0], ""}
                                               : fuzz::ArchivePieces{pieces[0], pieces[1], pieces[2], pieces[3]});
  const formats::InputFile file(path);
  std::optional<formats::TorchArchive> archive;
  fuzz::check_reader(size, path, [&] { archive.emplace(file, 0, file.bytes(), path); });
  if (archive) {
    fuzz::check_reader(size, path, [&] {
      const StoredArray array = parse_array(archive->value(), path);
      check_dtype(archive->value(), array);
      check_array(*archive, array);
    });
    fuzz::check_reader(size, path, [&] { archive->plain_value(); });
  }
  return 0;
}
