// A TCP port for the ranks to meet at.
#pragma once

namespace fsdp::comm {

// A port on which no process listens. While this object lives, the system does not give the port to another process as
// a free one, but a server that sets SO_REUSEADDR (as LibTorch's store does) can listen on it.
class FreePort {
 public:
  FreePort();
  ~FreePort();
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;

  int number() const { return number_; }

 private:
  int socket_;
  int number_ = 0;
};

}  // namespace fsdp::comm
