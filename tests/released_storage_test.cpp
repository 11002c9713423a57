// Tests rule R1: access to released storage throws an error that names parameter and unit; code that needs raw memory
// pins the unit.
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <sstream>

#include "engine/engine.h"
#include "support/nets/two_layers.h"
#include "support/training/sharding.h"
#include "torch_seams/dispatch_key.h"

namespace fsdp {
namespace {

using testing::expect_error;
using testing::same_bits;
using testing::shard_strictly;

struct NetImpl : testing::TwoLayersImpl {
  NetImpl() : TwoLayersImpl(8, 8, 3) {}
};

class ReleasedStorage : public ::testing::Test {
 protected:
  void SetUp() override {
    net = testing::seeded([] { return std::make_shared<NetImpl>(); });
    original = net->first->weight.detach().clone();
    sharded = shard_strictly(*net);
  }
  std::shared_ptr<NetImpl> net;
  torch::Tensor original;
  std::shared_ptr<ShardedModule> sharded;
};

TEST_F(ReleasedStorage, RawPointersThrow) {
  const torch::Tensor& weight = net->first->weight;
  auto refused = [](const std::function<void()>& read) {
    expect_error(read, {"'first.weight'", "unit 'first'", "ShardedModule::pin"});
  };
  refused([&] { (void)weight.data_ptr(); });
  refused([&] { (void)weight.data_ptr<float>(); });
  refused([&] { (void)weight.const_data_ptr<float>(); });
  refused([&] { (void)weight.mutable_data_ptr<float>(); });
  refused([&] { (void)weight.storage().data(); });
  refused([&] { (void)weight.storage().mutable_data(); });
  refused([&] { (void)weight.t().narrow(0, 1, 2).data_ptr<float>(); });
  refused([&] { (void)weight.detach().data_ptr(); });
}

TEST_F(ReleasedStorage, ThrowsAgainAfterUse) {
  (void)net->first->weight.sum();
  expect_error([&] { (void)net->first->weight.const_data_ptr<float>(); }, {"'first.weight'", "unit 'first'"});
}

TEST_F(ReleasedStorage, SharedParametersAreNamedByAllTheirNames) {
  struct TwiceImpl : torch::nn::Module {
    TwiceImpl() {
      torch::Tensor tensor = register_parameter("a", torch::ones({3}));
      register_parameter("b", tensor);
    }
  };
  TwiceImpl twice;
  auto handle = shard_strictly(twice);
  expect_error([&] { (void)twice.named_parameters()["b"].data_ptr(); }, {"'a'", "also 'b'", "unit 'root'"});
}

TEST_F(ReleasedStorage, NamesFollowAnOuterAnnotation) {
  auto inner = std::make_shared<NetImpl>();
  Options options = testing::one_rank_options();
  shard_strictly(*inner, options);
  torch::nn::Module outer;
  outer.register_module("net", inner);
  outer.register_parameter("scale", torch::ones({2}));
  auto handle = shard_strictly(outer, options);
  expect_error([&] { (void)inner->first->weight.data_ptr(); }, {"'net.first.weight'", "unit 'net.first'"});
}

// Kernels that the dispatcher did not announce to the engine read no released memory: each of them throws.
TEST_F(ReleasedStorage, UnseenKernelsThrow) {
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({8}));
  torch::nn::Embedding embedding(8, 8);
  torch::nn::Conv1d conv(torch::nn::Conv1dOptions(4, 2, 4));
  auto handle = shard_strictly({norm.ptr(), embedding.ptr(), conv.ptr()}, testing::one_rank_options_for_lists());
  torch::Tensor x = torch::ones({4, 8}), ids = torch::arange(4);
  const torch::Tensor& w = net->first->weight;
  std::vector<std::pair<const char*, std::function<void()>>> kernels = {
      {"mm", [&] { (void)torch::mm(x, w); }},
      {"linear", [&] { (void)torch::linear(x, w, net->first->bias); }},
      {"add", [&] { (void)(w + 1); }},
      {"sum", [&] { (void)w.sum(); }},
      {"clone", [&] { (void)w.clone(); }},
      {"to", [&] { (void)w.to(torch::kDouble); }},
      {"item", [&] { (void)w[0][0].item<float>(); }},
      {"equal", [&] { (void)torch::equal(w, original); }},
      {"cat", [&] { (void)torch::cat({w, x}); }},
      {"index", [&] { (void)w.index_select(0, ids); }},
      {"foreach", [&] { (void)torch::_foreach_mul({w, x}, 2.0); }},
      {"embedding", [&] { (void)torch::embedding(embedding->weight, ids); }},
      {"layer_norm", [&] { (void)torch::layer_norm(x, {8}, norm->weight, norm->bias); }},
      {"conv", [&] { (void)torch::conv1d(x.view({1, 4, 8}), conv->weight, conv->bias); }},
  };
  torch::NoGradGuard no_grad;
  for (const auto& [name, kernel] : kernels) {
    SCOPED_TRACE(name);
    c10::impl::ExcludeDispatchKeyGuard unseen(seams::kShardedKey);
    expect_error(kernel, {"was read while the unit is sharded"});
  }
}

TEST_F(ReleasedStorage, PinnedMemoryMayBeReadRaw) {
  const torch::Tensor& weight = net->first->weight;
  bool called = false;
  sharded->pin({weight}, [&] {
    called = true;
    const float* data = weight.const_data_ptr<float>();
    for (int64_t i = 0; i < weight.numel(); ++i) ASSERT_EQ(data[i], original.const_data_ptr<float>()[i]);
    (void)weight.sum();  // an operator inside does not release the pinned unit
    ASSERT_EQ(data, weight.const_data_ptr<float>());
    sharded->reshard();
    ASSERT_EQ(data[5], original.const_data_ptr<float>()[5]);
    expect_error([&] { (void)net->second->weight.data_ptr(); }, {"'second.weight'"});
  });
  EXPECT_TRUE(called);
  expect_error([&] { (void)weight.data_ptr(); }, {"'first.weight'"});
}

TEST_F(ReleasedStorage, PinOfNothingPinsAll) {
  sharded->pin({}, [&] {
    EXPECT_NO_THROW((void)net->first->weight.data_ptr());
    EXPECT_NO_THROW((void)net->second->bias.data_ptr());
  });
  EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
}

TEST_F(ReleasedStorage, PinsNestAndEndWithAnException) {
  expect_error(
      [&] {
        sharded->pin({net->first->weight}, [&] {
          sharded->pin({net->first->bias}, [] {});
          EXPECT_NO_THROW((void)net->first->weight.data_ptr());
          throw std::runtime_error("thrown inside");
        });
      },
      {"thrown inside"});
  expect_error([&] { (void)net->first->weight.data_ptr(); }, {"'first.weight'"});
}

TEST_F(ReleasedStorage, PinRefusesOtherTensors) {
  expect_error([&] { sharded->pin({torch::ones({5, 3})}, [] {}); }, {"pin", "[5, 3]", "not a sharded parameter"});
  expect_error([&] { sharded->pin({torch::Tensor()}, [] {}); }, {"pin", "not a sharded parameter"});
}

TEST_F(ReleasedStorage, SerializationThrowsUnlessPinned) {
  std::ostringstream stream;
  expect_error([&] { torch::save(net->first->weight, stream); }, {"'first.weight'", "pin"});
  std::stringstream whole;
  sharded->pin({}, [&] { torch::save(net->first->weight, whole); });
  torch::Tensor loaded;
  torch::load(loaded, whole);
  EXPECT_TRUE(same_bits(loaded.detach(), original));
}

// Copies made through the dispatcher are correct, and are plain tensors that do not belong to the engine.
TEST_F(ReleasedStorage, CopiesAreRightAndPlain) {
  torch::NoGradGuard no_grad;
  const torch::Tensor& weight = net->first->weight;
  for (const torch::Tensor& copy : {weight.clone(), weight.cpu().add(0), weight.to(torch::kFloat, false, true),
                                    weight.t().contiguous().t(), weight.flatten().clone().view({8, 8})}) {
    EXPECT_FALSE(seams::has_sharded_key(copy));
    EXPECT_TRUE(same_bits(copy, original));
  }
  EXPECT_EQ(weight.to(torch::kMeta).sizes(), original.sizes());
  EXPECT_TRUE(same_bits(weight.to(torch::kBFloat16), original.to(torch::kBFloat16)));
  std::ostringstream printed, expected;
  printed << weight.detach();
  expected << original;
  EXPECT_EQ(printed.str(), expected.str());
}

TEST_F(ReleasedStorage, ClonedModulesArePlain) {
  auto linear = testing::seeded([] { return torch::nn::Linear(3, 2); });
  torch::Tensor weight = linear->weight.detach().clone();
  auto handle = shard_strictly(*linear);
  auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(linear->clone());
  EXPECT_FALSE(seams::has_sharded_key(copy->weight));
  EXPECT_TRUE(same_bits(copy->weight.detach(), weight));
  EXPECT_NO_THROW((void)copy->weight.data_ptr());
}

TEST(ReleasedStorageSizes, ZeroSizeAndZeroDimParameters) {
  testing::Bag bag(std::vector<torch::Tensor>{torch::tensor(2.5f), torch::zeros({0, 4})});
  auto sharded = shard_strictly(*bag);
  expect_error([&] { (void)bag->parameters()[0].data_ptr(); }, {"'p0'"});
  EXPECT_EQ(bag->parameters()[0].item<float>(), 2.5f);
  EXPECT_EQ(bag->parameters()[1].sum().item<float>(), 0.0f);
}

}  // namespace
}  // namespace fsdp
