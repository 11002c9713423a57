#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstdio>
#include <optional>

#include "checkpoint/manifest.h"
#include "checkpoint/output_file.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/staged_folder.h"
#include "state/held_part.h"
#include "state/leaf_names.h"
#include "state/together.h"
#include "state/training_state.h"

namespace fsdp {

namespace {

namespace fs = std::filesystem;
using checkpoint::Manifest;
using checkpoint::RankFile;
using checkpoint::StoredTensor;
using checkpoint::TensorInfo;
using nlohmann::json;

// Elements of one tensor that this rank writes.
struct Piece {
  std::string name;  // of the tensor
  StoredTensor tensor;
  int64_t begin;
  at::Tensor values;  // 1-D

  bool is_whole() const { return values.numel() == tensor.numel() && tensor.strides.empty(); }
  // In the file: under the tensor's name and shape where all of it is there, in order.
  TensorInfo stored() const {
    if (is_whole()) return {name, tensor.dtype, tensor.shape};
    return {c10::str(name, "[", begin, ":", begin + values.numel(), "]"), tensor.dtype, {values.numel()}};
  }
};

std::string file_name(int rank, int size) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "rank-%05d-of-%05d.safetensors", rank, size);
  return name.data();
}

void add_piece(std::vector<Piece>& pieces, const HeldPart& part, const std::string& name, const at::Tensor& values) {
  const auto [begin, end] = part.to_write();
  StoredTensor tensor{values.scalar_type(), part.sizes, part.strides, {}};
  pieces.push_back({name, std::move(tensor), begin, values.narrow(0, begin - part.begin, end - begin)});
}

std::vector<Piece> pieces_of(const TrainingState& state, bool is_first) {
  std::vector<Piece> pieces;
  for (const HeldPart& part : held_parts(state.model)) {
    add_piece(pieces, part, model_name(part.fqn), part.values.detach());
    const auto kept = state.optimizer ? state.optimizer->leaf(part.leaf) : std::nullopt;
    if (!kept) continue;
    for (const auto& [name, tensor] : kept->tensors) {
      add_piece(pieces, part, optimizer_name(part.fqn, name),
                tensor.detach().view(-1).narrow(0, part.leaf_offset, part.numel()));
    }
  }
  if (!is_first) return pieces;
  for (const auto& buffer : state.module.named_buffers()) {
    if (!buffer.value().defined()) continue;
    const at::Tensor value = buffer.value().detach().contiguous();
    pieces.push_back(
        {buffer_name(buffer.key()), {value.scalar_type(), value.sizes().vec(), {}, {}}, 0, value.view(-1)});
  }
  return pieces;
}

RankFile write_rank_file(const fs::path& path, const std::vector<Piece>& pieces) {
  std::vector<TensorInfo> layout;
  for (const Piece& piece : pieces) {
    if (piece.values.numel() > 0) layout.push_back(piece.stored());
  }
  checkpoint::SafetensorsWriter writer(path, layout);
  RankFile file;
  for (const Piece& piece : pieces) {
    StoredTensor& tensor = file.tensors.try_emplace(piece.name, piece.tensor).first->second;
    if (piece.values.numel() == 0) continue;
    const TensorInfo stored = piece.stored();
    writer.write(stored.name, piece.values.view(stored.shape));
    auto place = writer.place(stored.name);
    tensor.parts.push_back(
        {piece.begin, piece.begin + piece.values.numel(), 0, place.offset, std::move(place.checksums)});
  }
  writer.finish();
  file.file = {path.filename().string(), writer.bytes(), writer.header_bytes(), writer.header_checksum()};
  return file;
}

// The numbers of leaves, by the rank that holds a parameter's first element.
json scalars_of(const TrainingState& state) {
  json leaves = json::object();
  for (const HeldPart& part : held_parts(state.model)) {
    if (!state.optimizer || part.begin != 0 || part.numel() == 0 || part.replica != 0) continue;
    if (const auto kept = state.optimizer->leaf(part.leaf)) leaves[part.fqn] = kept->scalars;
  }
  return leaves;
}

json groups_of(const TrainingState& state) {
  json groups = json::array();
  if (!state.optimizer) return groups;
  const LeafNames names(state.model);
  const auto leaves = state.optimizer->groups();
  for (size_t group = 0; group < leaves.size(); ++group) {
    std::vector<std::string> fqns;
    for (const at::Tensor& leaf : leaves[group]) {
      for (const std::string& fqn : names.of(leaf)) fqns.push_back(fqn);
    }
    groups.push_back({{"parameters", fqns}, {"options", state.optimizer->options(group)}});
  }
  return groups;
}

std::string manifest_of(const std::vector<std::string>& files, const std::vector<std::string>& scalars, json groups,
                        const json& user, const std::string& source) {
  Manifest manifest;
  for (const std::string& file : files) {
    add_rank_file(checkpoint::parse_rank_file(file, source), manifest);
  }
  json leaves = json::object();
  for (const std::string& of_rank : scalars) leaves.update(json::parse(of_rank));
  manifest.state = {{"optimizer", {{"leaves", std::move(leaves)}, {"groups", std::move(groups)}}}, {"user", user}};
  return manifest_text(std::move(manifest), source);
}

}  // namespace

void save_training_state(const fs::path& folder, const TrainingState& state, const json& user, Communicator& world) {
  const at::NoGradGuard no_grad;
  const std::string what = "saving the checkpoint " + folder.string();
  std::optional<checkpoint::StagedFolder> staged;  // on rank 0
  const fs::path place = together(world, what, [&] {
    if (world.rank() != 0) return std::string();
    staged.emplace(folder);
    return staged->path().string();
  })[0];
  const std::vector<std::string> files = together(world, what, [&] {
    return rank_file_text(
        write_rank_file(place / file_name(world.rank(), world.size()), pieces_of(state, world.rank() == 0)));
  });
  const std::vector<std::string> scalars = together(world, what, [&] { return scalars_of(state).dump(); });
  together(world, what, [&] {
    if (staged) {
      const fs::path manifest = place / checkpoint::kManifestName;
      checkpoint::write_file(manifest, manifest_of(files, scalars, groups_of(state), user, manifest.string()));
      staged->commit();
    }
    return std::string();
  });
}

}  // namespace fsdp
