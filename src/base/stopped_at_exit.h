// Threads that must end before the static objects of the libraries that they call into are destroyed.
#pragma once

#include <sys/types.h>

#include <functional>

namespace fsdp::base {

// [Note: threads alive at exit]
// An object with a thread may outlive main, because models in static objects hold it. Its thread must not call into
// libraries whose static objects are being destroyed, so it is stopped earlier. A handler of std::atexit runs before
// the static objects that existed when it was registered are destroyed.
//
// A child of the process (fork) has a copy of the object and none of its threads. There is nothing to stop in it, and
// the object cannot be destroyed either, because threads that are gone may have held its locks.

// Stops something at the end of the process (exit, not a signal), if it lives until then.
class StoppedAtExit {
 public:
  // `stop` is called at most once, and only in this process.
  explicit StoppedAtExit(std::function<void()> stop);
  ~StoppedAtExit();
  StoppedAtExit(const StoppedAtExit&) = delete;
  StoppedAtExit& operator=(const StoppedAtExit&) = delete;

  // Whether this is the process that made the object, and no child of it.
  bool is_of_this_process() const;

 private:
  struct All;
  static All& all();
  static void stop_all();

  std::function<void()> stop_;
  pid_t process_;
};

}  // namespace fsdp::base
