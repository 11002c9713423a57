#include "support/training/sharding.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error_message.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/meeting_point.h"
#include "engine/engine.h"
#include "fsdp/backends.h"

namespace fsdp::testing {
namespace {

std::shared_ptr<ShardedModule> strict(std::shared_ptr<ShardedModule> sharded) {
  sharded->engine().gatherer().set_strict(true);
  return sharded;
}

std::map<std::string, torch::Tensor> by_first_name(const torch::nn::Module& module,
                                                   const std::function<torch::Tensor(const torch::Tensor&)>& value) {
  std::map<std::string, torch::Tensor> result;
  std::vector<torch::Tensor> seen;
  for (const auto& entry : module.named_parameters()) {
    auto same = [&](const torch::Tensor& other) { return other.is_same(entry.value()); };
    if (std::none_of(seen.begin(), seen.end(), same)) {
      seen.push_back(entry.value());
      result[entry.key()] = value(entry.value());
    }
  }
  return result;
}

}  // namespace

torch::Tensor copy_on_host(const torch::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

std::shared_ptr<Communicator> one_rank() { return comm::make_gloo_communicator(nullptr, 0, 1, {}); }

WrapPolicy every_module() {
  return
      [](const WrapCandidate& candidate) { return !candidate.module.named_parameters(/*recurse=*/false).is_empty(); };
}

Options one_rank_options() {
  Options options;
  options.communicator = one_rank();
  options.auto_wrap_policy = every_module();
  return options;
}

Options one_rank_options_for_lists() {
  Options options;
  options.communicator = one_rank();
  return options;
}

Options low_on_one_rank(at::ScalarType dtype) {
  Options options;
  options.communicator = one_rank();
  options.param_dtype = dtype;
  return options;
}

std::shared_ptr<ShardedModule> shard_strictly(torch::nn::Module& module, const Options& options) {
  return strict(fully_shard(module, options));
}

std::shared_ptr<ShardedModule> shard_strictly(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                                              const Options& options) {
  return strict(fully_shard(modules, options));
}

std::mutex& seed_mutex() {
  static std::mutex mutex;
  return mutex;
}

torch::Tensor numbers(at::IntArrayRef sizes) {
  int64_t count = c10::multiply_integers(sizes);
  return torch::sin(torch::arange(count).to(torch::kFloat) * 0.7).view(sizes);
}

BagImpl::BagImpl(const std::vector<torch::Tensor>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    bool requires_grad = tensors[i].is_floating_point();
    register_parameter("p" + std::to_string(i), tensors[i], requires_grad);
  }
}

std::string expect_error(const std::function<void()>& body, std::initializer_list<const char*> parts) {
  std::string message;
  try {
    body();
  } catch (const std::exception& error) {
    message = base::message_of(error);
  }
  if (message.empty()) {
    ADD_FAILURE() << "no error";
    return message;
  }
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is missing in: " << message;
  }
  return message;
}

std::map<std::string, torch::Tensor> gradients_of(const ShardedModule& sharded) {
  std::map<std::string, torch::Tensor> result;
  std::map<std::string, torch::Tensor> leaves;
  for (const auto& [name, leaf] : sharded.named_parameters()) leaves[name] = leaf;
  for (const ShardSlice& slice : sharded.shard_slices()) {
    torch::Tensor gradient = leaves.at(slice.fqn).grad();
    result[slice.fqn] = gradient.defined() ? gradient.as_strided(slice.sizes, slice.strides).clone() : gradient;
  }
  return result;
}

std::map<std::string, torch::Tensor> weights_of(ShardedModule& sharded) {
  std::map<std::string, torch::Tensor> result;
  sharded.for_each_full_parameter(
      [&](const std::string& fqn, const torch::Tensor& full) { result[fqn] = copy_on_host(full); });
  return result;
}

std::map<std::string, torch::Tensor> gradients_of(const torch::nn::Module& module) {
  return by_first_name(module, [](const torch::Tensor& parameter) {
    const torch::Tensor& gradient = parameter.grad();
    return !gradient.defined() ? gradient : gradient.is_sparse() ? gradient.to_dense() : gradient.clone();
  });
}

std::map<std::string, torch::Tensor> weights_of(const torch::nn::Module& module) {
  return by_first_name(module, copy_on_host);
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  return a.is_floating_point() ? torch::allclose(a.cpu(), b.cpu(), 0, 0, /*equal_nan=*/true)
                               : torch::equal(a.cpu(), b.cpu());
}

void expect_same(const std::map<std::string, torch::Tensor>& got, const std::map<std::string, torch::Tensor>& want) {
  EXPECT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    ASSERT_TRUE(got.count(name)) << name;
    EXPECT_TRUE(same_bits(got.at(name), tensor)) << name << ": " << got.at(name) << "\nbut expected\n" << tensor;
  }
}

void descend(const std::vector<torch::Tensor>& parameters) {
  torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> seen;
  for (torch::Tensor parameter : parameters) {
    auto same = [&](const torch::Tensor& other) { return other.is_same(parameter); };
    if (std::none_of(seen.begin(), seen.end(), same) && parameter.grad().defined()) {
      seen.push_back(parameter);
      torch::Tensor gradient = parameter.grad().is_sparse() ? parameter.grad().to_dense() : parameter.grad();
      parameter.sub_(gradient, 1.0 / 16);
    }
  }
}

}  // namespace fsdp::testing
