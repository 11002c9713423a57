// Tests token sources, samples, and the distribution of samples over ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <set>

#include "data/batches.h"
#include "data/distributed_sampler.h"
#include "data/token_dataset.h"
#include "support/files/temporary_folder.h"

namespace fsdp::trainer::data_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Id>
std::string bytes_of(const std::vector<Id>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)};
}

std::vector<int64_t> tokens_of(const TokenSource& source, int64_t begin, int64_t count) {
  std::vector<int64_t> tokens(static_cast<size_t>(count));
  source.read(begin, count, tokens.data());
  return tokens;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(DummyTokens, DependOnSeedStreamAndPositionAlone) {
  const auto first = make_dummy_tokens("dummy", 1000, 49152, 42, 0);
  const auto all = tokens_of(*first, 0, 1000);
  EXPECT_EQ(tokens_of(*first, 500, 3), std::vector(all.begin() + 500, all.begin() + 503));
  EXPECT_EQ(all, tokens_of(*make_dummy_tokens("dummy", 1000, 49152, 42, 0), 0, 1000));
  EXPECT_NE(all, tokens_of(*make_dummy_tokens("dummy", 1000, 49152, 43, 0), 0, 1000));
  EXPECT_NE(all, tokens_of(*make_dummy_tokens("dummy", 1000, 49152, 42, 1), 0, 1000));
}

TEST(DummyTokens, CoverTheVocabularyEvenly) {
  constexpr int64_t kVocabulary = 7, kCount = 70000;
  std::vector<int64_t> count(kVocabulary);
  for (int64_t token : tokens_of(*make_dummy_tokens("dummy", kCount, kVocabulary, 1, 0), 0, kCount)) {
    ++count.at(static_cast<size_t>(token));
  }
  // The standard deviation of each count is about 93.
  for (int64_t n : count) EXPECT_NEAR(n, kCount / kVocabulary, 500);
}

TEST(TokenFile, ReadsBytesUint16AndUint32) {
  testing::TemporaryFolder folder;
  EXPECT_THAT(tokens_of(*open_token_file(folder.write("a.txt", "ab\xff"), 256), 0, 3), ElementsAre(97, 98, 255));
  const auto narrow = folder.write("b.bin", bytes_of<uint16_t>({1, 513, 65535}));
  EXPECT_THAT(tokens_of(*open_token_file(narrow, 65536), 1, 2), ElementsAre(513, 65535));
  const auto wide = folder.write("c.bin", bytes_of<uint32_t>({65536, 3}));
  EXPECT_THAT(tokens_of(*open_token_file(wide, 65537), 0, 2), ElementsAre(65536, 3));
}

TEST(TokenFile, BadFilesAreNamed) {
  testing::TemporaryFolder folder;
  const auto error = [](const std::string& path, int64_t vocabulary) {
    return error_of([&] { open_token_file(path, vocabulary); });
  };
  EXPECT_THAT(error(folder.path("none.bin"), 10), AllOf(HasSubstr("none.bin"), HasSubstr("No such file")));
  EXPECT_THAT(error(folder.path(""), 10), HasSubstr("not a regular file"));
  EXPECT_THAT(error(folder.write("empty.bin", ""), 10), AllOf(HasSubstr("empty.bin"), HasSubstr("is empty")));
  EXPECT_THAT(error(folder.write("odd.bin", "abc"), 70000 - 5000),
              AllOf(HasSubstr("odd.bin"), HasSubstr("3 bytes"), HasSubstr("multiple of 2")));
  EXPECT_THAT(error(folder.write("odd.bin", "abcdef"), 70000), HasSubstr("multiple of 4"));
  ASSERT_EQ(mkfifo(folder.path("pipe.bin").c_str(), 0600), 0);
  EXPECT_THAT(error(folder.path("pipe.bin"), 10), HasSubstr("not a regular file"));
}

TEST(TokenFile, IdsBeyondTheVocabularyAreNamedWithTheirPlace) {
  testing::TemporaryFolder folder;
  const auto path = folder.write("ids.bin", bytes_of<uint16_t>({5, 9, 10, 11}));
  EXPECT_NO_THROW(open_token_file(path, 12));
  EXPECT_THAT(error_of([&] { open_token_file(path, 10); }),
              AllOf(HasSubstr("ids.bin"), HasSubstr("token id 10 at token 2 (byte offset 4)"), HasSubstr("size, 10")));
}

// Uses a sparse file of a size that takes seconds to read.
TEST(TokenFile, OpeningReadsLittleOfAFile) {
  testing::TemporaryFolder folder;
  const auto path = folder.write("large.bin", "");
  constexpr int64_t kBytes = int64_t{1} << 33;
  if (truncate(path.c_str(), kBytes) != 0) GTEST_SKIP() << "no file of " << kBytes << " bytes: " << strerror(errno);
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  EXPECT_EQ(open_token_file(path, 100)->size(), kBytes / 2);
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt, 1000);
}

// Opening reads only a part of the file; training reads the rest.
TEST(TokenFile, IdsAreCheckedWhereTheyAreRead) {
  testing::TemporaryFolder folder;
  std::vector<uint16_t> ids(100000, 9);
  ids[50] = 10;
  EXPECT_THAT(error_of([&] { open_token_file(folder.write("first.bin", bytes_of<uint16_t>(ids)), 10); }),
              HasSubstr("at token 50"));
  std::swap(ids[50], ids[3000]);  // between the places that opening reads
  const auto file = open_token_file(folder.write("ids.bin", bytes_of<uint16_t>(ids)), 10);
  EXPECT_EQ(tokens_of(*file, 0, 3000).back(), 9);
  EXPECT_THAT(
      error_of([&] { tokens_of(*file, 2990, 20); }),
      AllOf(HasSubstr("ids.bin"), HasSubstr("token id 10 at token 3000 (byte offset 6000)"), HasSubstr("size, 10")));
  std::swap(ids[3000], ids.back());
  EXPECT_THAT(error_of([&] { open_token_file(folder.write("last.bin", bytes_of<uint16_t>(ids)), 10); }),
              HasSubstr("at token 99999"));
}

TEST(TokenFile, OneThatIsCutWhileItIsReadIsNamed) {
  testing::TemporaryFolder folder;
  const auto path = folder.write("cut.bin", bytes_of<uint16_t>(std::vector<uint16_t>(5000, 1)));
  const auto file = open_token_file(path, 10);
  ASSERT_EQ(truncate(path.c_str(), 4000), 0);
  EXPECT_EQ(tokens_of(*file, 1999, 1).front(), 1);
  EXPECT_THAT(error_of([&] { tokens_of(*file, 1990, 20); }),
              AllOf(HasSubstr("cut.bin: ends at byte 4000"), HasSubstr("10000 bytes"), HasSubstr("cut short")));
}

TEST(TokenFile, RemarksOnUint32ReadAsUint16) {
  testing::TemporaryFolder folder;
  std::vector<uint32_t> wide(200);
  std::iota(wide.begin(), wide.end(), 0);
  const auto path = folder.write("wide.bin", bytes_of<uint32_t>(wide));
  const TokenDataset data(open_token_file(path, 65536), 8);
  EXPECT_THAT(data.remark(), AllOf(HasSubstr("wide.bin"), HasSubstr("uint32"), HasSubstr("65536")));
  EXPECT_EQ(open_token_file(path, 65537)->remark(), "");
  std::vector<uint16_t> narrow(200);
  std::iota(narrow.begin(), narrow.end(), 0);
  EXPECT_EQ(open_token_file(folder.write("narrow.bin", bytes_of<uint16_t>(narrow)), 65536)->remark(), "");
  const auto zeros = folder.write("zeros.bin", bytes_of<uint16_t>(std::vector<uint16_t>(200, 0)));
  EXPECT_EQ(open_token_file(zeros, 65536)->remark(), "");
}

TEST(Dataset, CutsSamplesOfEqualLength) {
  testing::TemporaryFolder folder;
  const TokenDataset data(open_token_file(folder.write("a", "abcdefgh"), 256), 3);
  EXPECT_EQ(data.size(), 2);
  EXPECT_EQ(data.predictions(1), 2);
  const Batch batch = data.batch({1, 0});
  EXPECT_TRUE(at::equal(batch.inputs, at::tensor({100, 101, 102, 97, 98, 99}, at::kLong).view({2, 3})));
  EXPECT_TRUE(at::equal(batch.labels, batch.inputs));
}

TEST(Dataset, OpensTheDataThatTheConfigNames) {
  const auto open = [](const char* text, DatasetRole role) {
    return TokenDataset(open_tokens({.text = text, .role = role, .seed = 1}, 8, 100), 8);
  };
  const TokenDataset train = open("dummy:5", DatasetRole::kTrain);
  EXPECT_EQ(train.size(), 5);
  EXPECT_EQ(open("dummy", DatasetRole::kTrain).size(), 1024);
  const TokenDataset eval = open("dummy:5", DatasetRole::kEval);
  EXPECT_FALSE(at::equal(train.batch({0}).inputs, eval.batch({0}).inputs));
  for (const char* bad : {"dummy:", "dummy:0", "dummy:-1", "dummy:5x", "dummy:9223372036854775807"}) {
    EXPECT_THAT(error_of([&] { open(bad, DatasetRole::kEval); }), AllOf(HasSubstr("eval_dataset"), HasSubstr(bad)));
  }
}

TEST(Dataset, NeedsOneWholeSample) {
  testing::TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { TokenDataset(open_token_file(folder.write("a", "abc"), 256), 4); }),
              AllOf(HasSubstr("holds 3 tokens"), HasSubstr("max_seq_length = 4")));
}

// list(torch.utils.data.DistributedSampler(range(10), 2, r, shuffle=True, seed=7)) after set_epoch(3).
TEST(DistributedSampler, ShufflesAsPyTorchDoes) {
  const auto taken = [](int rank) {
    return DistributedSampler({.samples = 10, .rank = rank, .world_size = 2, .shuffle = true, .seed = 7}).indices(3);
  };
  EXPECT_THAT(taken(0), ElementsAre(7, 6, 3, 9, 2));
  EXPECT_THAT(taken(1), ElementsAre(4, 1, 5, 8, 0));
}

TEST(DistributedSampler, DealsPositionsOut) {
  EXPECT_THAT(DistributedSampler({.samples = 7, .rank = 1, .world_size = 3}).indices(0), ElementsAre(1, 4));
  EXPECT_THAT(DistributedSampler({.samples = 7, .rank = 0, .world_size = 3}).indices(5), ElementsAre(0, 3, 6));
  EXPECT_TRUE(DistributedSampler({.samples = 2, .rank = 2, .world_size = 3}).indices(0).empty());
}

// Returns a data set of `samples` samples of two tokens; the first token is the sample's number.
TokenDataset numbered(int64_t samples) {
  class Numbers : public TokenSource {
   public:
    explicit Numbers(int64_t size) : size_(size) {}
    std::string name() const override { return "numbers"; }
    int64_t size() const override { return size_; }
    void read(int64_t begin, int64_t count, int64_t* out) const override {
      for (int64_t i = 0; i < count; ++i) out[i] = (begin + i) / 2;
    }

   private:
    int64_t size_;
  };
  return {std::make_unique<Numbers>(samples * 2), 2};
}

std::vector<int64_t> numbers_in(const Batch& batch) {
  const at::Tensor column = batch.inputs.select(1, 0).contiguous();
  return {column.const_data_ptr<int64_t>(), column.const_data_ptr<int64_t>() + column.numel()};
}

TrainBatches train_batches(const Dataset& data, int64_t batch_size, int rank, int world_size, int64_t accumulation = 1,
                           bool shuffle = false) {
  return {data, {.global = {batch_size, world_size, accumulation}, .rank = rank, .shuffle = shuffle, .seed = 3}};
}

TEST(TrainBatches, DropTheIncompleteGlobalBatch) {
  const TokenDataset data = numbered(11);
  TrainBatches batches = train_batches(data, 2, 1, 2);  // global batches of 4: two, and 3 samples left
  EXPECT_THAT(numbers_in(batches.next().batch), ElementsAre(1, 3));
  EXPECT_THAT(numbers_in(batches.next().batch), ElementsAre(5, 7));
  EXPECT_EQ(batches.epoch(), 0);
  EXPECT_THAT(numbers_in(batches.next().batch), ElementsAre(1, 3));
  EXPECT_EQ(batches.epoch(), 1);
}

TEST(TrainBatches, AccumulationIsPartOfTheGlobalBatch) {
  const TokenDataset data = numbered(11);
  TrainBatches batches = train_batches(data, 2, 0, 1, 4);  // global batches of 8: one, and 3 samples left
  std::vector<int64_t> epoch;
  for (int i = 0; i < 4; ++i) {
    for (int64_t n : numbers_in(batches.next().batch)) epoch.push_back(n);
  }
  EXPECT_THAT(epoch, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(numbers_in(batches.next().batch), ElementsAre(0, 1));
}

// Each global batch contains the same samples for any number of ranks, so training is the same.
TEST(TrainBatches, GlobalBatchesDoNotDependOnTheNumberOfRanks) {
  const TokenDataset data = numbered(30);
  std::vector<TrainBatches> two = {train_batches(data, 3, 0, 2, 1, true), train_batches(data, 3, 1, 2, 1, true)};
  TrainBatches one = train_batches(data, 6, 0, 1, 1, true);
  for (int step = 0; step < 12; ++step) {
    const auto expected = numbers_in(one.next().batch);
    std::multiset<int64_t> together;
    for (auto& rank : two) {
      for (int64_t n : numbers_in(rank.next().batch)) together.insert(n);
    }
    EXPECT_EQ(together, std::multiset<int64_t>(expected.begin(), expected.end())) << "step " << step;
  }
}

TEST(TrainBatches, EpochsHaveOrdersOfTheirOwn) {
  const TokenDataset data = numbered(40);
  TrainBatches batches = train_batches(data, 40, 0, 1, 1, true);
  auto first = numbers_in(batches.next().batch);
  auto second = numbers_in(batches.next().batch);
  EXPECT_NE(first, second);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second);
}

TEST(TrainBatches, NeedOneGlobalBatch) {
  const TokenDataset data = numbered(11);
  EXPECT_NO_THROW(train_batches(data, 5, 0, 2));
  EXPECT_THAT(error_of([&] { train_batches(data, 4, 0, 3); }),
              AllOf(HasSubstr("numbers"), HasSubstr("11 samples"), HasSubstr("12 samples")));
  const int64_t huge = int64_t{1} << 40;
  EXPECT_THAT(error_of([&] { train_batches(data, huge, 0, 3, huge); }), HasSubstr("fewer than one global batch"));
}

TEST(EvalBatches, GiveEachSampleToOneRankOnce) {
  for (int64_t samples : {1, 2, 5, 6, 7, 13}) {
    for (int world_size : {1, 2, 3, 4}) {
      const TokenDataset data = numbered(samples);
      std::multiset<int64_t> seen;
      std::set<int64_t> rounds;
      for (int rank = 0; rank < world_size; ++rank) {
        const EvalBatches batches(data, 2, rank, world_size);
        rounds.insert(batches.rounds());
        for (int64_t round = 0; round < batches.rounds(); ++round) {
          const auto batch = batches.batch(round);
          ASSERT_GE(batch.batch.inputs.size(0), 1);
          const auto numbers = numbers_in(batch.batch);
          // A sample of two tokens has one prediction.
          seen.insert(numbers.begin(), numbers.begin() + batch.predictions);
        }
      }
      std::multiset<int64_t> expected;
      for (int64_t i = 0; i < samples; ++i) expected.insert(i);
      EXPECT_EQ(seen, expected) << samples << " samples, " << world_size << " ranks";
      EXPECT_EQ(rounds.size(), 1u) << "ranks must run the same number of forwards";
    }
  }
}

}  // namespace
}  // namespace fsdp::trainer::data_test
