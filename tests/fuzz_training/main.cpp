// fuzz_training: trains random models in random ways, sharded and in one process, and compares the results.
//
//   fuzz_training --seeds 1..300            these seeds
//   fuzz_training --seed 17                 one seed
//   fuzz_training --seconds 600             consecutive seeds from 1, or from --first, for this long
//   fuzz_training --case '{"steps": …}'     a case as it was printed
//
// The last line is "N passed, M failed". The exit status is 0 only if nothing failed.
#include <charconv>
#include <chrono>
#include <cstring>
#include <iostream>
#include <map>
#include <random>
#include <stdexcept>

#include "fuzz_training/generator.h"
#include "fuzz_training/isolate.h"
#include "fuzz_training/printer.h"
#include "fuzz_training/reducer.h"
#include "fuzz_training/rules.h"

namespace fsdp::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "usage: fuzz_training [--seeds A..B | --seed N | --seconds S [--first N] | --case JSON]\n"
    "  --jobs N             cases at a time (2)\n"
    "  --limit S            seconds after which a case counts as hanging (60)\n"
    "  --reduce-seconds S   for making one failing case small (60); 0: it is shown as it is\n"
    "  --known-defects      also cases that meet a defect in the list of rules.cpp\n"
    "  --print              shows the cases of the seeds and runs nothing\n";

struct Arguments {
  uint64_t first = 1;
  uint64_t last = UINT64_MAX;
  std::chrono::seconds duration{0};  // 0: no limit, runs until `last`
  std::string case_text;
  int jobs = 2;
  std::chrono::seconds reduce_limit{60};
  std::chrono::seconds limit{60};
  bool known_defects = false;
  bool print = false;
};

uint64_t number(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) throw std::runtime_error("'" + text + "' is no number");
  return value;
}

void set_seeds(Arguments& arguments, const std::string& text) {
  const size_t dots = text.find("..");
  if (dots == std::string::npos) throw std::runtime_error("--seeds takes FIRST..LAST, not '" + text + "'");
  arguments.first = number(text.substr(0, dots));
  arguments.last = number(text.substr(dots + 2));
}

void set_argument(Arguments& arguments, const std::string& name, const std::string& value) {
  if (name == "--seeds") return set_seeds(arguments, value);
  if (name == "--case") {
    arguments.case_text = value;
    return;
  }
  const uint64_t n = number(value);
  if (name == "--seed") {
    arguments.first = arguments.last = n;
  } else if (name == "--first") {
    arguments.first = n;
  } else if (name == "--seconds") {
    arguments.duration = std::chrono::seconds(n);
  } else if (name == "--jobs") {
    arguments.jobs = static_cast<int>(n);
  } else if (name == "--limit") {
    arguments.limit = std::chrono::seconds(n);
  } else if (name == "--reduce-seconds") {
    arguments.reduce_limit = std::chrono::seconds(n);
  } else {
    throw std::runtime_error("unknown argument '" + name + "'");
  }
}

Arguments parse(int count, char** texts) {
  Arguments arguments;
  if (count < 2) throw std::runtime_error("nothing to do");
  for (int i = 1; i < count; ++i) {
    const std::string name = texts[i];
    if (name == "--known-defects") {
      arguments.known_defects = true;
    } else if (name == "--print") {
      arguments.print = true;
    } else if (++i < count) {
      set_argument(arguments, name, texts[i]);
    } else {
      throw std::runtime_error(name + " needs a value");
    }
  }
  return arguments;
}

// Uses a short limit, because a hanging case hangs again and again while it is reduced.
Verdict run_shortly(const Case& training) { return run_isolated(training, std::chrono::seconds(18)); }

// Counts verdicts, reduces failures and prints them.
class Results {
 public:
  explicit Results(const Arguments& arguments) : arguments_(arguments) {}

  void add(const Job& job, Verdict verdict) {
    if (verdict.passed) {
      ++passed_;
      return;
    }
    ++failed_;
    Case training = job.training;
    // Reduces only the first failure of each kind: the others usually have the same cause.
    if (++ways_[verdict.way] == 1 && arguments_.reduce_limit.count() > 0) {
      training = reduce(training, verdict, run_shortly, arguments_.reduce_limit);
    }
    std::cout << failure_text(job.seed, training, verdict) << std::flush;
  }
  // Returns the exit status.
  int finish() const {
    for (const auto& [way, count] : ways_) std::cout << count << " × " << way << "\n";
    std::cout << passed_ << " passed, " << failed_ << " failed" << std::endl;
    return failed_ == 0 && passed_ > 0 ? 0 : 1;
  }

 private:
  const Arguments& arguments_;
  int64_t passed_ = 0;
  int64_t failed_ = 0;
  std::map<std::string, int64_t> ways_;
};

int run_one(const Arguments& arguments) {
  const Case training = case_from_json(Json::parse(arguments.case_text));
  if (const auto reason = objection(training)) throw std::runtime_error("this is no case: " + *reason);
  Results results(arguments);
  results.add({0, training}, run_isolated(training, arguments.limit));
  return results.finish();
}

int run_seeds(const Arguments& arguments) {
  const auto end = Clock::now() + arguments.duration;
  uint64_t seed = arguments.first;
  const NextJob next = [&](Job& job) {
    if (arguments.duration.count() > 0 ? Clock::now() >= end : seed > arguments.last) return false;
    job = {seed, case_of_seed(seed, arguments.known_defects)};
    ++seed;
    return true;
  };
  Results results(arguments);
  run_jobs(arguments.jobs, arguments.limit, next,
           [&](const Job& job, const Verdict& verdict) { results.add(job, verdict); });
  std::cout << "seeds " << arguments.first << " to " << seed - 1 << "\n";
  return results.finish();
}

int print_seeds(const Arguments& arguments) {
  for (uint64_t seed = arguments.first; seed <= arguments.last; ++seed) {
    std::cout << seed << " " << to_json(case_of_seed(seed, arguments.known_defects)).dump() << "\n";
  }
  return 0;
}

int run(const Arguments& arguments) {
  if (!arguments.case_text.empty()) return run_one(arguments);
  return arguments.print ? print_seeds(arguments) : run_seeds(arguments);
}

}  // namespace
}  // namespace fsdp::fuzz

int main(int count, char** texts) {
  try {
    return fsdp::fuzz::run(fsdp::fuzz::parse(count, texts));
  } catch (const std::exception& error) {
    std::cerr << "fuzz_training: " << error.what() << "\n" << fsdp::fuzz::kUsage;
    return 2;
  }
}
