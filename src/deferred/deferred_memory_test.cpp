// The arguments that deferred operators keep, and the memory that deferred tensors take.
#include "fsdp/deferred_init.h"

#include "deferred/deferred_storage.h"
#include "support/nets/two_layers.h"
#include "support/training/sharding.h"

namespace fsdp::deferred_memory_test {
namespace {

using testing::same_bits;

TEST(DeferredInitArguments, OrdinaryTensorsAreReadAsTheyWere) {
  at::Tensor small = torch::ones({100}), large = torch::ones({600, 600});
  std::vector<float> borrowed(100, 3);
  at::Tensor a, b, c;
  {
    DeferredInitGuard guard;
    a = torch::zeros({20, 100}).add_(small);
    b = torch::zeros({600, 600}).add_(large);
    c = torch::zeros({20, 100}).add_(torch::from_blob(borrowed.data(), {100}));
  }
  small.fill_(2);
  std::fill(borrowed.begin(), borrowed.end(), 4);
  materialize({a, c});
  EXPECT_TRUE(same_bits(a, torch::ones({20, 100})));
  EXPECT_TRUE(same_bits(c, torch::full({20, 100}, 3.0)));
  large.fill_(2);
  try {
    materialize(b);
    FAIL() << "a tensor that was written since must be an error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("of shape [600, 600]"), std::string::npos) << error.what();
  }
}

TEST(DeferredInitArguments, LargeOnesThatStayAreNotCopied) {
  at::Tensor large = torch::rand({600, 600});
  at::Tensor b = deferred_init([&] { return torch::zeros({600, 600}).add_(large); });
  materialize(b);
  EXPECT_TRUE(same_bits(b, large));
}

TEST(DeferredInitMemory, PointersOfDeferredTensorsThrow) {
  at::Tensor tensor = deferred_init([] { return torch::rand({1000, 1000}); });
  EXPECT_EQ(tensor.device(), c10::Device(c10::kCPU));
  EXPECT_FALSE(tensor.is_meta());
  try {
    tensor.data_ptr<float>();
    FAIL() << "there is no memory";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("deferred tensor"), std::string::npos) << error.what();
  }
  EXPECT_EQ(deferred_init([] { return torch::tensor(std::vector<float>{1, 2, 3}); }).data_ptr<float>()[1], 2);
  at::Tensor large = deferred_init([] {
    EagerInitGuard eager;
    return torch::tensor(std::vector<float>(5000, 1));
  });
  EXPECT_FALSE(is_deferred(large));
  EXPECT_EQ(large.sum().item<float>(), 5000);
}

TEST(DeferredInitMemory, UnneededTensorsAreFreed) {
  int64_t before = deferred::live_storages();
  {
    auto module = deferred_init([] { return std::make_shared<testing::TwoLayersImpl>(4, 4, 4); });
    for (int round = 0; round < 10000; ++round) {
      module->first->weight.data().add_(1);  // a long chain
    }
    EXPECT_GT(deferred::live_storages(), before);
  }
  EXPECT_EQ(deferred::live_storages(), before);
  at::Tensor tensor = torch::ones({3});
  EXPECT_EQ((tensor + 1).sum().item<float>(), 6);
}

// Draws that read other draws, and have run for an ordinary draw after them.
TEST(DeferredInitMemory, UnneededDrawsAreFreed) {
  at::Tensor large = torch::rand({1000, 1000});  // is not copied
  at::Tensor ordinary = torch::empty({10}), needed;
  auto module = deferred_init([&] {
    needed = torch::bernoulli(torch::rand({1000, 1000}) * large);
    auto made = torch::nn::Linear(50, 50);
    ordinary.normal_();
    return made;
  });
  materialize(*module);
  EXPECT_GT(large.use_count(), 1);
  needed.reset();
  EXPECT_EQ(large.use_count(), 1);
}

TEST(DeferredInitMemory, OperatorsOutsideTheGuardAreOrdinary) {
  auto module = deferred_init([] { return torch::nn::Linear(50, 50); });
  at::Tensor tensor = torch::rand({50, 50});
  EXPECT_FALSE(is_deferred(tensor));
  EXPECT_FALSE(is_deferred(tensor.matmul(module->weight)));
  EXPECT_TRUE(is_deferred(module->weight.t()));
  EXPECT_TRUE(is_deferred(module->bias * 2));
  EXPECT_TRUE(is_deferred(module->bias));
}

}  // namespace
}  // namespace fsdp::deferred_memory_test
