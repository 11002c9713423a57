#include "state/rank_file_writer.h"

#include <utility>

#include "formats/safetensors/safetensors_writer.h"

namespace fsdp::state {

using formats::RankFile;
using formats::StoredTensor;
using formats::TensorInfo;

RankFile write_rank_file(const std::filesystem::path& path, const std::vector<Piece>& pieces,
                         const std::function<void()>& after_each) {
  std::vector<TensorInfo> layout;
  for (const Piece& piece : pieces) {
    if (piece.values.numel() > 0) layout.push_back(piece.stored());
  }
  formats::SafetensorsWriter writer(path, layout);
  RankFile file;
  for (const Piece& piece : pieces) {
    StoredTensor& tensor = file.tensors.try_emplace(piece.name, piece.tensor).first->second;
    if (piece.values.numel() == 0) continue;
    const TensorInfo stored = piece.stored();
    writer.write(stored.name, piece.values.view(stored.shape));
    auto place = writer.place(stored.name);
    tensor.parts.push_back(
        {piece.begin, piece.begin + piece.values.numel(), 0, place.offset, std::move(place.checksums)});
    if (after_each) after_each();
  }
  writer.finish();
  file.file = {path.filename().string(), writer.bytes(), writer.header_bytes(), writer.header_checksum()};
  return file;
}

}  // namespace fsdp::state
