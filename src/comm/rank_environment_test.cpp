// rank_environment() under the variables of each launcher, and under broken ones.
#include <cstdlib>
#include <map>

#include "fsdp/communicator.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kVariables[] = {"RANK",
                                      "WORLD_SIZE",
                                      "LOCAL_RANK",
                                      "LOCAL_WORLD_SIZE",
                                      "MASTER_ADDR",
                                      "MASTER_PORT",
                                      "OMPI_COMM_WORLD_RANK",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_RANK",
                                      "OMPI_COMM_WORLD_LOCAL_SIZE",
                                      "PMI_RANK",
                                      "PMI_SIZE",
                                      "MPI_LOCALRANKID",
                                      "MPI_LOCALNRANKS",
                                      "TORCHELASTIC_RUN_ID"};

using Variables = std::map<std::string, std::string>;

class RankEnvironmentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kVariables) {
      if (const char* value = std::getenv(name)) saved_[name] = value;
    }
    clear();
  }
  void TearDown() override {
    clear();
    for (const auto& [name, value] : saved_) setenv(name.c_str(), value.c_str(), 1);
  }

  static RankEnvironment read(const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    return rank_environment();
  }

  static std::string error_of(const Variables& variables) {
    try {
      read(variables);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  }

 private:
  static void clear() {
    for (const char* name : kVariables) unsetenv(name);
  }
  Variables saved_;
};

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "1234"}};

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST_F(RankEnvironmentTest, NothingSetIsOneRank) {
  const auto environment = read({});
  EXPECT_EQ(environment.rank, 0);
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_EQ(environment.local_world_size, 1);
}

TEST_F(RankEnvironmentTest, Torchrun) {
  const auto environment = read(kTorchrun);
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.world_size, 8);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 4);
  EXPECT_EQ(environment.master_address, "node0");
  EXPECT_EQ(environment.master_port, 1234);
}

TEST_F(RankEnvironmentTest, OpenMpi) {
  const auto environment = read({{"OMPI_COMM_WORLD_RANK", "2"},
                                 {"OMPI_COMM_WORLD_SIZE", "3"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                 {"MASTER_ADDR", "node0"},
                                 {"MASTER_PORT", "1234"}});
  EXPECT_EQ(environment.rank, 2);
  EXPECT_EQ(environment.world_size, 3);
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.local_world_size, 1);
}

TEST_F(RankEnvironmentTest, MpichWithoutLocalRanksOnOneHost) {
  const auto environment =
      read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1234"}});
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
}

TEST_F(RankEnvironmentTest, IntelMpiLocalRank) {
  const auto environment = read({{"PMI_RANK", "3"},
                                 {"PMI_SIZE", "4"},
                                 {"MPI_LOCALRANKID", "1"},
                                 {"MPI_LOCALNRANKS", "2"},
                                 {"MASTER_ADDR", "node0"},
                                 {"MASTER_PORT", "1234"}});
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
}

TEST_F(RankEnvironmentTest, TorchrunUnderMpirunCounts) {
  const auto environment = read(
      with(kTorchrun, {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "x"}}));
  EXPECT_EQ(environment.rank, 5);
}

TEST_F(RankEnvironmentTest, PartialVariablesAreNamed) {
  EXPECT_THAT(error_of(without(kTorchrun, "WORLD_SIZE")),
              AllOf(HasSubstr("RANK is set (5)"), HasSubstr("WORLD_SIZE is not")));
  EXPECT_THAT(error_of(without(kTorchrun, "RANK")),
              AllOf(HasSubstr("WORLD_SIZE is set (8)"), HasSubstr("RANK is not")));
  EXPECT_THAT(error_of(without(kTorchrun, "MASTER_ADDR")), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error_of(without(kTorchrun, "MASTER_PORT")), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(error_of(without(kTorchrun, "LOCAL_WORLD_SIZE")), HasSubstr("LOCAL_WORLD_SIZE is not"));
  EXPECT_THAT(error_of(without(without(kTorchrun, "LOCAL_WORLD_SIZE"), "LOCAL_RANK")),
              AllOf(HasSubstr("LOCAL_RANK and LOCAL_WORLD_SIZE are not set"), HasSubstr("node0")));
}

TEST_F(RankEnvironmentTest, BadValuesAreNamed) {
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "five"}})), AllOf(HasSubstr("RANK"), HasSubstr("'five'")));
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "5x"}})), HasSubstr("'5x'"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "-1"}})), HasSubstr("'-1'"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"WORLD_SIZE", "0"}})), HasSubstr("'0'"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "99999999999999999999"}})), HasSubstr("RANK"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"MASTER_PORT", "65536"}})),
              AllOf(HasSubstr("MASTER_PORT"), HasSubstr("65536")));
}

TEST_F(RankEnvironmentTest, ContradictionsAreNamed) {
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "8"}})), AllOf(HasSubstr("RANK is 8"), HasSubstr("WORLD_SIZE is 8")));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_RANK", "4"}})), HasSubstr("LOCAL_RANK is 4"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})), HasSubstr("LOCAL_WORLD_SIZE=9"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "0"}})), HasSubstr("LOCAL_RANK=1"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "8"}})),
              AllOf(HasSubstr("RANK=5"), HasSubstr("OMPI_COMM_WORLD_RANK=1")));
}

}  // namespace
}  // namespace fsdp
