#include "lib/channel/peer_namespace.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5, not in Debian 12's headers
#endif

namespace baton {
namespace {

// How many pid namespaces, from that of /proc down, a process has numbers in, as "NSpid:" of this
// file says; 0: it does not.
size_t PidNamespaces(const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("NSpid:")) continue;
    std::istringstream numbers(line.substr(line.find(':') + 1));
    size_t count = 0;
    for (int number = 0; numbers >> number; ++count) {
      if (number <= 0) return 0;
    }
    return count;
  }
  return 0;
}

}  // namespace

bool IsPeerContained(int socket) {
  // A process of a namespace beside ours has no number here. GetPeerProcess() would open a pidfd
  // before Linux 6.5, which control's filter of system calls does not let it do.
  const auto peer = GetPeerCredentials(socket);
  if (!peer.ok() || peer->pid <= 0) return true;
  int fd = -1;
  socklen_t length = sizeof(fd);
  const bool known = getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0;
  if (!known && errno != ENOPROTOOPT) return true;
  const FileDescriptor process(known ? fd : -1);
  const size_t its = PidNamespaces(known ? absl::StrCat("/proc/self/fdinfo/", fd)
                                         : absl::StrCat("/proc/", peer->pid, "/status"));
  return its == 0 || its != PidNamespaces("/proc/self/status");
}

}  // namespace baton
