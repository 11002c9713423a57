#include "comm/meeting/network.h"

#include <c10/util/Exception.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <thread>

namespace fsdp::comm {
namespace {

constexpr auto kRetryPeriod = std::chrono::milliseconds(100);

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, int port, int socket_type) {
  addrinfo hints{};
  hints.ai_socktype = socket_type;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  TORCH_CHECK_WITH(DistNetworkError, status == 0, "cannot resolve the address '", host, "': ", gai_strerror(status),
                   "; check MASTER_ADDR");
  return {found, &freeaddrinfo};
}

class Socket {
 public:
  explicit Socket(const addrinfo& target) : fd_(socket(target.ai_family, target.ai_socktype | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool connect_to(const addrinfo& target) const {
    return fd_ >= 0 && connect(fd_, target.ai_addr, target.ai_addrlen) == 0;
  }
  // Returns an empty string if the address is unknown.
  std::string local_address() const {
    sockaddr_storage local{};
    socklen_t length = sizeof(local);
    if (getsockname(fd_, reinterpret_cast<sockaddr*>(&local), &length) != 0) return {};
    std::array<char, NI_MAXHOST> text{};
    const int status =
        getnameinfo(reinterpret_cast<sockaddr*>(&local), length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
    return status == 0 ? std::string(text.data()) : std::string();
  }

 private:
  int fd_;
};

bool is_listening(const addrinfo* targets) {
  for (const addrinfo* target = targets; target != nullptr; target = target->ai_next) {
    if (Socket(*target).connect_to(*target)) return true;
  }
  return false;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string local_address_towards(const std::string& host) {
  // Connecting a datagram socket sends nothing, but selects the route and thereby the local address.
  constexpr int kAnyPort = 9;
  const auto targets = resolve(host, kAnyPort, SOCK_DGRAM);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* target = targets.get(); target != nullptr; target = target->ai_next) {
      if (target->ai_family != family) continue;
      const Socket socket(*target);
      if (!socket.connect_to(*target)) continue;
      const auto address = socket.local_address();
      if (!address.empty()) return address;
    }
  }
  TORCH_CHECK_WITH(DistNetworkError, false, "no network interface of this host reaches '", host,
                   "'; check MASTER_ADDR");
}

bool wait_until_listening(const std::string& host, int port, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto targets = resolve(host, port, SOCK_STREAM);
  while (!is_listening(targets.get())) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kRetryPeriod);
  }
  return true;
}

}  // namespace fsdp::comm
