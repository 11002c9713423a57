// What the tests of several models share: names, errors of configs, and expectations that hold for all of them. Each
// test file takes it in with `using namespace model_tests`.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <string>

#include "models/causal_lm.h"
#include "models/testing/small_models.h"
#include "support/faults/error_of.h"

namespace fsdp::models::model_tests {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kNoError;

// Returns the error of making a causal language model from `config`, or kNoError.
inline std::string causal_lm_error(const json& config) {
  return error_of([&] { make_causal_lm(config, torch::kFloat32, torch::kMeta); });
}

// Expects that the model names `block` as the class of its blocks, and has `count` of them.
template <typename Model>
void expect_blocks(const Model& model, const std::string& block, size_t count) {
  EXPECT_THAT(model.block_class_names(), ElementsAre(block));
  size_t blocks = 0;
  for (const auto& module : model.modules()) blocks += module->name() == "fsdp::models::" + block + "Impl";
  EXPECT_EQ(blocks, count);
}

// Expects that make() draws no random numbers and leaves all parameters on the meta device; returns its model.
template <typename Make>
auto expect_meta_without_draws(const Make& make) {
  torch::manual_seed(5);
  const auto expected = torch::rand({4});
  torch::manual_seed(5);
  const auto model = make();
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
  for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.is_meta() && parameter.requires_grad());
  return model;
}

}  // namespace fsdp::models::model_tests
