#include "binding/checkpoint.h"

#include <utility>

#include "fsdp/checkpoint.h"
#include "state/training_state.h"

namespace fsdp::python {
namespace {

template <typename Value>
std::map<std::string, Value> map_of(const c10::Dict<std::string, Value>& dict) {
  std::map<std::string, Value> map;
  for (const auto& entry : dict) map.emplace(entry.key(), entry.value());
  return map;
}

template <typename Value>
c10::Dict<std::string, Value> dict_of(const std::map<std::string, Value>& map) {
  c10::Dict<std::string, Value> dict;
  for (const auto& [name, value] : map) dict.insert(name, value);
  return dict;
}

}  // namespace

Checkpoint::Checkpoint(c10::intrusive_ptr<Sharded> sharded, c10::intrusive_ptr<ModuleMirror> module,
                       c10::intrusive_ptr<Group> world)
    : sharded_(std::move(sharded)), module_(std::move(module)), world_(std::move(world)) {}

void Checkpoint::add_group(const std::vector<at::Tensor>& leaves, const Numbers& options) {
  optimizer_.add_group(leaves, map_of(options));
}

void Checkpoint::set_state(const at::Tensor& leaf, const Tensors& tensors, const Numbers& numbers) {
  optimizer_.give(leaf, {map_of(tensors), map_of(numbers)});
}

void Checkpoint::save(const std::string& folder, const std::string& user) {
  const CheckpointedRun run{.model = *sharded_->module(),
                            .module = *module_->module(),
                            .optimizer = optimizer_.groups().empty() ? nullptr : &optimizer_,
                            .of_rank = of_rank_};
  save_checkpoint(folder, run, user, *world_->communicator());
}

void Checkpoint::load(const std::string& folder, bool strict) {
  const state::TrainingState run{.parts = {{*sharded_->module(), *module_->module()}},
                                 .optimizer = optimizer_.groups().empty() ? nullptr : &optimizer_};
  state::LoadedTrainingState loaded =
      state::load_training_state(folder, run, *world_->communicator(), {.strict = strict});
  user_ = loaded.user.dump();
  groups_ = loaded.state.at("optimizer").at("groups").dump();
  report_ = loaded.model.text() + loaded.optimizer.text();
  of_rank_ = std::move(loaded.of_rank);
}

Checkpoint::Tensors Checkpoint::of_rank() const { return dict_of(of_rank_); }

Checkpoint::Numbers Checkpoint::options(int64_t group) const {
  return dict_of(optimizer_.options(static_cast<size_t>(group)));
}

Checkpoint::Tensors Checkpoint::tensors(const at::Tensor& leaf) const {
  return dict_of(optimizer_.leaf(leaf).value_or(LeafState()).tensors);
}

Checkpoint::Numbers Checkpoint::numbers(const at::Tensor& leaf) const {
  return dict_of(optimizer_.leaf(leaf).value_or(LeafState()).scalars);
}

void register_checkpoint(torch::Library& library) {
  using Module = c10::intrusive_ptr<ModuleMirror>;
  library.class_<Checkpoint>("Checkpoint")
      .def(torch::init<c10::intrusive_ptr<Sharded>, Module, c10::intrusive_ptr<Group>>())
      .def("add_group", &Checkpoint::add_group)
      .def("set_state", &Checkpoint::set_state)
      .def("set_of_rank", &Checkpoint::set_of_rank)
      .def("save", &Checkpoint::save)
      .def("load", &Checkpoint::load)
      .def("user", &Checkpoint::user)
      .def("groups", &Checkpoint::groups)
      .def("report", &Checkpoint::report)
      .def("of_rank", &Checkpoint::of_rank)
      .def("options", &Checkpoint::options)
      .def("has_state", &Checkpoint::has_state)
      .def("tensors", &Checkpoint::tensors)
      .def("numbers", &Checkpoint::numbers);
}

}  // namespace fsdp::python
