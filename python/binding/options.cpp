#include "binding/options.h"

#include <c10/util/Exception.h>

#include <initializer_list>
#include <unordered_map>
#include <utility>

#include "fsdp/backward_prefetch.h"
#include "fsdp/debug_options.h"

namespace fsdp::python {
namespace {

// Returns the value whose to_string() is `name`.
template <typename Enumeration>
Enumeration by_name(const char* kind, const std::string& name, std::initializer_list<Enumeration> values) {
  std::string known;
  for (Enumeration value : values) {
    if (name == to_string(value)) return value;
    known += (known.empty() ? "" : ", ") + std::string(to_string(value));
  }
  TORCH_CHECK_VALUE(false, "fsdp: unknown ", kind, " '", name, "': use one of ", known);
}

std::optional<at::ScalarType> dtype_of(std::optional<int64_t> code) {
  return code ? std::optional(static_cast<at::ScalarType>(*code)) : std::nullopt;
}

}  // namespace

void OptionsForPython::set_mesh(const std::optional<c10::intrusive_ptr<Group>>& world,
                                const c10::intrusive_ptr<Group>& shard, const c10::intrusive_ptr<Group>& replicate) {
  options_.mesh =
      ProcessMesh{world ? (*world)->communicator() : nullptr, shard->communicator(), replicate->communicator()};
}

void OptionsForPython::set_strategy(const std::string& name) {
  options_.sharding_strategy =
      by_name("sharding strategy", name,
              {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard,
               ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2});
}

void OptionsForPython::set_reshard_after_forward(int64_t size) {
  options_.reshard_after_forward =
      size <= 1 ? ReshardAfterForward(size == 1) : ReshardAfterForward(static_cast<int>(size));
}

void OptionsForPython::set_mixed_precision(std::optional<int64_t> param, std::optional<int64_t> reduce,
                                           std::optional<int64_t> buffer, bool cast_forward_inputs,
                                           bool keep_low_precision_grads) {
  options_.param_dtype = dtype_of(param);
  options_.reduce_dtype = dtype_of(reduce);
  options_.buffer_dtype = dtype_of(buffer);
  options_.cast_forward_inputs = cast_forward_inputs;
  options_.keep_low_precision_grads = keep_low_precision_grads;
}

void OptionsForPython::set_offload(bool on, const std::optional<std::string>& path) {
  options_.cpu_offload = on;
  options_.offload_path = path;
}

void OptionsForPython::set_layout(bool use_orig_params, bool rows) {
  options_.use_orig_params = use_orig_params;
  options_.shard_cut = rows ? ShardCut::kRows : ShardCut::kFlat;
}

void OptionsForPython::set_shard_dims(const std::vector<at::Tensor>& parameters, const std::vector<int64_t>& dims) {
  TORCH_CHECK(parameters.size() == dims.size(), "fsdp: ", parameters.size(), " parameters and ", dims.size(), " dims");
  std::unordered_map<const c10::TensorImpl*, int64_t> known;
  for (size_t i = 0; i < dims.size(); ++i) known[parameters[i].unsafeGetTensorImpl()] = dims[i];
  options_.shard_dim = [known = std::move(known)](const at::Tensor& parameter) {
    const auto found = known.find(parameter.unsafeGetTensorImpl());
    return found == known.end() ? 0 : found->second;
  };
}

void OptionsForPython::set_overlap(const std::string& backward_prefetch, bool forward_prefetch, bool limit_all_gathers,
                                   int64_t max_gathered_units, bool one_communicator) {
  options_.backward_prefetch = by_name("backward prefetch", backward_prefetch,
                                       {BackwardPrefetch::kNone, BackwardPrefetch::kPre, BackwardPrefetch::kPost});
  options_.forward_prefetch = forward_prefetch;
  options_.limit_all_gathers = limit_all_gathers;
  options_.max_gathered_units = max_gathered_units;
  options_.one_communicator = one_communicator;
}

void OptionsForPython::set_debug(const std::string& collective_check, const std::string& dump_folder,
                                 std::optional<bool> read_only_parameters) {
  options_.debug.collective_check.level =
      by_name("level of collective checks", collective_check,
              {CollectiveCheckLevel::kOff, CollectiveCheckLevel::kSampled, CollectiveCheckLevel::kAlways});
  options_.debug.dump_folder = dump_folder;
  options_.debug.read_only_parameters = read_only_parameters;
}

void OptionsForPython::set_auto_units(const std::vector<std::vector<std::string>>& order) {
  options_.auto_units.emplace().order = order;
}

void register_options(torch::Library& library) {
  library.class_<OptionsForPython>("Options")
      .def(torch::init<>())
      .def("set_group", &OptionsForPython::set_group)
      .def("set_mesh", &OptionsForPython::set_mesh)
      .def("set_device", &OptionsForPython::set_device)
      .def("set_strategy", &OptionsForPython::set_strategy)
      .def("set_reshard_after_forward", &OptionsForPython::set_reshard_after_forward)
      .def("set_mixed_precision", &OptionsForPython::set_mixed_precision)
      .def("set_full_precision_classes", &OptionsForPython::set_full_precision_classes)
      .def("set_offload", &OptionsForPython::set_offload)
      .def("set_layout", &OptionsForPython::set_layout)
      .def("set_shard_dims", &OptionsForPython::set_shard_dims)
      .def("set_initialization", &OptionsForPython::set_initialization)
      .def("ignore", &OptionsForPython::ignore)
      .def("set_overlap", &OptionsForPython::set_overlap)
      .def("set_keep_memory", &OptionsForPython::set_keep_memory)
      .def("set_debug", &OptionsForPython::set_debug)
      .def("set_auto_units", &OptionsForPython::set_auto_units);
}

}  // namespace fsdp::python
