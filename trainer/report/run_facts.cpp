#include "report/run_facts.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "config/config_reader.h"
#include "report/whole_write.h"

namespace fsdp::trainer {

void write_run_facts(const Config& config, int64_t ranks) {
  const nlohmann::ordered_json facts = {{"ranks", ranks}, {"config", to_json(config)}};
  replace_file((std::filesystem::path(config.output.output_dir) / kRunFactsFile).string(), facts.dump(2) + "\n");
}

}  // namespace fsdp::trainer
