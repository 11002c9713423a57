#include "planner/run/child_answers.h"

#include <c10/util/StringUtil.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>

#include "base/error_message.h"
#include "config/errors.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;
using Work = std::function<ordered_json(size_t)>;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(c10::str("cannot ", what, ": ", std::strerror(errno)));
}

ordered_json outcome_of(const Work& work, size_t index) {
  try {
    return {{"result", work(index)}};
  } catch (const trainer::ConfigError& error) {
    return {{"refusal", error.what()}};
  } catch (const std::exception& error) {
    return {{"failure", base::message_of(error)}};
  }
}

bool write_all(int descriptor, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(descriptor, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) done += static_cast<size_t>(written);
  }
  return true;
}

[[noreturn]] void answer(int descriptor, const Work& work, size_t index) {
  const std::string text = outcome_of(work, index).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  const bool written = write_all(descriptor, text);
  std::fflush(stdout);
  std::_Exit(written ? 0 : 1);  // without destructors: the planned device has no way back
}

// A process that works, and the end of the pipe from which its answer is read.
class Child {
 public:
  Child(const Work& work, size_t index) : index_(index) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) fail("make a pipe for a plan");
    std::fflush(nullptr);  // otherwise the child would write pending output again
    process_ = fork();
    if (process_ == 0) {
      close(ends[0]);
      answer(ends[1], work, index);
    }
    close(ends[1]);
    descriptor_ = ends[0];
    if (process_ >= 0) return;
    close(descriptor_);
    fail("start a process for a plan");
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    close(descriptor_);
    if (process_ < 0) return;
    kill(process_, SIGKILL);
    wait();
  }

  size_t index() const { return index_; }
  int descriptor() const { return descriptor_; }

  // Reads the next part of the answer. Returns whether it was the last.
  bool read_part() {
    std::array<char, 65536> part{};
    const ssize_t bytes = read(descriptor_, part.data(), part.size());
    if (bytes < 0 && errno != EINTR) fail("read the result of a plan");
    if (bytes > 0) text_.append(part.data(), static_cast<size_t>(bytes));
    return bytes == 0;
  }

  // Call once, after the last part.
  Answer take() {
    const int status = wait();
    if (WIFSIGNALED(status)) {
      return {.failure = c10::str("the plan ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)),
                                  "); the message above, if any, names the operator")};
    }
    const ordered_json outcome = ordered_json::parse(text_, nullptr, /*allow_exceptions=*/false);
    if (status != 0 || !outcome.is_object()) {
      return {.failure = c10::str("the process of the plan ended with status ", WEXITSTATUS(status),
                                  " before it wrote its result")};
    }
    return {.result = outcome.value("result", ordered_json()),
            .refusal = outcome.value("refusal", ""),
            .failure = outcome.value("failure", "")};
  }

 private:
  int wait() {
    int status = 0;
    while (waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
    return status;
  }

  size_t index_;
  pid_t process_ = -1;
  int descriptor_ = -1;
  std::string text_;
};

using Children = std::vector<std::unique_ptr<Child>>;

// Waits until one of them has written, or ended, and returns these.
std::vector<Child*> ready(const Children& children) {
  std::vector<pollfd> ends;
  for (const auto& child : children) ends.push_back({.fd = child->descriptor(), .events = POLLIN, .revents = 0});
  while (poll(ends.data(), ends.size(), -1) < 0) {
    if (errno != EINTR) fail("wait for a plan");
  }
  std::vector<Child*> result;
  for (size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].revents != 0) result.push_back(children[i].get());
  }
  return result;
}

}  // namespace

std::vector<Answer> answers_of_children(size_t count, size_t at_once, const Work& work,
                                        const std::function<void(size_t, const Answer&)>& answered) {
  std::vector<Answer> answers(count);
  Children children;
  for (size_t next = 0; next < count || !children.empty();) {
    while (next < count && children.size() < std::max<size_t>(1, at_once)) {
      children.push_back(std::make_unique<Child>(work, next++));
    }
    for (Child* child : ready(children)) {
      if (!child->read_part()) continue;
      const size_t index = child->index();
      answers[index] = child->take();
      children.erase(
          std::find_if(children.begin(), children.end(), [&](const auto& other) { return other.get() == child; }));
      if (answered) answered(index, answers[index]);
    }
  }
  return answers;
}

}  // namespace fsdp::planner
