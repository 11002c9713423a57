#include "sparse/row_files.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "formats/safetensors/safetensors.h"
#include "formats/safetensors/safetensors_writer.h"

namespace fsdp::sparse {
namespace {

using formats::SafetensorsFile;
using formats::TensorInfo;
using std::filesystem::path;

std::string file_name(int rank, int size) { return c10::str("rows-", rank, "-of-", size, ".safetensors"); }

// A kind of state that is saved for each table: rows, and for some optimizers squares.
struct StateKind {
  const char* suffix;
  std::vector<EmbeddingPiece> pieces;
};

std::vector<StateKind> states_of(const SplitEmbedding& embedding, const RowOptimizer* optimizer) {
  std::vector<StateKind> states{{"", embedding.pieces()}};
  if (optimizer != nullptr && optimizer->squares().defined()) {
    states.push_back({".squares", embedding.pieces_of(optimizer->squares())});
  }
  return states;
}

int64_t number_in(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  FSDP_CHECK_WITH(FileError, found != file.metadata().end(), file.path().string(), " has no \"", key,
                  "\" in its metadata: it is not a file of embedding rows");
  int64_t value = 0;
  const char* end = found->second.data() + found->second.size();
  const auto [rest, error] = std::from_chars(found->second.data(), end, value);
  FSDP_CHECK_WITH(FileError, error == std::errc() && rest == end && value >= 0, file.path().string(), ": \"", key,
                  "\" is \"", found->second, "\", expected a number of rows");
  return value;
}

// Returns N of the files rows-R-of-N.safetensors in the folder.
int ranks_that_saved(const path& folder) {
  std::optional<std::string> size;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const size_t of = name.find("-of-"), end = name.rfind(".safetensors");
    if (name.rfind("rows-", 0) != 0 || of == std::string::npos || end == std::string::npos || end <= of + 4) continue;
    const std::string text = name.substr(of + 4, end - of - 4);
    FSDP_CHECK_WITH(FileError, !size || *size == text, folder.string(), " has rows of several saves: of ", *size,
                    " and of ", text, " ranks. Keep one of them");
    size = text;
  }
  FSDP_CHECK_WITH(FileError, size, folder.string(), " has no files rows-R-of-N.safetensors");
  int number = 0;
  const auto [rest, error] = std::from_chars(size->data(), size->data() + size->size(), number);
  FSDP_CHECK_WITH(FileError, error == std::errc() && rest == size->data() + size->size() && number > 0, folder.string(),
                  ": the name of a file of rows gives \"", *size, "\" as the number of ranks");
  return number;
}

std::vector<SafetensorsFile> open_files(const path& folder) {
  const int size = ranks_that_saved(folder);
  std::vector<SafetensorsFile> files;
  for (int rank = 0; rank < size; ++rank) {
    const path file = folder / file_name(rank, size);
    FSDP_CHECK_WITH(FileError, std::filesystem::exists(file), file.string(), " is missing: it holds the rows of rank ",
                    rank, " of the run that saved");
    files.emplace_back(file);
  }
  return files;
}

// Checks that the stored tensor has as many numbers in each row as the piece, and that both belong to tables with the
// same number of rows.
void check_stored(const SafetensorsFile& file, const std::string& name, const EmbeddingPiece& piece) {
  FSDP_CHECK_WITH(FileError, file.contains(name), file.path().string(), " has no tensor ", name);
  std::vector<int64_t> expected = piece.values.sizes().vec();
  const std::vector<int64_t>& stored = file.info(name).shape;
  const int64_t rows = number_in(file, piece.name + ".rows");
  FSDP_CHECK_WITH(FileError, rows == piece.rows, file.path().string(), ": ", piece.name, " has ", rows,
                  " rows, expected ", piece.rows);
  FSDP_CHECK_WITH(FileError, stored.size() == expected.size() && (stored.size() < 2 || stored[1] == expected[1]),
                  file.path().string(), ": ", name, " has sizes [", c10::Join(", ", stored),
                  "], expected rows of the width in [", c10::Join(", ", expected), "]");
}

// Reads the rows that both the file and the piece contain. Returns their number.
int64_t read_overlap(const SafetensorsFile& file, const std::string& name, const EmbeddingPiece& piece) {
  check_stored(file, name, piece);
  const int64_t stored_begin = number_in(file, piece.name + ".begin");
  const int64_t begin = std::max(piece.begin, stored_begin);
  const int64_t end = std::min(piece.begin + piece.values.size(0), stored_begin + file.info(name).shape[0]);
  if (begin >= end) return 0;
  const at::Tensor rows = piece.values.narrow(0, begin - piece.begin, end - begin).view(-1);
  const int64_t width = rows.numel() / (end - begin);
  file.read_range(name, (begin - stored_begin) * width, (end - stored_begin) * width, rows);
  return end - begin;
}

}  // namespace

void save_rows(const path& folder, const SplitEmbedding& embedding, const RowOptimizer* optimizer) {
  const std::vector<StateKind> states = states_of(embedding, optimizer);
  std::vector<TensorInfo> layout;
  std::map<std::string, std::string> metadata;
  for (const StateKind& state : states) {
    for (const EmbeddingPiece& piece : state.pieces) {
      layout.push_back({piece.name + state.suffix, piece.values.scalar_type(), piece.values.sizes().vec()});
      metadata[piece.name + ".begin"] = c10::str(piece.begin);
      metadata[piece.name + ".rows"] = c10::str(piece.rows);
    }
  }
  const Communicator& ranks = *embedding.group().ranks;
  formats::SafetensorsWriter writer(folder / file_name(ranks.rank(), ranks.size()), layout, metadata);
  for (const StateKind& state : states) {
    for (const EmbeddingPiece& piece : state.pieces) writer.write(piece.name + state.suffix, piece.values);
  }
  writer.finish();
}

void load_rows(const path& folder, SplitEmbedding& embedding, RowOptimizer* optimizer) {
  const at::NoGradGuard no_grad;
  const std::vector<SafetensorsFile> files = open_files(folder);
  for (const StateKind& state : states_of(embedding, optimizer)) {
    for (const EmbeddingPiece& piece : state.pieces) {
      int64_t read = 0;
      for (const SafetensorsFile& file : files) read += read_overlap(file, piece.name + state.suffix, piece);
      FSDP_CHECK_WITH(FileError, read == piece.values.size(0), folder.string(), ": the files hold ", read, " of the ",
                      piece.values.size(0), " rows of ", piece.name, state.suffix, " from row ", piece.begin, " on");
    }
  }
}

}  // namespace fsdp::sparse
