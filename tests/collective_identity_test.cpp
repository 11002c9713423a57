// Rule R8: if ranks do different things, every rank gets an error that says so. Data is never mixed, and no rank hangs.
#include <mutex>

#include "engine/engine.h"
#include "support/faults/error_of.h"
#include "support/nets/two_layers.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::Bag;
using testing::ExpertsImpl;
using testing::run_ranks;

const testing::RankOptions kImpatient{std::chrono::seconds(4)};

Options options_for(const std::shared_ptr<Communicator>& communicator) {
  Options options;
  options.communicator = communicator;
  options.auto_wrap_policy = testing::every_module();
  return options;
}

// Returns the errors of all ranks. Every rank must have one.
std::vector<std::string> errors_of_ranks(int world_size,
                                         const std::function<void(std::shared_ptr<Communicator>)>& body) {
  std::vector<std::string> errors = testing::errors_of_ranks(world_size, body, kImpatient);
  for (int rank = 0; rank < world_size; ++rank) EXPECT_NE(errors[rank], testing::kNoError) << "rank " << rank;
  return errors;
}

void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is missing in: " << text;
  }
}

TEST(CollectiveIdentity, DifferentUnitsOfEqualSize) {
  auto errors = errors_of_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    ExpertsImpl net;
    auto sharded = testing::shard_strictly(net, options_for(communicator));
    torch::Tensor x = torch::ones({1, 4});
    (void)(communicator->rank() == 0 ? net.a(x) : net.b(x));
  });
  for (const std::string& error : errors) expect_parts(error, {"'a'", "'b'", "rank 0", "rank 1"});
}

TEST(CollectiveIdentity, ARankThatSkipsAnOperator) {
  auto errors = errors_of_ranks(3, [](std::shared_ptr<Communicator> communicator) {
    ExpertsImpl net;
    auto sharded = testing::shard_strictly(net, options_for(communicator));
    torch::Tensor x = torch::ones({1, 4});
    torch::Tensor y = communicator->rank() == 1 ? x : net.a(x);
    net.b(y).sum().backward();
  });
  expect_parts(errors[1], {"'a'", "'b'"});
}

TEST(CollectiveIdentity, ARankThatTouchesAlone) {
  auto errors = errors_of_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    ExpertsImpl net;
    auto sharded = testing::shard_strictly(net, options_for(communicator));
    sharded->diagnostics().verify_sharding();
    if (communicator->rank() == 0) {
      (void)net.a->weight.norm();  // such as a log line on one rank
    }
    net.b(torch::ones({1, 4})).sum().backward();
  });
  expect_parts(errors[0], {"'a'"});
}

TEST(CollectiveIdentity, ARankThatEndsEarly) {
  auto errors = errors_of_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    ExpertsImpl net;
    auto sharded = testing::shard_strictly(net, options_for(communicator));
    net.a(torch::ones({1, 4})).sum().backward();
    if (communicator->rank() == 1) {
      throw std::runtime_error("rank 1 gives up");  // its communicator lives on, so the other rank has to wait
    }
    net.a(torch::ones({1, 4})).sum().backward();
  });
  expect_parts(errors[0], {"rank 1"});
}

TEST(CollectiveIdentity, ARankThatIsLate) {
  auto errors = errors_of_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    ExpertsImpl net;
    auto sharded = testing::shard_strictly(net, options_for(communicator));
    sharded->diagnostics().verify_sharding();
    if (communicator->rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(6));
    net.a(torch::ones({1, 4})).sum().backward();
  });
  expect_parts(errors[0], {"'a'", "rank 1"});
}

TEST(CollectiveIdentity, MoreBackwardsOnOneRank) {
  auto errors = errors_of_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    ExpertsImpl net;
    auto sharded = testing::shard_strictly(net, options_for(communicator));
    torch::Tensor x = torch::ones({1, 4}).set_requires_grad(true);
    torch::Tensor loss = net.b(net.a(x)).sum();
    if (communicator->rank() == 0) loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    (void)net.a(x);
  });
}

TEST(CollectiveIdentity, ClippingOnOneRankOnly) {
  auto errors = errors_of_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    ExpertsImpl net;
    auto sharded = testing::shard_strictly(net, options_for(communicator));
    net.a(torch::ones({1, 4})).sum().backward();
    if (communicator->rank() == 0) sharded->clip_grad_norm_(1);
    net.a(torch::ones({1, 4})).sum().backward();
  });
  expect_parts(errors[1], {"clip_grad_norm_"});
}

// A teacher and a student of the same shape over one communicator: their units have the same names.
TEST(CollectiveIdentity, TwoModelsOfOneShape) {
  auto errors = errors_of_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    torch::nn::Linear teacher(4, 4), student(4, 4);
    auto first = testing::shard_strictly(*teacher, options_for(communicator));
    auto second = testing::shard_strictly(*student, options_for(communicator));
    first->diagnostics().verify_sharding();
    second->diagnostics().verify_sharding();
    torch::Tensor x = torch::ones({1, 4});
    (void)(communicator->rank() == 0 ? teacher(x) : student(x));
  });
  expect_parts(errors[0], {"'root'", "'root (model 2)'"});
}

TEST(CollectiveIdentity, TwoModelsInTurns) {
  run_ranks(
      2,
      [](std::shared_ptr<Communicator> communicator) {
        ExpertsImpl teacher, student;
        Options options = options_for(communicator);
        options.auto_wrap_policy = {};
        fully_shard(*student.a, options);  // bottom-up: annotated inner modules do not count as models
        auto second = testing::shard_strictly(student, options);
        auto first = testing::shard_strictly(teacher, options);
        for (int step = 0; step < 2; ++step) {
          torch::Tensor x = torch::ones({1, 4});
          (teacher.b(teacher.a(x)).detach() - student.b(student.a(x))).pow(2).sum().backward();
        }
      },
      kImpatient);
}

TEST(CollectiveIdentity, AModuleNamedLikeTheRootUnit) {
  auto errors = errors_of_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    torch::nn::Module net;
    torch::nn::Linear child(4, 4);
    net.register_module("root", child);
    torch::Tensor own = net.register_parameter("own", torch::ones({20}));
    auto sharded = testing::shard_strictly(net, options_for(communicator));
    (void)(communicator->rank() == 0 ? own.sum() : child->weight.sum());
  });
  expect_parts(errors[0], {"'root'", "'root.'"});
}

// ---- models that ranks shard differently

struct ShardingCase {
  const char* name;
  // Shards something on this rank and touches it.
  void (*body)(const std::shared_ptr<Communicator>& communicator, bool odd);
  std::vector<const char*> parts;  // of the message of every rank
};

void shard_and_touch(torch::nn::Module& module, const Options& options) {
  auto sharded = fully_shard(module, options);
  (void)module.parameters().at(0).sum();
}

const std::vector<ShardingCase> kShardings = {
    {"shape",
     [](const auto& communicator, bool odd) {
       torch::nn::Linear linear(4, odd ? 5 : 3);
       shard_and_touch(*linear, options_for(communicator));
     },
     {"[3, 4]", "[5, 4]"}},
    {"equal_size_other_shape",
     [](const auto& communicator, bool odd) {
       Bag bag(std::vector<torch::Tensor>{odd ? torch::ones({2, 6}) : torch::ones({3, 4})});
       shard_and_touch(*bag, options_for(communicator));
     },
     {"'p0' of shape [3, 4]", "'p0' of shape [2, 6]"}},
    {"strides",
     [](const auto& communicator, bool odd) {
       Bag bag(std::vector<torch::Tensor>{odd ? torch::ones({4, 3}).t() : torch::ones({3, 4})});
       shard_and_touch(*bag, options_for(communicator));
     },
     {"strides [4, 1]", "strides [1, 3]"}},
    {"names",
     [](const auto& communicator, bool odd) {
       torch::nn::Module module;
       module.register_parameter(odd ? "beta" : "alpha", torch::ones({4}));
       shard_and_touch(module, options_for(communicator));
     },
     {"'alpha'", "'beta'"}},
    {"order",
     [](const auto& communicator, bool odd) {
       torch::nn::Module module;
       module.register_parameter(odd ? "b" : "a", torch::ones({4}));
       module.register_parameter(odd ? "a" : "b", torch::ones({4}));
       shard_and_touch(module, options_for(communicator));
     },
     {"[parameter 'a'", "[parameter 'b'"}},
    {"dtype",
     [](const auto& communicator, bool odd) {
       Bag bag(std::vector<torch::Tensor>{torch::ones({4}, odd ? torch::kDouble : torch::kFloat)});
       shard_and_touch(*bag, options_for(communicator));
     },
     {"Float", "Double"}},
    {"requires_grad",
     [](const auto& communicator, bool odd) {
       torch::nn::Module module;
       module.register_parameter("w", torch::ones({4}), !odd);
       shard_and_touch(module, options_for(communicator));
     },
     {"requires_grad true", "requires_grad false"}},
    {"units",
     [](const auto& communicator, bool odd) {
       ExpertsImpl net;
       Options options = options_for(communicator);
       if (odd) options.auto_wrap_policy = {};
       shard_and_touch(net, options);
     },
     {"unit 'a'", "unit 'root'"}},
    {"number_of_units",
     [](const auto& communicator, bool odd) {
       torch::nn::Sequential net{torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)};
       if (odd) net->push_back(torch::nn::Linear(4, 4));
       shard_and_touch(*net, options_for(communicator));
     },
     {"(nothing more)", "unit '2'"}},
    {"strategy",
     [](const auto& communicator, bool odd) {
       torch::nn::Linear linear(4, 4);
       Options options = options_for(communicator);
       options.sharding_strategy = odd ? ShardingStrategy::kShardGradOp : ShardingStrategy::kFullShard;
       shard_and_touch(*linear, options);
     },
     {"FULL_SHARD", "SHARD_GRAD_OP"}},
    {"replicated",
     [](const auto& communicator, bool odd) {
       torch::nn::Linear linear(4, 4);
       Options options = options_for(communicator);
       options.sharding_strategy = odd ? ShardingStrategy::kNoShard : ShardingStrategy::kFullShard;
       shard_and_touch(*linear, options);
     },
     {"FULL_SHARD", "NO_SHARD"}},
    {"use_orig_params",
     [](const auto& communicator, bool odd) {
       torch::nn::Linear linear(4, 4);
       Options options = options_for(communicator);
       options.use_orig_params = odd;
       shard_and_touch(*linear, options);
     },
     {"use_orig_params true", "use_orig_params false"}},
    {"param_dtype",
     [](const auto& communicator, bool odd) {
       torch::nn::Linear linear(4, 4);
       Options options = options_for(communicator);
       if (odd) options.param_dtype = torch::kBFloat16;
       shard_and_touch(*linear, options);
     },
     {"compute Float", "compute BFloat16"}},
    {"reduce_dtype",
     [](const auto& communicator, bool odd) {
       torch::nn::Linear linear(4, 4);
       Options options = options_for(communicator);
       if (odd) options.reduce_dtype = torch::kDouble;
       shard_and_touch(*linear, options);
     },
     {"reduce Float", "reduce Double"}},
    {"reshard",
     [](const auto& communicator, bool odd) {
       torch::nn::Linear linear(4, 4);
       Options options = options_for(communicator);
       options.reshard_after_forward = odd;
       shard_and_touch(*linear, options);
     },
     {"reshard_after_forward true", "reshard_after_forward false"}},
    {"backward_prefetch",
     [](const auto& communicator, bool odd) {
       torch::nn::Linear linear(4, 4);
       Options options = options_for(communicator);
       options.backward_prefetch = odd ? BackwardPrefetch::kNone : BackwardPrefetch::kPost;
       shard_and_touch(*linear, options);
     },
     {"backward_prefetch BACKWARD_POST", "backward_prefetch none"}},
    {"forward_prefetch",
     [](const auto& communicator, bool odd) {
       torch::nn::Linear linear(4, 4);
       Options options = options_for(communicator);
       options.forward_prefetch = odd;
       shard_and_touch(*linear, options);
     },
     {"forward_prefetch false", "forward_prefetch true"}},
    {"limit",
     [](const auto& communicator, bool odd) {
       torch::nn::Linear linear(4, 4);
       Options options = options_for(communicator);
       options.limit_all_gathers = odd;
       options.max_gathered_units = 3;
       shard_and_touch(*linear, options);
     },
     {"limit of gathered units none", "limit of gathered units 3"}},
    {"collective_check",
     [](const auto& communicator, bool odd) {
       torch::nn::Linear linear(4, 4);
       Options options = options_for(communicator);
       options.debug.collective_check.every = odd ? 7 : 9;
       shard_and_touch(*linear, options);
     },
     {"steps and every 9", "steps and every 7"}},
    {"communicators",
     [](const auto& communicator, bool odd) {
       torch::nn::Linear linear(4, 4);
       Options options = options_for(communicator);
       options.one_communicator = odd;
       shard_and_touch(*linear, options);
     },
     {"one_communicator false", "one_communicator true"}},
};

class ShardingMismatch : public ::testing::TestWithParam<ShardingCase> {};
INSTANTIATE_TEST_SUITE_P(All, ShardingMismatch, ::testing::ValuesIn(kShardings),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ShardingMismatch, IsAnErrorOnAllRanks) {
  auto errors = errors_of_ranks(
      3, [](std::shared_ptr<Communicator> communicator) { GetParam().body(communicator, communicator->rank() == 2); });
  for (int rank = 0; rank < 3; ++rank) {
    expect_parts(errors[rank], {"rank 0", "rank 2", "First difference"});
    for (const char* part : GetParam().parts) expect_parts(errors[rank], {part});
  }
}

TEST(ShardingMismatchWorld, IsFoundByVerifyShardingBeforeAnyTouch) {
  auto errors = errors_of_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    torch::nn::Linear linear(4, communicator->rank() + 3);
    fully_shard(*linear, options_for(communicator))->diagnostics().verify_sharding();
  });
  expect_parts(errors[0], {"First difference"});
}

TEST(ShardingMismatchWorld, TheSameShardingPasses) {
  run_ranks(
      3,
      [](std::shared_ptr<Communicator> communicator) {
        ExpertsImpl net;
        auto sharded = fully_shard(net, options_for(communicator));
        sharded->diagnostics().verify_sharding();
        sharded->diagnostics().verify_sharding();
        (void)net.a->weight.sum();
      },
      kImpatient);
}

}  // namespace
}  // namespace fsdp
