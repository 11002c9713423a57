// Tests rank_environment() with the variables of each launcher, and with broken ones.
#include <cstdlib>
#include <map>

#include "comm/meeting/slurm_environment.h"
#include "fsdp/communicator.h"
#include "fsdp/rank_environment.h"

namespace fsdp::comm::rank_environment_test {
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
                                      "MV2_COMM_WORLD_RANK",
                                      "MV2_COMM_WORLD_SIZE",
                                      "MV2_COMM_WORLD_LOCAL_RANK",
                                      "MV2_COMM_WORLD_LOCAL_SIZE",
                                      "PMIX_RANK",
                                      "PALS_RANKID",
                                      "FLUX_TASK_RANK",
                                      "SLURM_JOB_ID",
                                      "SLURM_STEP_ID",
                                      "SLURM_PROCID",
                                      "SLURM_LOCALID",
                                      "SLURM_NODEID",
                                      "SLURM_NTASKS",
                                      "SLURM_STEP_NUM_TASKS",
                                      "SLURM_STEP_NUM_NODES",
                                      "SLURM_STEP_NODELIST",
                                      "SLURM_STEP_TASKS_PER_NODE",
                                      "TORCHELASTIC_RUN_ID"};

using Variables = std::map<std::string, std::string>;

class RankVariables : public ::testing::Test {
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

TEST_F(RankVariables, NothingSetIsOneRank) {
  const auto environment = read({});
  EXPECT_EQ(environment.rank, 0);
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_EQ(environment.local_world_size, 1);
}

TEST_F(RankVariables, Torchrun) {
  const auto environment = read(kTorchrun);
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.world_size, 8);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 4);
  EXPECT_EQ(environment.master_address, "node0");
  EXPECT_EQ(environment.master_port, 1234);
}

TEST_F(RankVariables, OpenMpi) {
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

TEST_F(RankVariables, MpichWithoutLocalRanksOnOneHost) {
  const auto environment =
      read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1234"}});
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
}

TEST_F(RankVariables, IntelMpiLocalRank) {
  const auto environment = read({{"PMI_RANK", "3"},
                                 {"PMI_SIZE", "4"},
                                 {"MPI_LOCALRANKID", "1"},
                                 {"MPI_LOCALNRANKS", "2"},
                                 {"MASTER_ADDR", "node0"},
                                 {"MASTER_PORT", "1234"}});
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
}

TEST_F(RankVariables, TorchrunUnderMpirunCounts) {
  const auto environment = read(
      with(kTorchrun, {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "x"}}));
  EXPECT_EQ(environment.rank, 5);
}

TEST_F(RankVariables, PartialVariablesAreNamed) {
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

TEST_F(RankVariables, BadValuesAreNamed) {
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "five"}})), AllOf(HasSubstr("RANK"), HasSubstr("'five'")));
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "5x"}})), HasSubstr("'5x'"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "-1"}})), HasSubstr("'-1'"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"WORLD_SIZE", "0"}})), HasSubstr("'0'"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "99999999999999999999"}})), HasSubstr("RANK"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"MASTER_PORT", "65536"}})),
              AllOf(HasSubstr("MASTER_PORT"), HasSubstr("65536")));
}

TEST_F(RankVariables, ContradictionsAreNamed) {
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "8"}})), AllOf(HasSubstr("RANK is 8"), HasSubstr("WORLD_SIZE is 8")));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_RANK", "4"}})), HasSubstr("LOCAL_RANK is 4"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})), HasSubstr("LOCAL_WORLD_SIZE=9"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "0"}})), HasSubstr("LOCAL_RANK=1"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "8"}})),
              AllOf(HasSubstr("RANK=5"), HasSubstr("OMPI_COMM_WORLD_RANK=1")));
}

// ---------------------------------------------------------------- Slurm

// The variables of the last of five tasks on three hosts.
const Variables kSlurm = {{"SLURM_JOB_ID", "4711"},
                          {"SLURM_STEP_ID", "3"},
                          {"SLURM_PROCID", "4"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_NTASKS", "5"},
                          {"SLURM_STEP_NUM_TASKS", "5"},
                          {"SLURM_STEP_NUM_NODES", "3"},
                          {"SLURM_STEP_NODELIST", "node[08-10]"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"}};

TEST_F(RankVariables, Slurm) {
  const auto environment = read(kSlurm);
  EXPECT_EQ(environment.rank, 4);
  EXPECT_EQ(environment.world_size, 5);
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.local_world_size, 1);
  EXPECT_EQ(environment.master_address, "node08");
  EXPECT_EQ(environment.master_port, 20000 + (4711 * 31 + 3) % 12000);
  EXPECT_EQ(read(with(kSlurm, {{"SLURM_NODEID", "1"}})).local_world_size, 2);
  const auto other_step = read(with(kSlurm, {{"SLURM_STEP_ID", "4"}}));
  EXPECT_NE(other_step.master_port, environment.master_port);
}

TEST_F(RankVariables, SlurmOnOneHostNeedsNoName) {
  const auto environment = read(with(kSlurm, {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_LOCALID", "4"}}));
  EXPECT_EQ(environment.local_rank, 4);
  EXPECT_EQ(environment.local_world_size, 5);
  EXPECT_EQ(environment.master_address, "127.0.0.1");
}

TEST_F(RankVariables, MasterOfTheUserComesBeforeSlurms) {
  const auto environment = read(with(kSlurm, {{"MASTER_ADDR", "node9"}, {"MASTER_PORT", "1234"}}));
  EXPECT_EQ(environment.master_address, "node9");
  EXPECT_EQ(environment.master_port, 1234);
}

TEST_F(RankVariables, ShellsOfSlurmAreNoRanks) {
  const Variables batch = {{"SLURM_JOB_ID", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NTASKS", "8"}};
  EXPECT_EQ(read(batch).world_size, 1);
  EXPECT_EQ(read({{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "8"}}).world_size, 1);
}

TEST_F(RankVariables, OtherLaunchersInAStepOfSlurmCount) {
  EXPECT_EQ(read(with(kSlurm, kTorchrun)).world_size, 8);
  const Variables pmi = with(kSlurm, {{"PMI_RANK", "4"}, {"PMI_SIZE", "5"}, {"PMIX_RANK", "4"}});
  EXPECT_EQ(read(pmi).master_address, "node08") << "srun --mpi=pmi2 sets them";
  const Variables one_task = with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"PMI_RANK", "0"}});
  EXPECT_EQ(read(with(with(one_task, {{"PMI_SIZE", "1"}}), kTorchrun)).rank, 5) << "a task that starts ranks";
  const Variables hydra = with(pmi, {{"PMI_RANK", "6"}, {"PMI_SIZE", "8"}, {"MASTER_ADDR", "localhost"}});
  EXPECT_EQ(read(with(hydra, {{"MASTER_PORT", "1"}})).rank, 6) << "mpiexec starts its ranks from a step of its own";
}

TEST_F(RankVariables, StepsOfSlurmThatAreIncompleteAreNamed) {
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST",
                           "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"}) {
    EXPECT_THAT(error_of(without(kSlurm, name)), HasSubstr(std::string(name) + " is not set")) << name;
  }
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_PROCID", "5"}})), HasSubstr("SLURM_PROCID is 5"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_NODEID", "3"}})),
              AllOf(HasSubstr("SLURM_NODEID is 3"), HasSubstr("2(x2),1")));
}

TEST(SlurmVariables, FirstHostOfAList) {
  EXPECT_EQ(first_slurm_host("node7"), "node7");
  EXPECT_EQ(first_slurm_host("node[01-03,7],other"), "node01");
  EXPECT_EQ(first_slurm_host("node[3,7]"), "node3");
  EXPECT_EQ(first_slurm_host("a,node[3,7]"), "a");
  EXPECT_EQ(first_slurm_host("rack[2-4]node[010-020]x.site"), "rack2node010x.site");
  for (const char* bad : {"", ",", "node[", "node[1", "node[]", "node[-3]"}) {
    EXPECT_THROW(first_slurm_host(bad), c10::Error) << bad;
  }
}

TEST(SlurmVariables, TasksOfANode) {
  EXPECT_EQ(slurm_tasks_of_node("8", 0), 8);
  EXPECT_EQ(slurm_tasks_of_node("2(x3),1,16(x1)", 2), 2);
  EXPECT_EQ(slurm_tasks_of_node("2(x3),1,16(x1)", 3), 1);
  EXPECT_EQ(slurm_tasks_of_node("2(x3),1,16(x1)", 4), 16);
  for (const char* bad : {"", "x", "2(x3", "2(x)", "2(3)", "2,", "2 3"}) {
    EXPECT_THROW(slurm_tasks_of_node(bad, 1), c10::Error) << bad;
  }
}

// ---------------------------------------------------------------- other launchers

TEST_F(RankVariables, Mvapich) {
  const auto environment = read({{"MV2_COMM_WORLD_RANK", "2"},
                                 {"MV2_COMM_WORLD_SIZE", "3"},
                                 {"MV2_COMM_WORLD_LOCAL_RANK", "0"},
                                 {"MV2_COMM_WORLD_LOCAL_SIZE", "1"},
                                 {"MASTER_ADDR", "node0"},
                                 {"MASTER_PORT", "1234"}});
  EXPECT_EQ(environment.rank, 2);
  EXPECT_EQ(environment.local_world_size, 1);
}

TEST_F(RankVariables, UnknownLaunchersAreRefusedByName) {
  EXPECT_THAT(error_of({{"PMIX_RANK", "1"}}), AllOf(HasSubstr("PMIX_RANK is set (1)"), HasSubstr("WORLD_SIZE")));
  EXPECT_THAT(error_of({{"PALS_RANKID", "0"}}), HasSubstr("PALS_RANKID"));
  EXPECT_EQ(read(with(kTorchrun, {{"PMIX_RANK", "1"}})).rank, 5);
}

}  // namespace
}  // namespace fsdp::comm::rank_environment_test
