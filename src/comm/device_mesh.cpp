#include "fsdp/device_mesh.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>

namespace fsdp {
namespace {

constexpr std::array kNames = {"pp", "dp_replicate", "dp_shard", "cp", "ep", "tp"};
constexpr std::array kReserved = {"cp", "ep"};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_name(std::string_view name) {
  TORCH_CHECK(contains(kNames, name), "fsdp: a mesh has no dimension \"", name, "\"; the names are ",
              c10::Join(", ", kNames));
}

std::string text_of(const std::vector<MeshDimension>& dimensions) {
  std::vector<std::string> parts;
  for (const MeshDimension& dimension : dimensions) parts.push_back(c10::str(dimension.name, " ", dimension.size));
  return "{" + c10::Join(", ", parts) + "}";
}

void check_dimension(const MeshDimension& dimension) {
  check_name(dimension.name);
  TORCH_CHECK(dimension.size >= 1 || dimension.size == -1, "fsdp: mesh: ", dimension.name, " has size ", dimension.size,
              "; expected a number of ranks, or -1 for those that the other dimensions leave");
}

// Replaces the -1.
void fill_in(std::vector<MeshDimension>& dimensions, int ranks) {
  const std::string given = text_of(dimensions);
  MeshDimension* open = nullptr;
  int64_t product = 1;
  for (MeshDimension& dimension : dimensions) {
    if (dimension.size != -1) {
      product *= dimension.size;
      continue;
    }
    TORCH_CHECK(!open, "fsdp: mesh ", given, ": at most one dimension may have size -1");
    open = &dimension;
  }
  TORCH_CHECK(open ? ranks % product == 0 : product == ranks, "fsdp: mesh ", given, ": the sizes ",
              open ? "other than -1 must divide the number of ranks" : "must multiply to the number of ranks", ", ",
              ranks, ", but multiply to ", product);
  if (open) open->size = static_cast<int>(ranks / product);
}

void check_dimensions(const std::vector<MeshDimension>& dimensions) {
  for (size_t i = 0; i < dimensions.size(); ++i) {
    check_dimension(dimensions[i]);
    for (size_t j = 0; j < i; ++j) {
      TORCH_CHECK(dimensions[j].name != dimensions[i].name, "fsdp: mesh ", text_of(dimensions), ": ",
                  dimensions[i].name, " stands twice");
    }
  }
}

void check_reserved(const std::vector<MeshDimension>& dimensions) {
  for (const MeshDimension& dimension : dimensions) {
    TORCH_CHECK(dimension.size == 1 || !contains(kReserved, dimension.name), "fsdp: mesh ", text_of(dimensions), ": ",
                dimension.name, " is reserved, and must have size 1");
  }
}

// Compares before anything else, so that ranks which differ get one error that names both.
void check_agreement(Communicator& world, const std::string& text) {
  const std::vector<std::string> texts = world.all_gather_bytes(text, {"mesh: dimensions", 0, Pass::kSetup});
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    TORCH_CHECK(texts[rank] == texts[0], "fsdp: ranks make different meshes: rank 0 ", texts[0], ", rank ", rank, " ",
                texts[rank]);
  }
}

}  // namespace

DeviceMesh DeviceMesh::make(const std::shared_ptr<Communicator>& world, std::vector<MeshDimension> dimensions) {
  TORCH_CHECK(world, "fsdp: DeviceMesh: the communicator is null");
  check_agreement(*world, text_of(dimensions));
  check_dimensions(dimensions);
  fill_in(dimensions, world->size());
  check_reserved(dimensions);
  return DeviceMesh(world, std::move(dimensions));
}

DeviceMesh::DeviceMesh(std::shared_ptr<Communicator> world, std::vector<MeshDimension> dimensions)
    : world_(std::move(world)), dimensions_(std::move(dimensions)) {
  flatten({});
  for (const MeshDimension& dimension : dimensions_) flatten({dimension.name});
}

int DeviceMesh::size(std::string_view name) const {
  check_name(name);
  const auto found =
      std::find_if(dimensions_.begin(), dimensions_.end(), [&](const auto& d) { return d.name == name; });
  return found == dimensions_.end() ? 1 : found->size;
}

int DeviceMesh::rank(std::string_view name) const {
  check_name(name);
  for (size_t i = 0; i < dimensions_.size(); ++i) {
    if (dimensions_[i].name == name) return coordinate(i, world_->rank());
  }
  return 0;
}

std::shared_ptr<Communicator> DeviceMesh::group(std::string_view name) const {
  return groups_.at(mask_of({std::string(name)}));
}

std::shared_ptr<Communicator> DeviceMesh::flatten(const std::vector<std::string>& names) {
  const std::vector<bool> mask = mask_of(names);
  auto& group = groups_[mask];
  if (!group) group = make_group(mask, c10::Join(", ", names));
  return group;
}

ProcessMesh DeviceMesh::data_parallel() {
  ProcessMesh mesh{.world = flatten({"dp_replicate", "dp_shard"}),
                   .shard = nullptr,
                   .replicate = nullptr,
                   .coordinates = coordinates(world_->rank())};
  if (size("dp_replicate") > 1) {
    mesh.shard = group("dp_shard");
    mesh.replicate = group("dp_replicate");
  }
  return mesh;
}

std::string DeviceMesh::where(int rank) const {
  const std::string place = coordinates(rank);
  return c10::str("rank ", rank, place.empty() ? "" : " (" + place + ")");
}

// Dimensions of size 1 are left out.
std::string DeviceMesh::coordinates(int rank) const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < dimensions_.size(); ++i) {
    if (dimensions_[i].size > 1) parts.push_back(c10::str(dimensions_[i].name, " ", coordinate(i, rank)));
  }
  return c10::Join(", ", parts);
}

int DeviceMesh::coordinate(size_t dimension, int rank) const {
  for (size_t i = dimensions_.size() - 1; i > dimension; --i) rank /= dimensions_[i].size;
  return rank % dimensions_[dimension].size;
}

// Dimensions of size 1 make no difference between groups: they are not in a mask.
std::vector<bool> DeviceMesh::mask_of(const std::vector<std::string>& names) const {
  for (const std::string& name : names) check_name(name);
  std::vector<bool> mask;
  for (const MeshDimension& dimension : dimensions_) {
    mask.push_back(dimension.size > 1 && contains(names, dimension.name));
  }
  return mask;
}

std::vector<int> DeviceMesh::ranks_that_differ_in(const std::vector<bool>& dimensions) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_->size(); ++rank) {
    bool same = true;
    for (size_t i = 0; i < dimensions.size(); ++i) {
      same = same && (dimensions[i] || coordinate(i, rank) == coordinate(i, world_->rank()));
    }
    if (same) ranks.push_back(rank);
  }
  return ranks;
}

std::shared_ptr<Communicator> DeviceMesh::make_group(const std::vector<bool>& dimensions,
                                                     const std::string& names) const {
  const std::vector<int> ranks = ranks_that_differ_in(dimensions);
  if (static_cast<int>(ranks.size()) == world_->size()) return world_;
  return world_->subgroup(ranks, {names.empty() ? "mesh: this rank alone" : "mesh: " + names, 0, Pass::kSetup});
}

}  // namespace fsdp
