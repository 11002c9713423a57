#include "engine/held_gradients.h"

#include <gtest/gtest.h>

#include "support/devices/held_stream.h"

namespace fsdp::engine::held_gradients_test {
namespace {

using testing::first_of;
using testing::goes_on;
using testing::HeldStream;

// Views whose bases have no other holders.
at::Tensor transposed(at::IntArrayRef sizes) { return torch::rand(sizes).t(); }
at::Tensor row() { return torch::rand({2, 3}).select(0, 1); }
at::Tensor expanded() { return torch::ones({1}).expand({3, 4}); }

class HeldGradientsOnCpu : public ::testing::Test {
 protected:
  // Holds one gradient and returns the held tensor. Checks the bytes that the pool counts meanwhile.
  at::Tensor held_of(const at::Tensor& gradient, bool shared) {
    HeldGradients held;
    held.hold(7, gradient, shared, pool_);
    EXPECT_EQ(pool_.in_use_bytes(), static_cast<int64_t>(gradient.nbytes()));
    at::Tensor found;
    held.release_after(
        [&](int64_t parameter, const at::Tensor& one) {
          EXPECT_EQ(parameter, 7);
          found = one;
        },
        pool_);
    EXPECT_EQ(pool_.in_use_bytes(), 0);
    EXPECT_TRUE(torch::equal(found, gradient));
    return found;
  }
  bool is_copied(const at::Tensor& gradient, bool shared = false) {
    return !held_of(gradient, shared).is_alias_of(gradient);
  }

  BufferPool pool_{at::kCPU, /*keeps_memory=*/false, base::AllocationPurpose::kGradientBuffers};
};

TEST_F(HeldGradientsOnCpu, TensorsThatOthersHoldAreCopied) {
  EXPECT_FALSE(is_copied(torch::rand({3, 4})));
  EXPECT_TRUE(is_copied(torch::rand({3, 4}), /*shared=*/true));
  EXPECT_FALSE(is_copied(transposed({3, 4})));
  const at::Tensor base = torch::rand({3, 4});
  EXPECT_TRUE(is_copied(base.t()));
  EXPECT_TRUE(is_copied(base.detach()));
}

TEST_F(HeldGradientsOnCpu, APartDoesNotKeepTheWhole) { EXPECT_TRUE(is_copied(row())); }

TEST_F(HeldGradientsOnCpu, TheOnlyOneBecomesTheBuffer) {
  const auto buffer_of = [&](const std::vector<at::Tensor>& gradients, at::ScalarType dtype = at::kFloat) {
    HeldGradients held;
    for (const at::Tensor& gradient : gradients) held.hold(0, gradient, false, pool_);
    const at::Tensor buffer = held.become_buffer(dtype, {3, 4}, {4, 1}, pool_);
    size_t left = 0;
    held.release_after([&](int64_t, const at::Tensor&) { ++left; }, pool_);
    EXPECT_EQ(left, buffer.defined() ? 0 : gradients.size());
    if (buffer.defined()) {
      EXPECT_EQ(pool_.in_use_bytes(), 48);
      pool_.release(buffer);
    }
    EXPECT_EQ(pool_.in_use_bytes(), 0);
    EXPECT_EQ(pool_.reserved_bytes(), 0);
    return buffer;
  };
  const at::Tensor buffer = buffer_of({torch::arange(12.0).to(at::kFloat).view({3, 4}).clone()});
  EXPECT_TRUE(torch::equal(buffer, torch::arange(12.0).to(at::kFloat)));
  EXPECT_FALSE(buffer_of({}).defined());
  EXPECT_FALSE(buffer_of({torch::ones({3, 4}), torch::ones({3, 4})}).defined());
  EXPECT_FALSE(buffer_of({transposed({4, 3})}).defined()) << "in another order";
  EXPECT_FALSE(buffer_of({torch::ones({3, 4})}, at::kDouble).defined());
  EXPECT_FALSE(buffer_of({expanded()}).defined());
}

class HeldGradientsOnStreams : public ::testing::Test {
 protected:
  const c10::Device device_ = testing::simulated_device();
  BufferPool pool_{device_, /*keeps_memory=*/false, base::AllocationPurpose::kGradientBuffers};
};

TEST_F(HeldGradientsOnStreams, AreReadWhereTheyCame) {
  HeldGradients held;
  const at::Tensor copy = testing::zeros_on_device(4);
  HeldStream late;
  {
    const base::CurrentStreamGuard on_late(late);
    held.hold(0, at::ones({4}, copy.options()), false, pool_);
  }
  held.release_after([&](int64_t, const at::Tensor& gradient) { copy.copy_(gradient); }, pool_);
  late.let_go();
  base::CurrentStreamGuard on_late(late);
  EXPECT_EQ(first_of(copy), 1);
}

TEST_F(HeldGradientsOnStreams, ABufferIsReturnedAfterItsUses) {
  const c10::Stream home = base::current_stream(device_);
  HeldGradients held;
  held.hold(0, at::ones({4}, at::TensorOptions(device_)), false, pool_);
  at::Tensor buffer = held.become_buffer(at::kFloat, {4}, {1}, pool_);
  HeldStream reader;
  {
    const base::CurrentStreamGuard on_reader(reader);
    pool_.release(buffer);
  }
  buffer.reset();
  EXPECT_FALSE(goes_on(home)) << "its memory is free there";
  reader.let_go();
  EXPECT_TRUE(goes_on(home));
}

}  // namespace
}  // namespace fsdp::engine::held_gradients_test
