#include "report/run_facts.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/output_file.h"
#include "config/config_reader.h"

namespace fsdp::trainer {

void write_run_facts(const Config& config, int64_t ranks) {
  const nlohmann::ordered_json facts = {{"ranks", ranks}, {"config", to_json(config)}};
  checkpoint::write_file(std::filesystem::path(config.output_dir) / kRunFactsFile, facts.dump(2) + "\n");
}

}  // namespace fsdp::trainer
