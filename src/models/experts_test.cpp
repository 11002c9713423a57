#include "models/experts.h"

#include <torch/torch.h>

#include "models/causal_lm.h"
#include "models/testing/counted_flops.h"
#include "models/testing/model_tests.h"

namespace fsdp::models::experts_test {
namespace {

using namespace model_tests;

constexpr int64_t kExperts = 5, kWidth = 6, kInner = 4;

Experts make_experts(uint64_t seed = 3) {
  torch::manual_seed(seed);
  Experts experts(kExperts, kWidth, kInner, activation_named("silu"), torch::kFloat64);
  initialize_parameters(*experts, 0.5);
  return experts;
}

Routing routing_of(const std::vector<std::vector<int64_t>>& choices) {
  std::vector<torch::Tensor> rows;
  for (const auto& row : choices) rows.push_back(torch::tensor(row, torch::kInt64));
  Routing routing;
  routing.experts = torch::stack(rows);
  routing.weights = torch::rand(routing.experts.sizes(), torch::kFloat64);
  return routing;
}

// The definition, token by token.
torch::Tensor by_token(const Experts& experts, const torch::Tensor& tokens, const Routing& routing) {
  std::vector<torch::Tensor> rows;
  for (int64_t token = 0; token < tokens.size(0); ++token) {
    torch::Tensor sum = torch::zeros({kWidth}, torch::kFloat64);
    for (int64_t slot = 0; slot < routing.experts.size(1); ++slot) {
      const auto expert = routing.experts[token][slot].item<int64_t>();
      const auto projected = torch::matmul(experts->gate_up_proj[expert], tokens[token]);
      const auto inner = torch::silu(projected.narrow(0, 0, kInner)) * projected.narrow(0, kInner, kInner);
      sum = sum + routing.weights[token][slot] * torch::matmul(experts->down_proj[expert], inner);
    }
    rows.push_back(sum);
  }
  return torch::stack(rows);
}

std::vector<torch::Tensor> gradients(Experts& experts, const torch::Tensor& output) {
  experts->zero_grad();
  output.square().sum().backward();
  return {experts->gate_up_proj.grad().clone(), experts->down_proj.grad().clone()};
}

TEST(Experts, EachTokenHasTheWeightedSumOfItsExperts) {
  Experts experts = make_experts();
  for (const auto& choices : std::vector<std::vector<std::vector<int64_t>>>{
           {{4, 0}, {0, 4}, {2, 1}, {1, 2}}, {{3, 1}}, {{2}, {2}, {2}}, {{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}}}) {
    const Routing routing = routing_of(choices);
    const auto tokens = torch::randn({routing.experts.size(0), kWidth}, torch::kFloat64);
    const auto got = experts(tokens, routing), want = by_token(experts, tokens, routing);
    EXPECT_TRUE(torch::allclose(got, want, 0, 1e-12));
    const auto of_got = gradients(experts, got), of_want = gradients(experts, want);
    for (size_t i = 0; i < of_got.size(); ++i) EXPECT_TRUE(torch::allclose(of_got[i], of_want[i], 0, 1e-12)) << i;
  }
}

TEST(Experts, ThoseWithoutTokensHaveGradientsOfZero) {
  Experts experts = make_experts();
  const auto found =
      gradients(experts, experts(torch::randn({3, kWidth}, torch::kFloat64), routing_of({{1}, {3}, {1}})));
  for (const torch::Tensor& gradient : found) {
    for (int64_t expert = 0; expert < kExperts; ++expert) {
      EXPECT_EQ(gradient[expert].ne(0).any().item<bool>(), expert == 1 || expert == 3) << expert;
    }
  }
}

TEST(Experts, NoTokensAreNoError) {
  Experts experts = make_experts();
  Routing routing = routing_of({{1, 2}});
  routing.experts = routing.experts.narrow(0, 0, 0);
  routing.weights = routing.weights.narrow(0, 0, 0);
  EXPECT_EQ(experts(torch::empty({0, kWidth}, torch::kFloat64), routing).sizes(), (std::vector<int64_t>{0, kWidth}));
}

TEST(Router, RenormalisesAndRoundsAsItIsTold) {
  torch::manual_seed(4);
  const auto tokens = torch::randn({7, kWidth}).to(torch::kBFloat16);
  for (const bool renormalizes : {false, true}) {
    for (const bool rounds : {false, true}) {
      Router router(kWidth, RouterOptions{kExperts, 2, renormalizes, rounds}, torch::kBFloat16);
      initialize_parameters(*router, 1.0);
      const Routing routing = router(tokens);
      EXPECT_EQ(routing.weights.scalar_type(), rounds ? torch::kBFloat16 : torch::kFloat32);
      const auto sums = routing.weights.to(torch::kFloat32).sum(-1);
      EXPECT_EQ(torch::allclose(sums, torch::ones({7}), 0, 1e-2), renormalizes);
      const auto probabilities = torch::softmax(routing.logits.to(torch::kFloat32), -1);
      EXPECT_TRUE(torch::equal(std::get<1>(probabilities.topk(2)), routing.experts));
    }
  }
}

TEST(LoadBalancingLoss, IsTheNumberOfExpertsTimesTheSumOfSharesAndProbabilities) {
  torch::manual_seed(5);
  const std::vector<torch::Tensor> logits{torch::randn({3, 4}, torch::kFloat64), torch::randn({3, 4}, torch::kFloat64)};
  const auto all = torch::cat(logits), probabilities = torch::softmax(all, -1);
  const auto chosen = std::get<1>(probabilities.topk(2));
  double want = 0;
  for (int64_t expert = 0; expert < 4; ++expert) {
    const double share = chosen.eq(expert).sum().item<double>() / 6;
    want += 4 * share * probabilities.select(1, expert).mean().item<double>();
  }
  EXPECT_NEAR(load_balancing_loss(logits, 2).item<double>(), want, 1e-12);
  EXPECT_NEAR(load_balancing_loss({torch::zeros({6, 4})}, 4).item<double>(), 4.0, 1e-6);
}

json with_router_loss(double coefficient) {
  json config = small_decoder("qwen2_moe", "Qwen2MoeForCausalLM",
                              {{"num_experts", 5},
                               {"num_experts_per_tok", 2},
                               {"moe_intermediate_size", 7},
                               {"shared_expert_intermediate_size", 9},
                               {"initializer_range", 0.5}});
  config["output_router_logits"] = coefficient != 0;
  config["router_aux_loss_coef"] = coefficient;
  return config;
}

std::vector<torch::Tensor> results(const json& config, const CheckpointPolicy& policy) {
  torch::manual_seed(6);
  const auto model = make_causal_lm(config, torch::kFloat32, torch::kCPU);
  model->set_activation_checkpointing(policy);
  const auto ids = torch::randint(31, {2, 6});
  const auto loss = model->forward(ids, ids).loss;
  loss.backward();
  std::vector<torch::Tensor> all{loss.detach()};
  for (const auto& parameter : model->parameters()) all.push_back(parameter.grad());
  return all;
}

TEST(LoadBalancingLoss, IsPartOfTheLossAndOfGradientsWithActivationCheckpointing) {
  const auto plain = results(with_router_loss(0), {}), with = results(with_router_loss(0.5), {});
  EXPECT_GT((with[0] - plain[0]).item<float>(), 0.5f);  // 0.5 times at least the number of experts of a token, 2
  for (const auto& policy : {CheckpointPolicy::full(), CheckpointPolicy::every(2)}) {
    const auto recomputed = results(with_router_loss(0.5), policy);
    for (size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(torch::equal(recomputed[i], with[i])) << i;
  }
}

TEST(Experts, ModelsAreCountedWithTheExpertsOfAToken) {
  // q and o 12x12, k and v 12x4; a router 12x3 and two experts of 3 products 12x20; head 12x31; sdpa 2 layers x 12 x S.
  const double weights = 2 * (2 * 144 + 2 * 48 + 36 + 2 * 3 * 240) + 372;
  const auto model = make_causal_lm(small_decoder("mixtral", "MixtralForCausalLM", {{"num_local_experts", 3}}),
                                    torch::kFloat32, torch::kMeta);
  EXPECT_EQ(model->flops_per_token(7), 6 * weights + 12 * 2 * 12 * 7);
}

TEST(Experts, ConfigsThatCannotBeAreRefused) {
  const json config = small_decoder("mixtral", "MixtralForCausalLM", {{"num_local_experts", 3}});
  EXPECT_THAT(causal_lm_error(changed(config, {{"num_experts_per_tok", 4}})),
              AllOf(HasSubstr("num_experts_per_tok is 4"), HasSubstr("at most the number of experts, 3")));
  EXPECT_THAT(causal_lm_error(changed(config, {{"num_local_experts", 0}})), HasSubstr("num_local_experts is 0"));
  EXPECT_THAT(causal_lm_error(changed(config, {{"num_experts", 4}})),
              AllOf(HasSubstr("num_local_experts is 3"), HasSubstr("num_experts, 4")));
}

}  // namespace
}  // namespace fsdp::models::experts_test
