// Files that describe clusters: what they may hold, and what they say about mistakes.
#include "planner/target/cluster_file.h"

#include <gmock/gmock.h>

#include "config/errors.h"
#include "planner/target/cluster_keys.h"
#include "support/files/temporary_folder.h"

namespace fsdp::planner::cluster_file_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json four_h100() { return {{"schema_version", 1}, {"device", "h100"}, {"ranks_per_host", 4}}; }

json with(json file, const std::string& pointer, const json& value) {
  file[json::json_pointer(pointer)] = value;
  return file;
}

json own_device() {
  json file = json::parse(cluster_json(parse_cluster("2x4xh100")).dump());
  file.erase("provenance");
  return file;
}

std::string refusal(const json& file) {
  try {
    read_cluster(file, "it.json");
  } catch (const trainer::ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ClusterFile, EveryNamedClusterReadsBackTheSame) {
  std::vector<std::string> names = {"4xcpu"};
  for (const KnownDevice& device : known_devices()) names.push_back("3x8x" + device.profile.name);
  for (const std::string& name : names) {
    Cluster named = parse_cluster(name);
    named.file = "it.json";
    EXPECT_EQ(read_cluster(json::parse(cluster_json(named).dump()), "it.json"), named) << name;
  }
}

// No key is lost that has another value than by default.
TEST(ClusterFile, AllValuesThatDifferReadBackTheSame) {
  Cluster cluster = parse_cluster("2x4xa100-80");
  cluster.file = "it.json";
  cluster.host_memory = 1'000'000'000'007;
  cluster.host_per_kernel = 1.0 / 3;
  cluster.spread = 0.1;
  cluster.communicator_on_host = 11;
  cluster.communicator_across_hosts = 12;
  cluster.device->context = 13;
  cluster.speed.memory_half_bytes = 14;
  cluster.speed.fixed_seconds = 1e-7;
  cluster.speed.measured = {
      {.shape = {.batch = 2, .m = 3, .n = 4, .k = 5, .precision = Precision::kTensorFloat32, .weight_gradient = true},
       .efficiency = 0.7}};
  cluster.links.inside = InsideLink::kPcie;
  cluster.links.nic_efficiency = 0.5;
  cluster.links.oversubscription = 2.5;
  cluster.links.network_latency = 1e-6;
  cluster.links.host = HostCpu::kAmd;
  cluster.links.launch = 6e-6;
  cluster.links.protocols = {true, false, true};
  cluster.links.trees = false;
  cluster.links.inside_share = 0.2;
  cluster.links.network_share = 0.3;
  cluster.provenances["spread"] = Provenance::kCalibrated;
  cluster.provenances.erase("host_per_kernel");
  EXPECT_EQ(read_cluster(json::parse(cluster_json(cluster).dump()), "it.json"), cluster);
}

TEST(ClusterFile, ADeviceByNameBringsItsNumbers) {
  Cluster expected = parse_cluster("4xh100");
  expected.file = "it.json";
  EXPECT_EQ(read_cluster(four_h100(), "it.json"), expected);
}

TEST(ClusterFile, SingleNumbersReplaceThoseOfADevice) {
  json file = with(four_h100(), "/device_overrides", {{"matmul_efficiency", 0.7}, {"memory", "80GiB"}});
  file = with(file, "/links/network/nic_bandwidth", "25GB/s");
  file = with(with(file, "/host_memory", "512GiB"), "/hosts", 16);
  file["provenance"] = {{"device.matmul_efficiency", "calibrated"}};
  const Cluster cluster = read_cluster(file, "it.json");
  EXPECT_EQ(cluster.speed.matmul_efficiency, 0.7);
  EXPECT_EQ(cluster.speed.bfloat16, 989e12);
  EXPECT_EQ(cluster.device->memory, int64_t{80} << 30);
  EXPECT_EQ(cluster.links.nic, 25e9);
  EXPECT_EQ(cluster.links.nics, 4);
  EXPECT_EQ(cluster.host_memory, int64_t{512} << 30);
  EXPECT_EQ(cluster.text(), "16 hosts of 4 x NVIDIA H100 SXM, 80 GB (it.json)");
  EXPECT_EQ(cluster.provenances.at("device.matmul_efficiency"), Provenance::kCalibrated);
  EXPECT_EQ(cluster.provenances.count("device.memory"), 0);
  EXPECT_EQ(cluster.provenances.at("device.context"), Provenance::kGuess);
}

TEST(ClusterFile, MistypedKeysAreNamedWithTheNearestOne) {
  EXPECT_THAT(refusal(with(four_h100(), "/sprad", 0.1)),
              HasSubstr("it.json: unknown key \"sprad\"; the nearest known one is \"spread\""));
  EXPECT_THAT(refusal(with(four_h100(), "/links/inside/bandwidth_", 1)),
              AllOf(HasSubstr("\"links.inside.bandwidth_\""), HasSubstr("\"bandwidth\""), HasSubstr("ll_limit")));
  EXPECT_THAT(refusal(with(four_h100(), "/device_overrides/matmul_efficiency_", 1)),
              AllOf(HasSubstr("\"device_overrides.matmul_efficiency_\""), HasSubstr("\"matmul_efficiency\"")));
  EXPECT_THAT(refusal(with(four_h100(), "/device", "h200x")),
              AllOf(HasSubstr("\"h200x\" is not the name of a device"), HasSubstr("\"h200\"")));
}

TEST(ClusterFile, NumbersThatMakeNoSenseAreRefused) {
  const auto refused = [](const std::string& pointer, const json& value) {
    return refusal(with(four_h100(), pointer, value));
  };
  EXPECT_THAT(refused("/device_overrides/matmul_efficiency", 1.3),
              AllOf(HasSubstr("it.json: key \"device_overrides.matmul_efficiency\": 1.3 is out of range"),
                    HasSubstr("> 0 and <= 1")));
  EXPECT_THAT(refused("/spread", -0.1), HasSubstr("-0.1 is out of range"));
  EXPECT_THAT(refused("/ranks_per_host", 0),
              HasSubstr("0 is out of range; accepted: a whole number, >= 1 and <= 1024"));
  EXPECT_THAT(refused("/ranks_per_host", 1.5), HasSubstr("is not a whole number"));
  EXPECT_THAT(refused("/hosts", "many"), HasSubstr("is not a number"));
  EXPECT_THAT(refused("/links/network/nic_bandwidth", "400Gbit/s"), HasSubstr("counts bits; it is \"50GB/s\""));
  EXPECT_THAT(refused("/links/network/nic_bandwidth", 400),
              AllOf(HasSubstr("400 is out of range"), HasSubstr("\"50GB/s\""), HasSubstr(">= 1MB/s")));
  EXPECT_THAT(refused("/host_memory", "lots"), HasSubstr("\"80GiB\""));
  EXPECT_THAT(refused("/device_overrides/context", "100GiB"), HasSubstr("leave nothing"));
  EXPECT_THAT(refused("/links/inside", 3),
              AllOf(HasSubstr("\"links.inside\": 3 is not an object"), HasSubstr("ll_limit")));
  EXPECT_THAT(refused("/links/inside/kind", "infiniband"), HasSubstr("nvlink or pcie"));
  EXPECT_THAT(refused("/device_overrides/name", "mine"), HasSubstr("\"device_overrides.name\""));
  EXPECT_THAT(refused("/schema_version", 2), HasSubstr("another version"));
}

TEST(ClusterFile, CurvesAndProductsAreChecked) {
  const auto curve = [](const json& points) {
    return refusal(with(four_h100(), "/links/curves",
                        json::array({{{"collective", "all_gather"}, {"ranks", 4}, {"hosts", 1}, {"points", points}}})));
  };
  EXPECT_EQ(curve(json::parse(R"([["1MiB", "20GB/s"], ["1GiB", "300GB/s"]])")), "");
  EXPECT_THAT(curve(json::array()), HasSubstr("a curve without points"));
  EXPECT_THAT(curve(json::parse(R"([["1GiB", "20GB/s"], ["1MiB", "300GB/s"]])")), HasSubstr("do not ascend"));
  EXPECT_THAT(curve(json::parse(R"([["1GiB", "160Gbps"]])")), HasSubstr("counts bits"));
  EXPECT_THAT(curve(json::parse(R"([["1GiB"]])")), HasSubstr("not a point"));
  json many =
      with(four_h100(), "/links/curves",
           json::array(
               {{{"collective", "all_gather"}, {"ranks", 4}, {"hosts", int64_t{1} << 32}, {"points", json::array()}}}));
  EXPECT_THAT(refusal(many), HasSubstr("\"hosts\" is 4294967296"));
  const auto product = [](const json& item) {
    return refusal(with(four_h100(), "/device_overrides/measured_products", json::array({item})));
  };
  const json good = {{"m", 1}, {"n", 2}, {"k", 3}, {"precision", "bf16"}, {"efficiency", 0.5}};
  EXPECT_EQ(product(good), "");
  EXPECT_THAT(product(with(good, "/m", -1)), HasSubstr("\"m\" is -1"));
  EXPECT_THAT(product(with(good, "/precision", "int8")), HasSubstr("bf16"));
  EXPECT_THAT(product(with(good, "/efficiency", 50)), HasSubstr("above 1"));
  EXPECT_THAT(product(with(good, "/efficiency_", 0.5)), HasSubstr("\"efficiency\""));
  EXPECT_THAT(product(7), HasSubstr("not an object"));
}

TEST(ClusterFile, ADeviceOfOnesOwnNeedsAllItsNumbers) {
  EXPECT_EQ(refusal(own_device()), "");
  EXPECT_EQ(read_cluster(own_device(), "it.json").provenances.size(), 0);
  for (const ClusterKey& key : cluster_keys()) {
    if (!key.needed || scope_of(key) == KeyScope::kCpus) continue;
    json file = own_device();
    const std::string pointer = "/" + key.path;
    std::string parent = pointer;
    std::replace(parent.begin(), parent.end(), '.', '/');
    const size_t last = parent.rfind('/');
    file[json::json_pointer(parent.substr(0, last))].erase(parent.substr(last + 1));
    EXPECT_THAT(refusal(file), AllOf(HasSubstr("missing: \"" + key.path + "\""), HasSubstr("--print-cluster")))
        << key.path;
  }
  EXPECT_THAT(refusal(with(own_device(), "/device_overrides/memory", "1GiB")),
              HasSubstr("\"device_overrides\" changes a device"));
}

TEST(ClusterFile, CpusHaveNoNumbersOfDevices) {
  const json cpus = {{"schema_version", 1}, {"device", "cpu"}, {"ranks_per_host", 4}, {"host_memory", "64GiB"}};
  EXPECT_EQ(read_cluster(cpus, "it.json").host_memory, int64_t{64} << 30);
  EXPECT_THAT(refusal(with(cpus, "/links/host/bandwidth", "1GB/s")),
              HasSubstr("has no meaning where \"device\" is \"cpu\""));
  EXPECT_THAT(refusal(with(cpus, "/spread", 0.1)), HasSubstr("unless there is the object \"cpu\""));
  EXPECT_THAT(refusal(with(four_h100(), "/cpu/threads", 1)),
              HasSubstr("\"cpu.threads\" has no meaning where \"device\" is not \"cpu\""));
}

Cluster measured_cpus() {
  Cluster cluster = parse_cluster("4xcpu");
  cluster.file = "it.json";
  cluster.host_per_kernel = 7e-6;
  cluster.spread = 0.25;
  cluster.host_speed = {
      .threads = 3,
      .operators = {{"aten::add.Tensor", at::kFloat, {{0, 1e-6}, {100, 2.5e-6}}},
                    {kOtherOperators, at::kFloat, {{10, 1e-6}}},
                    {kOtherOperators, at::kBFloat16, {{10, 1.0 / 3}}}},
      .products = {{{.type = ProductType::kConvolutionBackward,
                     .across_rows = true,
                     .dtype = at::kBFloat16,
                     .batch = 2,
                     .m = 3,
                     .n = 4,
                     .k = 5,
                     .flops = 480},
                    1e-5},
                   {{.type = ProductType::kAttention, .causal = true, .m = 3, .n = 4, .k = 5, .flops = 240}, 2e-5}},
      .exchanges = {{comm::CollectiveKind::kAllGather, HostPath::kInPlace, 4, {{256, 1e-6}, {4096, 1e-5}}},
                    {comm::CollectiveKind::kGatherBytes, HostPath::kGloo, 2, {{256, 1e-4}}}}};
  cluster.provenances = {{"cpu.operators", Provenance::kMeasured}, {"spread", Provenance::kCalibrated}};
  return cluster;
}

json cpu_file() { return json::parse(cluster_json(measured_cpus()).dump()); }

TEST(ClusterFile, TimesOfCpusReadBackTheSame) { EXPECT_EQ(read_cluster(cpu_file(), "it.json"), measured_cpus()); }

TEST(ClusterFile, TimesOfCpusAreComplete) {
  for (const char* name : {"threads", "operators", "products", "exchanges"}) {
    json file = cpu_file();
    file["cpu"].erase(name);
    file.erase("provenance");
    EXPECT_THAT(refusal(file), AllOf(HasSubstr(std::string("missing: \"cpu.") + name),
                                     HasSubstr("--calibrate FILE --nproc-per-node N")));
  }
  EXPECT_THAT(refusal(with(cpu_file(), "/hosts", 2)), HasSubstr("2 is more than one host"));
}

TEST(ClusterFile, TimesOfCpusAreChecked) {
  const auto refused = [](const std::string& pointer, const json& value) {
    return refusal(with(cpu_file(), "/cpu" + pointer, value));
  };
  EXPECT_THAT(refused("/operators/0/name", 7), HasSubstr("names no operator"));
  EXPECT_THAT(refused("/operators/1/name", "aten::mul"), HasSubstr("has no item \"others\" for fp32"));
  EXPECT_THAT(refused("/operators", json::array()), HasSubstr("[] is empty"));
  EXPECT_THAT(refused("/operators/0/points", json::parse("[[5, 1], [4, 1]]")), HasSubstr("do not ascend"));
  EXPECT_THAT(refused("/operators/0/points/0/1", 0), HasSubstr("out of range"));
  EXPECT_THAT(refused("/operators/0/dtype", "int8"), HasSubstr("fp32, bf16, fp16"));
  EXPECT_THAT(refused("/products/0/product", "sum"), HasSubstr("attention_backward"));
  EXPECT_THAT(refused("/products/0/seconds", "5GB"), HasSubstr("5GB"));
  EXPECT_THAT(refused("/products/0/causal", 1), HasSubstr("\"causal\" is not true or false"));
  EXPECT_THAT(refused("/exchanges", json::array()), HasSubstr("no times for several ranks"));
  EXPECT_THAT(refused("/exchanges/0/path", "rdma"), HasSubstr("gloo, memory, in_place"));
  EXPECT_THAT(refused("/exchanges/0/collective", "all_to_all"), HasSubstr("all_gather_bytes"));
  EXPECT_THAT(refused("/exchanges/0/rank", 4), HasSubstr("the nearest known one is \"ranks\""));
  EXPECT_THAT(refused("/threads", 0), HasSubstr("0 is out of range"));
}

TEST(ClusterFile, ProvenancesBelongToNumbersOfTheFile) {
  const auto refused = [](const json& provenance) {
    return refusal(with(with(four_h100(), "/spread", 0.02), "/provenance", provenance));
  };
  EXPECT_EQ(refused({{"spread", "measured"}}), "");
  EXPECT_THAT(refused({{"spread", "made up"}}), HasSubstr("specified, measured, calibrated or guess"));
  EXPECT_THAT(refused({{"spraed", "measured"}}), HasSubstr("\"spread\""));
  EXPECT_THAT(refused({{"device.memory", "measured"}}), HasSubstr("does not give this number"));
  EXPECT_THAT(refused("measured"), HasSubstr("not an object"));
}

TEST(ClusterFile, PathsAreFilesAndOtherTextsNames) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("it.json", four_h100().dump());
  EXPECT_EQ(read_cluster(path).file, path);
  EXPECT_EQ(read_cluster("8xh200").file, "");
  EXPECT_THROW(read_cluster(folder.path("none.json")), trainer::ConfigError);
  EXPECT_THROW(read_cluster(folder.write("list.json", "[]")), trainer::ConfigError);
}

}  // namespace
}  // namespace fsdp::planner::cluster_file_test
