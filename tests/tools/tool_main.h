// The main function of a tool that Python tests run many times.
#pragma once

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/end_process.h"

namespace fsdp::testing {

using ToolRun = std::function<void(const std::vector<std::string>& arguments)>;

// Returns the exit status.
inline int run_tool(const ToolRun& run, const std::vector<std::string>& arguments) {
  try {
    run(arguments);
    return 0;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  }
}

inline void send_to(int stream, const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || dup2(file, stream) < 0) std::_Exit(3);
  close(file);
}

// Returns the status of a process that ran the tool, as Python's subprocess has it: negative for a signal.
inline int run_forked(const ToolRun& run, const nlohmann::json& request) {
  const pid_t child = fork();
  if (child == 0) {
    send_to(STDOUT_FILENO, request.at("stdout").get<std::string>());
    send_to(STDERR_FILENO, request.at("stderr").get<std::string>());
    base::end_process(run_tool(run, request.at("arguments").get<std::vector<std::string>>()));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// Runs the tool with the arguments of the command line. With --stay instead, reads requests from standard input, one a
// line: {"arguments": […], "stdout": PATH, "stderr": PATH}. Each is run in a process that is forked for it, so that
// loading LibTorch takes time only once; the answer is its status.
[[noreturn]] inline void tool_main(int argc, char** argv, const ToolRun& run) {
  if (argc != 2 || std::string(argv[1]) != "--stay") base::end_process(run_tool(run, {argv + 1, argv + argc}));
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << run_forked(run, nlohmann::json::parse(line)) << std::endl;
  }
  base::end_process(0);
}

}  // namespace fsdp::testing
