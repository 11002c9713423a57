#include "launch/gate.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace fsdp::trainer {

Gate::Gate() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "cannot make a pipe");
  inside_ = ends[0];
  outside_ = ends[1];
}

Gate::~Gate() {
  close_end(inside_);
  close_end(outside_);
}

void Gate::open(int count) {
  const std::string go(static_cast<size_t>(count), '1');
  // The pipe has room for as many processes as there can be, and a reader: this one.
  if (write(outside_, go.data(), go.size()) < 0)
    throw std::system_error(errno, std::generic_category(), "a closed gate");
  close_end(outside_);
}

bool Gate::pass() {
  close_end(outside_);  // or this process would wait for itself
  char go = 0;
  ssize_t count = 0;
  do count = read(inside_, &go, 1);
  while (count < 0 && errno == EINTR);
  close_end(inside_);
  return count == 1;
}

void Gate::close_end(int& end) {
  if (end >= 0) close(std::exchange(end, -1));
}

}  // namespace fsdp::trainer
