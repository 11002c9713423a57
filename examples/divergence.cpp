// Ranks that diverge: rank 1 leaves out a layer. Every rank gets an error that names ranks and units, and writes its
// last collectives to a file. A late rank is named while the other ranks still wait. Needs two ranks or more:
//   torchrun --no-python --nproc-per-node 2 build/divergence
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "example.h"
#include "fsdp/rank_environment.h"

using namespace example;

constexpr const char* kSeen = "rank 1 was seen to be late";

// Removes the files of this rank. The last rank that does so also removes the folder.
void remove_own_files(const std::filesystem::path& folder, int rank) {
  std::error_code ignored;
  std::filesystem::remove(folder / ("collectives_rank" + std::to_string(rank) + ".txt"), ignored);
  if (rank == 0) std::filesystem::remove(folder / kSeen, ignored);
  std::filesystem::remove(folder, ignored);
}

int main() {
  return run([] {
    fsdp::Options options = make_options();
    const int rank = options.communicator->rank();
    require(options.communicator->size() > 1, "this runs on two ranks or more");
    const int port = fsdp::rank_environment().master_port;
    const auto folder = std::filesystem::temp_directory_path() / ("fsdp_divergence_" + std::to_string(port));
    const auto seen = folder / kSeen;
    std::filesystem::remove_all(seen);
    std::filesystem::create_directories(folder);

    // Gloo compares every collective. Other backends compare fingerprints in the first 3 steps and in every 100th step.
    options.debug.collective_check.level = fsdp::CollectiveCheckLevel::kSampled;
    options.debug.dump_folder = folder;
    options.debug.watchdog_warning = std::chrono::seconds(1);
    options.debug.log = [seen](const std::string& line) {
      std::cout << line << "\n";
      if (line.find("rank 1 is late") != std::string::npos) std::ofstream(seen) << line;
    };
    Net net = make_net();
    auto sharded = fsdp::fully_shard(*net, options);
    for (int step = 0; step < 2; ++step) loss_of(*net, make_input(rank, step)).backward();

    // Rank 1 is busy with other work until rank 0 has reported that rank 1 is late. Then training continues.
    while (rank == 1 && !std::filesystem::exists(seen)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    loss_of(*net, make_input(rank, 2)).backward();

    // Rank 1 leaves out a block.
    if (rank == 1) net->blocks.erase(net->blocks.begin() + 1);
    std::string error;
    try {
      loss_of(*net, make_input(rank, 3)).backward();
    } catch (const c10::Error& caught) {
      error = caught.what_without_backtrace();
    }
    require(error.find("rank 1") != std::string::npos && error.find("'block") != std::string::npos,
            "the error names rank 1 and units: " + error);
    require(error.find(folder.string()) != std::string::npos, "the error names the file with the last collectives");
    const std::string log = sharded->diagnostics().collective_log();
    require(log.find("failed after") != std::string::npos, "the log shows which collective failed:\n" + log);
    if (rank == 0) {
      std::cout << "rank 1 left out block1, and rank 0 got this error:\n" << error << "\n\nthe last collectives:\n";
      std::cout << log.substr(log.size() - std::min<size_t>(log.size(), 600)) << "\n";
    }
    remove_own_files(folder, rank);
  });
}
