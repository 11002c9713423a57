// Times one job of growth_jobs.h at one size.
// Usage: growth JOB SIZE. Prints the milliseconds of each part of the job as a JSON object. Without arguments, prints
// the names of the jobs.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "growth_jobs.h"

int main(int argc, char** argv) {
  at::set_num_threads(1);
  for (const fsdp::growth::Job& job : fsdp::growth::jobs()) {
    if (argc < 3) {
      std::puts(job.name.c_str());
    } else if (job.name == argv[1]) {
      nlohmann::ordered_json milliseconds = nlohmann::ordered_json::object();
      job.run(std::atoll(argv[2]), [&](const std::string& what, const std::function<void()>& action) {
        const auto begin = std::chrono::steady_clock::now();
        action();
        const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
        milliseconds[what] = std::min(milliseconds.value(what, taken.count()), taken.count());
      });
      std::puts(milliseconds.dump().c_str());
      return 0;
    }
  }
  return argc < 3 ? 0 : 1;
}
