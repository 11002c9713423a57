#include "comm/meeting/free_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace fsdp::comm {

FreePort::FreePort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  const int yes = 1;
  const bool found = socket_ >= 0 && setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
                     bind(socket_, plain, length) == 0 && getsockname(socket_, plain, &length) == 0;
  const int reason = errno;
  if (!found) {
    if (socket_ >= 0) close(socket_);
    throw std::system_error(reason, std::generic_category(), "cannot find a free TCP port");
  }
  number_ = ntohs(address.sin_port);
}

FreePort::~FreePort() { close(socket_); }

}  // namespace fsdp::comm
