// Options of fully_shard, as Python sets them.
#pragma once

#include <torch/custom_class.h>

#include <optional>
#include <string>
#include <vector>

#include "binding/process_group.h"
#include "fsdp/options.h"

namespace fsdp::python {

// torch.classes.fsdp_cpp.Options: fsdp::Options with a function for each group of fields. Dtypes are codes of
// at::ScalarType, for which torch passes torch.dtype.
class OptionsForPython : public torch::CustomClassHolder {
 public:
  const Options& options() const { return options_; }

  void set_group(const c10::intrusive_ptr<Group>& group) { options_.communicator = group->communicator(); }
  // A mesh of two dimensions. `world` may be missing if all units are hybrid.
  void set_mesh(const std::optional<c10::intrusive_ptr<Group>>& world, const c10::intrusive_ptr<Group>& shard,
                const c10::intrusive_ptr<Group>& replicate);
  void set_device(const c10::Device& device) { options_.device = device; }
  // "full_shard", "shard_grad_op", "no_shard", "hybrid_shard" or "hybrid_shard_zero2".
  void set_strategy(const std::string& name);
  // 0: no; 1: yes; N: to a group of N ranks.
  void set_reshard_after_forward(int64_t size);
  void set_mixed_precision(std::optional<int64_t> param, std::optional<int64_t> reduce, std::optional<int64_t> buffer,
                           bool cast_forward_inputs, bool keep_low_precision_grads);
  void set_full_precision_classes(const std::vector<std::string>& classes) {
    options_.full_precision_classes = classes;
  }
  void set_offload(bool on, const std::optional<std::string>& path);
  void set_layout(bool use_orig_params, bool rows);
  // Sets the dimensions in which these parameters are cut; all others are cut in the first one.
  void set_shard_dims(const std::vector<at::Tensor>& parameters, const std::vector<int64_t>& dims);
  void set_initialization(bool sync_module_states) { options_.sync_module_states = sync_module_states; }
  void ignore(const std::vector<at::Tensor>& parameters) { options_.ignored_parameters = parameters; }
  void set_overlap(const std::string& backward_prefetch, bool forward_prefetch, bool limit_all_gathers,
                   int64_t max_gathered_units, bool one_communicator);
  void set_keep_memory(bool on) { options_.keep_memory = on; }
  void set_debug(const std::string& collective_check, const std::string& dump_folder,
                 std::optional<bool> read_only_parameters);
  void set_auto_units(const std::vector<std::vector<std::string>>& order);

 private:
  Options options_;
};

void register_options(torch::Library& library);

}  // namespace fsdp::python
