#include "comm/local_address.h"

#include <c10/util/Exception.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>

namespace fsdp {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), "9", &hints, &found);
  TORCH_CHECK(status == 0, "cannot resolve the address '", host, "': ", gai_strerror(status),
              "; check MASTER_ADDR");
  return {found, &freeaddrinfo};
}

class Socket {
 public:
  explicit Socket(int family) : fd_(socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Connecting a datagram socket sends nothing, but chooses the route and so the local address. Empty: no
// route.
std::string address_towards(const addrinfo& target) {
  const Socket socket(target.ai_family);
  if (socket.fd() < 0 || connect(socket.fd(), target.ai_addr, target.ai_addrlen) != 0) return {};
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&local), &length) != 0) return {};
  std::array<char, NI_MAXHOST> text{};
  const int status = getnameinfo(reinterpret_cast<sockaddr*>(&local), length, text.data(), text.size(),
                                 nullptr, 0, NI_NUMERICHOST);
  return status == 0 ? std::string(text.data()) : std::string();
}

}  // namespace

std::string local_address_towards(const std::string& host) {
  const auto targets = resolve(host);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* target = targets.get(); target != nullptr; target = target->ai_next) {
      if (target->ai_family != family) continue;
      const auto address = address_towards(*target);
      if (!address.empty()) return address;
    }
  }
  TORCH_CHECK(false, "no network interface of this host reaches '", host, "'; check MASTER_ADDR");
}

}  // namespace fsdp
