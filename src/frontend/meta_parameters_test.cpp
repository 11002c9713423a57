// Tests modules with parameters or buffers on the meta device.
#include "fsdp/fully_shard.h"

#include "frontend/testing/outer_net.h"
#include "fsdp/fsdp.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::frontend::meta_parameters_test {
namespace {

using testing::expect_error;
using testing::expect_same;
using testing::make_outer;
using testing::outer_input;
using testing::OuterImpl;
using testing::plain_options;
using testing::run_ranks;
using testing::weights_of;

std::shared_ptr<OuterImpl> make_meta() {
  auto net = make_outer();
  for (auto& module : net->modules()) {
    for (auto& entry : module->named_parameters(/*recurse=*/false)) {
      torch::Tensor& parameter = entry.value();
      torch::Tensor meta = torch::empty_like(parameter, torch::TensorOptions().device(torch::kMeta));
      parameter.unsafeGetTensorImpl()->shallow_copy_from(meta.getIntrusivePtr());
    }
  }
  return net;
}

TEST(MetaParameters, NeedADevice) {
  auto net = make_meta();
  expect_error([&] { fully_shard(*net, plain_options()); }, {"meta", "Options::device", "'bias'"});
}

TEST(MetaParameters, MixedWithOthersAreRefused) {
  auto net = make_meta();
  torch::Tensor real = torch::ones({2});
  net->a->scale.unsafeGetTensorImpl()->shallow_copy_from(real.getIntrusivePtr());
  Options options = plain_options();
  expect_error([&] { fully_shard(*net, options); }, {"one device", "cpu: 'a.scale'", "meta: 'bias'"});
}

TEST(MetaParameters, FilledThroughShardSlicesEqualTheEagerModel) {
  for (int world_size : {1, 3}) {
    run_ranks(world_size, [](std::shared_ptr<Communicator> communicator) {
      auto eager = make_outer(), net = make_meta();
      Options options = testing::one_rank_options();
      options.communicator = communicator;
      options.device = torch::kCPU;
      auto sharded = testing::shard_strictly(*net, options);
      auto weights = weights_of(*eager);
      {
        torch::NoGradGuard no_grad;
        for (ShardSlice& slice : sharded->shard_slices()) {
          slice.data.copy_(weights.at(slice.fqn).flatten().slice(0, slice.begin, slice.end));
        }
      }
      EXPECT_TRUE(net->bias.is_cpu());
      expect_same(weights_of(*sharded), weights);
      EXPECT_TRUE(torch::equal(net->forward(outer_input()), eager->forward(outer_input())));
    });
  }
}

// Returns a module with one parameter of four numbers, on the meta device if `meta_parameters`, and a buffer of three
// numbers without memory.
std::shared_ptr<torch::nn::Module> make_meta_with_buffer(bool meta_parameters) {
  const auto meta = torch::TensorOptions().device(torch::kMeta);
  auto net = std::make_shared<torch::nn::Module>("net");
  net->register_parameter("weight", meta_parameters ? torch::empty({4}, meta) : torch::ones({4}));
  net->register_buffer("running", torch::empty({3}, meta.dtype(torch::kDouble)));
  return net;
}

TEST(MetaBuffers, GetMemoryWhereTheModelComputes) {
  const auto net = make_meta_with_buffer(/*meta_parameters=*/true);
  const torch::Tensor handle = net->named_buffers()["running"];
  Options options = plain_options();
  options.device = torch::kCPU;
  fully_shard(*net, options);
  EXPECT_TRUE(handle.is_cpu());
  EXPECT_EQ(handle.scalar_type(), torch::kDouble);
  EXPECT_TRUE(torch::equal(handle.fill_(2), torch::full({3}, 2, torch::kDouble)));
}

TEST(MetaBuffers, OfRankZeroCannotBeSent) {
  const auto net = make_meta_with_buffer(/*meta_parameters=*/false);
  Options options = plain_options();
  options.sync_module_states = true;
  expect_error([&] { fully_shard(*net, options); }, {"buffer 'running'", "meta device on rank 0"});
}

}  // namespace
}  // namespace fsdp::frontend::meta_parameters_test
