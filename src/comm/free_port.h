// A TCP port for the ranks to meet at.
#pragma once

namespace fsdp {

// A port that nobody listens on. As long as this object lasts no other process is given it as a free one, but a server
// that sets SO_REUSEADDR (as LibTorch's store does) can listen on it.
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

}  // namespace fsdp
