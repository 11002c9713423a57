// Reads a checkpoint of torch.distributed.checkpoint. The input contains .metadata and, for each of two files, either
// the data.pkl and the storage of its archive, or the whole file and a part that is ignored.
#include "formats/dcp/dcp_folder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "archive_pieces.h"
#include "reader_check.h"

using namespace fsdp;

namespace {

using formats::DcpChunk;
using formats::DcpFolder;
using formats::DcpTensor;

// Limits the elements that are read: a tensor in .metadata may have any size. Both ends of a larger tensor are read.
constexpr int64_t kMaxElements = 2048;

std::string read(const DcpFolder& folder, const DcpTensor& tensor, int64_t begin, int64_t end) {
  const at::Tensor out = at::empty({end - begin}, at::TensorOptions(tensor.info.dtype));
  folder.read(tensor.info.name, begin, end, out);
  return {static_cast<const char*>(out.const_data_ptr()), out.nbytes()};
}

// Reads the elements of a chunk without the folder's reader.
std::string read_alone(const DcpFolder& folder, const DcpTensor& tensor, const DcpChunk& chunk) {
  const formats::InputFile file(folder.path() / chunk.location.path);
  const formats::TorchArchive archive(file, static_cast<uint64_t>(chunk.location.offset),
                                      static_cast<uint64_t>(chunk.location.length), file.path().string());
  const formats::StoredArray array = parse_array(archive.value(), file.path().string());
  fuzz::require(array.dtype == tensor.info.dtype && array.sizes == chunk.sizes, "archives are of their chunks");
  std::string bytes(static_cast<size_t>(array.numel()) * c10::elementSize(array.dtype), '\0');
  archive.read(array, 0, array.numel(), bytes.data(), false);
  if (array.dtype == c10::ScalarType::Bool) {
    std::transform(bytes.begin(), bytes.end(), bytes.begin(), [](char byte) { return byte == 0 ? '\0' : '\1'; });
  }
  return bytes;
}

// Returns the position in the tensor of an element of a chunk.
int64_t place_of(const DcpTensor& tensor, const DcpChunk& chunk, int64_t element) {
  int64_t place = 0, stride = 1;
  for (size_t i = chunk.sizes.size(); i-- > 0;) {
    place += (chunk.offsets[i] + element % chunk.sizes[i]) * stride;
    element /= chunk.sizes[i];
    stride *= tensor.info.shape[i];
  }
  return place;
}

void check_whole(const DcpFolder& folder, const DcpTensor& tensor, const std::string& whole) {
  const size_t size = c10::elementSize(tensor.info.dtype);
  std::vector<bool> known(whole.size() / size);
  for (const DcpChunk& chunk : tensor.chunks) {
    const std::string bytes = read_alone(folder, tensor, chunk);
    for (int64_t i = 0; static_cast<size_t>(i) * size < bytes.size(); ++i) {
      const auto place = static_cast<size_t>(place_of(tensor, chunk, i));
      fuzz::require(place < known.size() && !known[place], "chunks lie in the tensor and share no elements");
      known[place] = true;
      fuzz::require(std::memcmp(whole.data() + place * size, bytes.data() + static_cast<size_t>(i) * size, size) == 0,
                    "a tensor has the elements of its chunks");
    }
  }
  fuzz::require(std::find(known.begin(), known.end(), false) == known.end(), "each element is in a chunk");
}

void check_tensor(const DcpFolder& folder, const DcpTensor& tensor) {
  const int64_t numel = tensor.info.numel(), count = std::min(numel, kMaxElements);
  const std::string first = read(folder, tensor, 0, count), last = read(folder, tensor, numel - count, numel);
  fuzz::require(first.ends_with(read(folder, tensor, count / 3, count)), "a part has the elements that the whole has");
  for (const DcpChunk& chunk : tensor.chunks) folder.verify(tensor, chunk);
  if (count == numel) {
    fuzz::require(first == last, "what is read twice is the same");
    check_whole(folder, tensor, first);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::TemporaryFolder folder;
  const auto files = fuzz::split_files(fuzz::text_of(data, size), 5);
  folder.write(".metadata", files[0]);
  fuzz::write_archive(folder / "__0_0.distcp", {files[1], files[2]});
  fuzz::write_archive(folder / "__1_0.distcp", {files[3], files[4]});
  std::unique_ptr<const DcpFolder> saved;
  const auto check = [&](const std::function<void()>& read) { fuzz::check_reader(size, folder.path().string(), read); };
  check([&] { saved = std::make_unique<DcpFolder>(folder.path()); });
  if (saved) {
    for (const auto& entry : saved->metadata().tensors) check([&] { check_tensor(*saved, entry.second); });
    for (const auto& entry : saved->metadata().bytes) {
      check([&] { saved->verify_value(entry.first); });
      check([&] { saved->value(entry.first); });
    }
  }
  return 0;
}
