#include "binding/flat_place.h"

#include "binding/whole_parameter.h"

namespace fsdp::python {
namespace {

engine::Unit::Place place_of(const at::Tensor& whole, const char* caller) {
  return unit_of_whole(whole, caller).place(owner_of_whole(whole)->index);
}

}  // namespace

at::Tensor FlatPlace::flat_leaf(const at::Tensor& whole) { return place_of(whole, "flat_leaf").flat.flat_leaf(); }

std::vector<int64_t> FlatPlace::of(const at::Tensor& whole) {
  const engine::Unit::Place place = place_of(whole, "FlatPlace.of");
  const flat::FlatLayout& layout = place.flat.layout();
  TORCH_CHECK_VALUE(layout.cut() == ShardCut::kFlat,
                    "fsdp: a parameter of a unit that is cut by rows has no one place");
  const flat::ShardPosition& position = place.flat.position();
  return {layout.offset(place.parameter), layout.numel(place.parameter), layout.shard_numel(), position.rank,
          position.factor};
}

void register_flat_place(torch::Library& library) {
  library.class_<FlatPlace>("FlatPlace")
      .def_static("flat_leaf", &FlatPlace::flat_leaf)
      .def_static("of", &FlatPlace::of);
}

}  // namespace fsdp::python
