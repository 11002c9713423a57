#include "frontend/initial_values.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <unordered_set>

#include "base/transient_memory.h"
#include "deferred/deferred_storage.h"
#include "deferred/materialize.h"
#include "fsdp/wrap_policy.h"

namespace fsdp::frontend {
namespace {

using Visit = std::function<void(torch::nn::Module& module, const std::string& path)>;

void for_each_module(torch::nn::Module& module, const std::string& path, const PathSet& except, const Visit& visit) {
  if (except.covers(path)) return;
  visit(module, path);
  for (const auto& child : module.named_children()) {
    for_each_module(*child.value(), join_path(path, child.key()), except, visit);
  }
}

// Describes the values that rank 0 cannot send; empty if it can send all.
std::string without_values(const torch::nn::Module& root, const Options& options) {
  if (options.param_init_fn) return {};
  for (const auto& entry : root.named_parameters()) {
    if (entry.value().is_meta()) return "parameter '" + entry.key() + "'";
  }
  for (const auto& entry : root.named_buffers()) {
    if (entry.value().is_meta()) return "buffer '" + entry.key() + "'";
  }
  return {};
}

// Returns a tensor with dense memory that has each element once, in the memory order of `tensor` if that is dense.
at::Tensor dense_like(const at::Tensor& tensor, c10::Device device) {
  auto nbytes = static_cast<int64_t>(tensor.nbytes());
  at::Tensor flat = base::transient_bytes(nbytes, device).view(tensor.scalar_type());
  return tensor.is_non_overlapping_and_dense() && tensor.numel() > 0 ? flat.as_strided(tensor.sizes(), tensor.strides())
                                                                     : flat.view(tensor.sizes());
}

at::Tensor bytes_of(const at::Tensor& dense) { return dense.as_strided({dense.numel()}, {1}).view(at::kByte); }

}  // namespace

InitialValues::InitialValues(torch::nn::Module& root, const Options& options, const ProcessMesh& mesh,
                             c10::Device device)
    : root_(root), options_(options), mesh_(mesh), device_(device) {
  if (!options_.sync_module_states) return;
  std::string missing = mesh_.is_first() ? without_values(root_, options_) : "";
  for (const auto& group :
       {mesh_.world, mesh_.world ? nullptr : mesh_.shard, mesh_.world ? nullptr : mesh_.replicate, mesh_.parts}) {
    if (group) missing = group->all_gather_bytes(missing, {"sync_module_states", 0, Pass::kSetup}).front();
  }
  TORCH_CHECK(missing.empty(), "fsdp: sync_module_states: ", missing,
              " is on the meta device on rank 0, so there are no values to send: load them there, or set "
              "Options::param_init_fn");
}

void InitialValues::make_others(const std::vector<at::Tensor>& ignored, const PathSet& except) {
  std::vector<at::Tensor> own;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  std::copy_if(ignored.begin(), ignored.end(), std::back_inserter(own), deferred::find);
  for_each_module(root_, "", except, [&](torch::nn::Module& module, const std::string& path) {
    for (const auto& entry : module.named_buffers(/*recurse=*/false)) {
      if (entry.value().defined()) buffers.emplace_back(join_path(path, entry.key()), entry.value());
    }
  });
  for (const auto& [name, buffer] : buffers) {
    if (!receives() && deferred::find(buffer)) {
      own.push_back(buffer);
    } else if (deferred::has_no_values(buffer)) {
      deferred::replace_by_memory(buffer, device_);
    }
  }
  deferred::replace_by_values(own);
  at::NoGradGuard no_grad;
  for (auto& [name, buffer] : buffers) {
    if (buffer.is_cpu() && !device_.is_cpu()) buffer.set_data(buffer.to(device_));
  }
  if (options_.sync_module_states) {
    for (auto& [name, buffer] : buffers) buffer.copy_(broadcast(buffer, buffer, name, device_));
  }
}

std::vector<at::Tensor> InitialValues::of(const std::vector<FoundParameter>& parameters) {
  c10::InferenceMode no_inference(false);
  at::NoGradGuard no_grad;
  if (options_.param_init_fn && !receives()) call_param_init_fn(parameters);
  std::vector<at::Tensor> tensors;
  for (const FoundParameter& parameter : parameters) tensors.push_back(parameter.tensor);
  std::vector<at::Tensor> values = receives() ? tensors : deferred::values_of(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (options_.sync_module_states) {
      values[i] = broadcast(tensors[i], values[i], parameters[i].fqn(), device_);
    } else if (values[i].is_same(tensors[i])) {
      values[i].reset();
    }
  }
  return values;
}

// Calls the function on modules in module order, once for each module, with all of its own parameters in memory,
// including those of later units.
void InitialValues::call_param_init_fn(const std::vector<FoundParameter>& parameters) {
  std::unordered_set<std::string> paths;
  for (const FoundParameter& parameter : parameters) {
    if (deferred::has_no_values(parameter.tensor)) paths.insert(parameter.sites.front().module);
  }
  for_each_module(root_, "", {}, [&](torch::nn::Module& module, const std::string& path) {
    if (paths.erase(path) > 0) {
      for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
        if (deferred::has_no_values(entry.value())) deferred::replace_by_memory(entry.value(), device_);
      }
      options_.param_init_fn(module);
    }
  });
}

at::Tensor InitialValues::broadcast(const at::Tensor& tensor, const at::Tensor& value, const std::string& name,
                                    c10::Device device) {
  at::Tensor dense = dense_like(tensor, device);
  if (mesh_.is_first()) dense.copy_(value);
  broadcast_bytes(bytes_of(dense), name);
  return dense;
}

// Broadcasts over the first of all parts' ranks (inside the first shard group, then from that group to all others),
// then from these to the other parts'.
void InitialValues::broadcast_bytes(const at::Tensor& bytes, const std::string& name) {
  const CollectiveId id{name, 0, Pass::kSetup};
  const bool has_first_parts = !mesh_.parts || mesh_.parts->rank() == 0;
  if (has_first_parts && mesh_.world) {
    mesh_.world->broadcast(bytes, 0, id)->wait();
  } else if (has_first_parts) {
    mesh_.shard->broadcast(bytes, 0, id)->wait();
    mesh_.replicate->broadcast(bytes, 0, id)->wait();
  }
  if (mesh_.parts) mesh_.parts->broadcast(bytes, 0, id)->wait();
}

void InitialValues::finish() { deferred::settle_generators(); }

}  // namespace fsdp::frontend
