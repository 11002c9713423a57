#include "sparse/saved_rows.h"

#include <string>
#include <utility>

namespace fsdp::sparse {
namespace {

SplitTensor split_tensor(const std::string& embedding, const EmbeddingPiece& piece, const char* state) {
  std::vector<int64_t> sizes = piece.values.sizes().vec();
  sizes[0] = piece.rows;
  return {embedding + "." + piece.name, state, std::move(sizes), piece.begin, piece.values};
}

}  // namespace

std::vector<SplitTensor> rows_to_save(const SplitEmbedding& embedding, const RowOptimizer* optimizer) {
  const std::string& name = embedding.group().name;
  std::vector<SplitTensor> split;
  for (const EmbeddingPiece& piece : embedding.pieces()) split.push_back(split_tensor(name, piece, ""));
  if (optimizer != nullptr && optimizer->squares().defined()) {
    for (const EmbeddingPiece& piece : embedding.pieces_of(optimizer->squares())) {
      split.push_back(split_tensor(name, piece, "squares"));
    }
  }
  return split;
}

}  // namespace fsdp::sparse
