// Tests embedding tables that are split over ranks against whole tables in one process: rows, gradients, optimizer
// steps.
#include "sparse/split_embedding.h"

#include "comm/testing/recording_communicator.h"
#include "fsdp/backends.h"
#include "sparse/row_optimizer.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::sparse::split_embedding_test {
namespace {

using fsdp::testing::error_of;
using fsdp::testing::run_ranks;
using ::testing::Combine;
using ::testing::HasSubstr;
using ::testing::Values;

// Returns a table smaller than the group, one that divides evenly and one that does not.
models::EmbeddingTables small_tables() { return {{2, 12, 31}, 5, 17}; }

// Returns the ids of one rank's batch at a step, with repetitions and with rows that several ranks need.
at::Tensor ids_of(int rank, int step, int64_t batch) {
  const auto numbers = torch::arange(batch * 3).view({batch, 3}) * (7 + step) + rank * 5 + step;
  return numbers.remainder(torch::tensor({2, 12, 31}));
}

// Returns a loss that differs for each sample, so that each use of a row has another gradient.
at::Tensor loss_of(const at::Tensor& rows, int rank) {
  const auto factors =
      torch::arange(rows.numel()).view(rows.sizes()).remainder(11).add(rank + 1).to(rows.scalar_type());
  return (rows * factors).square().sum() * 0.01;
}

std::shared_ptr<SplitEmbedding> split_over(std::shared_ptr<Communicator> comm, at::ScalarType dtype = at::kDouble) {
  SplitEmbeddingOptions options;
  options.dtype = dtype;
  return std::make_shared<SplitEmbedding>(std::move(comm), small_tables(), options);
}

models::WholeEmbedding whole(at::ScalarType dtype = at::kDouble) {
  return models::WholeEmbedding(small_tables(), at::TensorOptions(dtype));
}

// Returns the part of the whole tables, which are stored one after another, that corresponds to a piece.
at::Tensor part_of_whole(const at::Tensor& whole, const std::vector<EmbeddingPiece>& pieces, size_t table) {
  int64_t first = 0;
  for (size_t i = 0; i < table; ++i) first += pieces[i].rows;
  return whole.narrow(0, first + pieces[table].begin, pieces[table].values.size(0));
}

void expect_pieces_of(const std::vector<EmbeddingPiece>& pieces, const at::Tensor& whole, double tolerance) {
  for (size_t table = 0; table < pieces.size(); ++table) {
    const at::Tensor expected = part_of_whole(whole, pieces, table);
    EXPECT_TRUE(torch::allclose(pieces[table].values, expected, tolerance, tolerance)) << pieces[table].name;
  }
}

at::Tensor dense_gradient(const SplitEmbedding& embedding) {
  at::Tensor dense = torch::zeros_like(embedding.weight().detach());
  if (embedding.gradient().defined()) dense.index_copy_(0, embedding.gradient().rows, embedding.gradient().values);
  return dense;
}

class SplitSizes : public ::testing::TestWithParam<int> {};

TEST_P(SplitSizes, InitialRowsDoNotDependOnTheRanks) {
  auto reference = whole();
  run_ranks(GetParam(), [&](std::shared_ptr<Communicator> comm) {
    const auto embedding = split_over(comm);
    EXPECT_LE(embedding->weight().size(0), 45 / comm->size() + 3);
    expect_pieces_of(embedding->pieces(), reference->weight, 0);
    EXPECT_TRUE(embedding->parameters().empty());
  });
}

TEST_P(SplitSizes, RowsAreThoseOfWholeTables) {
  auto reference = whole();
  run_ranks(GetParam(), [&](std::shared_ptr<Communicator> comm) {
    const auto embedding = split_over(comm);
    for (int64_t batch : {9, 1, 0}) {
      const auto ids = ids_of(comm->rank(), 0, batch + (batch > 0 ? comm->rank() : 0));
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(torch::equal(embedding->forward(ids), reference->forward(ids)));
    }
  });
}

// Gradients are the mean over ranks, as in data-parallel training. The batch size differs between ranks, and one batch
// is empty.
TEST_P(SplitSizes, GradientsAreTheMeanOverRanks) {
  auto reference = whole();
  const int size = GetParam();
  const auto batch_of = [](int rank) { return rank == 1 ? 0 : 6 + rank; };
  at::Tensor loss = torch::zeros({}, at::kDouble);
  for (int rank = 0; rank < size; ++rank) {
    for (int step = 0; step < 2; ++step) {
      loss = loss + loss_of(reference->forward(ids_of(rank, step, batch_of(rank))), rank) / size;
    }
  }
  loss.backward();
  run_ranks(size, [&](std::shared_ptr<Communicator> comm) {
    const auto embedding = split_over(comm);
    const int rank = comm->rank();
    // Both lookups come before the first backward, and the gradients of both are added up.
    const auto first = embedding->forward(ids_of(rank, 0, batch_of(rank)));
    const auto second = embedding->forward(ids_of(rank, 1, batch_of(rank)));
    EXPECT_FALSE(embedding->gradient().defined());
    loss_of(first, rank).backward();
    loss_of(second, rank).backward();
    expect_pieces_of(embedding->pieces_of(dense_gradient(*embedding)), reference->weight.grad(), 1e-12);
    EXPECT_FALSE(embedding->weight().grad().defined());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SplitSizes, Values(1, 2, 3, 4));

class RowRules : public ::testing::TestWithParam<std::tuple<int, RowRule>> {};

// Applies the same rule to the whole matrix.
void dense_step(const at::Tensor& weight, const at::Tensor& gradient, at::Tensor& squares, RowRule rule) {
  const torch::NoGradGuard no_grad;
  if (rule == RowRule::kSgd) {
    weight.sub_(gradient * 0.1);
    return;
  }
  squares += gradient.square().mean(1);
  weight.sub_(0.1 * gradient / (squares.sqrt() + 1e-8).unsqueeze(1));
}

TEST_P(RowRules, StepsEqualADenseOptimizer) {
  const auto [size, rule] = GetParam();
  auto reference = whole();
  at::Tensor squares = torch::zeros({45}, at::kDouble);
  for (int step = 0; step < 4; ++step) {
    reference->zero_grad();
    for (int rank = 0; rank < size; ++rank) {
      (loss_of(reference->forward(ids_of(rank, step, 5)), rank) / size).backward();
    }
    dense_step(reference->weight.detach(), reference->weight.grad(), squares, rule);
  }
  run_ranks(size, [&, rule = rule](std::shared_ptr<Communicator> comm) {
    const auto embedding = split_over(comm);
    RowOptimizer optimizer(embedding, {rule, 0.1});
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      loss_of(embedding->forward(ids_of(comm->rank(), step, 5)), comm->rank()).backward();
      optimizer.step();
    }
    expect_pieces_of(embedding->pieces(), reference->weight.detach(), 1e-10);
    if (rule == RowRule::kRowWiseAdagrad) expect_pieces_of(embedding->pieces_of(optimizer.squares()), squares, 1e-10);
  });
}

INSTANTIATE_TEST_SUITE_P(All, RowRules, Combine(Values(1, 2, 3, 4), Values(RowRule::kSgd, RowRule::kRowWiseAdagrad)));

TEST(RowOptimizer, LeavesOtherRowsAlone) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto embedding = split_over(comm);
    const at::Tensor before = embedding->weight().detach().clone();
    RowOptimizer optimizer(embedding, {});
    optimizer.step();  // without a gradient
    EXPECT_TRUE(torch::equal(embedding->weight().detach(), before));
    embedding->forward(torch::tensor({{0, 0, 0}})).sum().backward();
    optimizer.step();
    const at::Tensor changed = embedding->weight().detach().ne(before).any(1);
    EXPECT_EQ(changed.sum().item<int64_t>(), comm->rank() == 0 ? 3 : 0);
    EXPECT_TRUE(torch::equal(optimizer.squares().ne(0), changed));
  });
}

TEST(RowOptimizer, ScalesTheGradient) {
  for (const RowRule rule : {RowRule::kSgd, RowRule::kRowWiseAdagrad}) {
    const auto row_after = [&](double factor_of_loss, double gradient_scale) {
      const auto embedding = split_over(make_fake_communicator(0, 1));
      RowOptimizer optimizer(embedding, {rule, 0.1});
      (embedding->forward(torch::tensor({{1, 2, 3}})).square().sum() * factor_of_loss).backward();
      optimizer.step(gradient_scale);
      const at::Tensor squares = rule == RowRule::kSgd ? torch::zeros({1}) : optimizer.squares().sum().view(1);
      return torch::cat({embedding->weight().detach().flatten(), squares});
    };
    EXPECT_TRUE(torch::allclose(row_after(8.0, 1.0 / 64), row_after(1.0 / 8, 1.0)));
    EXPECT_FALSE(torch::allclose(row_after(8.0, 1.0), row_after(1.0 / 8, 1.0)));
  }
}

TEST(RowOptimizer, RefusesNegativeRates) {
  const auto embedding = split_over(make_fake_communicator(0, 1));
  EXPECT_THAT(error_of([&] { RowOptimizer(embedding, {RowRule::kSgd, -1}); }), HasSubstr("learning rate of -1"));
  RowOptimizer optimizer(embedding, {RowRule::kSgd, 1});
  EXPECT_THAT(error_of([&] { optimizer.set_learning_rate(-2); }), HasSubstr("learning rate of -2"));
}

// Each row is sent once, however often the batch needs it, and a table never.
TEST(SplitEmbedding, SendsEachRowOnce) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto embedding = split_over(comm, at::kFloat);
    const auto before = comm->bytes_sent();
    const torch::NoGradGuard no_grad;
    // Both batches contain 100 times the rows 0, 0, 0, which all lie on rank 0: rank 0 looks up its own rows only.
    embedding->forward(torch::zeros({100, 3}, at::kLong));
    const auto sent = comm->bytes_sent() - before;
    const uint64_t count = sizeof(int64_t);
    EXPECT_EQ(sent, comm->rank() == 0 ? count + 3 * 5 * sizeof(float) : count + 3 * sizeof(int64_t));
  });
}

TEST(SplitEmbedding, ResultsDoNotDependOnTiming) {
  std::vector<at::Tensor> gradients;
  for (int run = 0; run < 3; ++run) {
    run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
      const auto embedding = split_over(comm, at::kFloat);
      const auto rows = embedding->forward(ids_of(comm->rank(), 0, 40));
      std::this_thread::sleep_for(std::chrono::milliseconds(5 * ((comm->rank() + run) % 3)));
      loss_of(rows, comm->rank()).backward();
      if (comm->rank() == 0) gradients.push_back(dense_gradient(*embedding));
    });
  }
  EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
  EXPECT_TRUE(torch::equal(gradients[0], gradients[2]));
}

TEST(SplitEmbedding, BackwardOfAKeptGraphAddsAgain) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const auto embedding = split_over(comm);
    const auto loss = embedding->forward(ids_of(comm->rank(), 0, 4)).sum();
    loss.backward({}, /*retain_graph=*/true);
    const at::Tensor once = dense_gradient(*embedding);
    loss.backward();
    EXPECT_TRUE(torch::allclose(dense_gradient(*embedding), 2 * once));
    EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("second time"));
  });
}

TEST(SplitEmbedding, DoubleBackwardIsAnError) {
  const auto embedding = split_over(make_fake_communicator(0, 1));
  const auto loss = embedding->forward(ids_of(0, 0, 2)).square().sum();
  EXPECT_THAT(error_of([&] { loss.backward({}, true, /*create_graph=*/true); }), HasSubstr("double backward"));
}

TEST(SplitEmbedding, WrongIdsAreNamed) {
  const auto embedding = split_over(make_fake_communicator(0, 1));
  const auto error = [&](const at::Tensor& ids) { return error_of([&] { embedding->forward(ids); }); };
  EXPECT_THAT(error(torch::tensor({{0, 0, 0}, {1, 12, 0}})), HasSubstr("id 12 of feature 1 in row 1"));
  EXPECT_THAT(error(torch::tensor({{0, 0, -1}})), HasSubstr("id -1 of feature 2 in row 0"));
  EXPECT_THAT(error(torch::zeros({2, 2}, at::kLong)), HasSubstr("[batch, 3]"));
  EXPECT_THAT(error(torch::zeros({2, 3})), HasSubstr("int64"));
  EXPECT_THAT(error(at::Tensor()), HasSubstr("int64"));
}

TEST(SplitEmbedding, WrongTablesAreNamed) {
  const auto error = [](std::vector<int64_t> rows, int64_t width) {
    return error_of([&] { SplitEmbedding(make_fake_communicator(0, 1), {std::move(rows), width, 0}); });
  };
  EXPECT_THAT(error({}, 4), HasSubstr("the list is empty"));
  EXPECT_THAT(error({3, 0}, 4), HasSubstr("embedding table 1 has 0 rows"));
  EXPECT_THAT(error({3}, 0), HasSubstr("width of 0"));
  EXPECT_THAT(error({int64_t{1} << 61, int64_t{1} << 61}, 4),
              HasSubstr("more numbers than a 64-bit integer can count"));
}

}  // namespace
}  // namespace fsdp::sparse::split_embedding_test
