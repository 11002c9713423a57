// What nearly every test includes.
#pragma once
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "json_pch.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"
#include "torch_pch.h"

#ifdef __clang__
// Uses the templates that most tests use, so that the precompiled header holds their instances.
namespace fsdp::precompiled {

inline void use_expectations(const nlohmann::json& object, const nlohmann::ordered_json& ordered,
                             const torch::Tensor& tensor) {
  EXPECT_TRUE(torch::equal(tensor, tensor)) << tensor;
  EXPECT_EQ(object, object);
  EXPECT_EQ(object, 1);
  EXPECT_GT(object, 1);
  EXPECT_GT(object, 1.0);
  EXPECT_EQ(ordered, ordered);
  EXPECT_EQ(ordered, 1);
  EXPECT_EQ(ordered, true);
  EXPECT_EQ(tensor.numel(), int64_t{1});
  EXPECT_THAT(object.dump(), ::testing::HasSubstr("text"));
}

inline void use_modules_of_tests(torch::nn::Module& module) {
  module.register_module("linear", torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)));
  torch::nn::Sequential sequence(torch::nn::Linear(1, 1), torch::nn::Linear(1, 1));
  sequence->forward(torch::Tensor());
}

}  // namespace fsdp::precompiled
#endif
