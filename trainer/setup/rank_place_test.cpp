#include "setup/rank_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config_names.h"
#include "config/errors.h"

namespace fsdp::trainer::rank_place_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns the choice for the second of two ranks on one host.
PlaceChoice choose(const char* device, const char* backend, const PlacesAvailable& available) {
  CommunicationConfig config;
  config.device = from_config_name<DeviceChoice>(device);
  config.backend = backend;
  return choose_place(config, {.rank = 5, .world_size = 6, .local_rank = 1, .local_world_size = 2}, available);
}

std::string error_of(const char* device, const char* backend, const PlacesAvailable& available) {
  try {
    choose(device, backend, available);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(RankPlace, AutoTakesGpusWhereEachRankOfTheHostGetsOne) {
  for (int gpus : {0, 1}) {
    const PlaceChoice choice = choose("auto", "auto", {.gpus = gpus, .nccl = true});
    EXPECT_EQ(choice.device, c10::Device(c10::kCPU));
    EXPECT_EQ(choice.backend, "auto");
    EXPECT_THAT(choice.text, AllOf(HasSubstr("the CPU"), HasSubstr("2 ranks on this host"),
                                   HasSubstr(gpus == 1 ? "and 1 GPU)" : "no GPU")));
  }
  const PlaceChoice choice = choose("auto", "auto", {.gpus = 2, .nccl = true});
  EXPECT_EQ(choice.device, c10::Device(c10::kCUDA, 1));
  EXPECT_EQ(choice.backend, "nccl");
  EXPECT_THAT(choice.text, AllOf(HasSubstr("GPUs"), HasSubstr("2 GPUs"), HasSubstr("NCCL")));
}

TEST(RankPlace, ANamedDeviceAndBackEndAreTaken) {
  const PlacesAvailable all{.gpus = 8, .nccl = true};
  EXPECT_EQ(choose("cpu", "auto", all).device, c10::Device(c10::kCPU));
  EXPECT_EQ(choose("cpu", "auto", all).backend, "auto");
  EXPECT_EQ(choose("cpu", "gloo", all).backend, "gloo");
  EXPECT_EQ(choose("cpu", "shm", all).backend, "shm");
  EXPECT_THAT(choose("cpu", "shm", all).text, HasSubstr("over shared memory"));
  EXPECT_THAT(choose("cpu", "auto", all).text, Not(HasSubstr("this host")));
  EXPECT_EQ(choose("cuda", "gloo", all).device, c10::Device(c10::kCUDA, 1));
  EXPECT_EQ(choose("cuda", "gloo", all).backend, "gloo");
  EXPECT_EQ(choose("cuda", "nccl", all).backend, "nccl");
}

TEST(RankPlace, WithoutNcclAutoSaysWhyItIsGloo) {
  const PlaceChoice choice = choose("cuda", "auto", {.gpus = 2, .nccl = false});
  EXPECT_EQ(choice.backend, "gloo");
  EXPECT_THAT(choice.text, HasSubstr("built without NCCL"));
}

TEST(RankPlace, AMissingDeviceIsAnError) {
  EXPECT_THAT(error_of("cuda", "auto", {.gpus = 0}), AllOf(HasSubstr("\"device\""), HasSubstr("no GPU")));
  EXPECT_THAT(error_of("cuda", "auto", {.gpus = 1}), AllOf(HasSubstr("2 ranks on this host"), HasSubstr("1 GPU;")));
  EXPECT_THAT(error_of("auto", "nccl", {.gpus = 1, .nccl = true}),
              AllOf(HasSubstr("\"comm_backend\""), HasSubstr("CPU")));
  EXPECT_THAT(error_of("auto", "shm", {.gpus = 2, .nccl = true}),
              AllOf(HasSubstr("\"comm_backend\""), HasSubstr("means GPUs")));
  EXPECT_THAT(error_of("cuda", "nccl", {.gpus = 2, .nccl = false}), HasSubstr("nccl_headers.sh"));
}

TEST(RankPlace, OneRankNeedsNoMemoryOfOthers) {
  for (const char* backend : {"auto", "shm", "gloo"}) {
    CommunicationConfig config;
    config.device = DeviceChoice::kCpu;
    config.backend = backend;
    const RankPlace place = take_place(choose_place(config, {}, {}), {});
    EXPECT_EQ(place.communicator->size(), 1);
    EXPECT_THAT(place.text, HasSubstr("communicating over"));
  }
  EXPECT_THAT(take_place(choose("cpu", "auto", {}), {}).text, HasSubstr("there is one rank"));
}

}  // namespace
}  // namespace fsdp::trainer::rank_place_test
