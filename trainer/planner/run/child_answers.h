// Work in forked processes, several at a time, whose results are JSON.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp::planner {

// One of the three.
struct Answer {
  nlohmann::ordered_json result = {};
  std::string refusal = {};  // the message of a ConfigError
  std::string failure = {};  // that of another exception, or the signal that ended the process
};

// Calls work(0) to work(count - 1), each in a forked process, at most `at_once` of them at a time, and returns the
// answers in this order. Calls `answered` (may be empty) in this process with the number and the answer of each as soon
// as it is there. The processes end without destructors. Must be called before this process starts threads. Throws a
// std::runtime_error if a process cannot be started, and passes exceptions of `answered` on; those that run are then
// ended.
std::vector<Answer> answers_of_children(size_t count, size_t at_once,
                                        const std::function<nlohmann::ordered_json(size_t)>& work,
                                        const std::function<void(size_t, const Answer&)>& answered = {});

}  // namespace fsdp::planner
