#include "report/failure_report.h"

#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

namespace fsdp::trainer {

namespace {

// Writes the format in which torch.distributed.elastic records exceptions of Python workers.
void write_elastic_error_file(const char* path, const std::string& message) {
  const nlohmann::json extra = {{"py_callstack", message}, {"timestamp", std::to_string(std::time(nullptr))}};
  const nlohmann::json record = {{"message", {{"message", message}, {"extraInfo", extra}}}};
  std::ofstream(path) << record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void print_line(const std::string& text) {
  const std::string line = text + "\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void report_failure(int rank, int world_size, const std::string& message) {
  const std::string name = "rank " + std::to_string(rank);
  // Such as "rank 1 cannot finish its all-gather …" or "rank 0: shared memory …", which other ranks pass on.
  const bool named = message.starts_with(name + " ") || message.starts_with(name + ":");
  print_line((world_size == 1 ? kErrorPrefix : named ? "" : name + ": ") + message);
  record_failure(message);
}

void report_failure_of_all(Communicator& ranks, int local_rank, const std::string& message) {
  if (local_rank == 0) print_line((ranks.size() == 1 ? kErrorPrefix : "all ranks: ") + message);
  try {
    ranks.barrier({.name = "failure_report"});
  } catch (const std::exception&) {
    // A rank that is already lost must not prevent the other ranks from ending.
  }
}

void record_failure(const std::string& message) {
  if (const char* path = std::getenv("TORCHELASTIC_ERROR_FILE")) write_elastic_error_file(path, message);
}

}  // namespace fsdp::trainer
