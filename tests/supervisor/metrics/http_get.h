#ifndef TESTS_SUPERVISOR_METRICS_HTTP_GET_H_
#define TESTS_SUPERVISOR_METRICS_HTTP_GET_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "lib/base/file_descriptor.h"

namespace baton::metrics {

// The whole answer of 127.0.0.1:`port`, header and body; what is wrong, if there is none.
std::string HttpGet(int port, const std::string& path);

inline std::string HttpGet(int port, const std::string& path) {
  const FileDescriptor socket_fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return std::string("connect: ") + std::strerror(errno);
  }
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  if (write(socket_fd.get(), request.data(), request.size()) !=
      static_cast<ssize_t>(request.size())) {
    return std::string("write: ") + std::strerror(errno);
  }
  std::string answer;
  char bytes[4096];
  for (ssize_t n; (n = read(socket_fd.get(), bytes, sizeof(bytes))) > 0;) {
    answer.append(bytes, static_cast<size_t>(n));
  }
  return answer;
}

}  // namespace baton::metrics

#endif  // TESTS_SUPERVISOR_METRICS_HTTP_GET_H_
