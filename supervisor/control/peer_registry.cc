#include "supervisor/control/peer_registry.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "lib/base/file_descriptor.h"

namespace baton {
namespace {

std::optional<ino_t> InodeOf(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode)) return std::nullopt;
  return info.st_ino;
}

}  // namespace

bool PeerRegistry::Add(int fd, const Peer& peer, Served served) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto former = entries_.find(fd);
  if (former != entries_.end()) {
    --of_uid_[former->second.peer.uid];
    entries_.erase(former);
  }
  if (of_uid_[peer.uid] >= connections_per_uid_) ForgetClosed();
  if (of_uid_[peer.uid] >= connections_per_uid_) return false;
  ++of_uid_[peer.uid];
  entries_[fd] = Entry{peer, InodeOf(fd).value_or(0), served};
  return true;
}

void PeerRegistry::ForgetClosed() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (InodeOf(entry->first) == entry->second.inode) {
      ++entry;
      continue;
    }
    --of_uid_[entry->second.peer.uid];
    entry = entries_.erase(entry);
  }
}

void PeerRegistry::End(const std::function<bool(const Peer&)>& whose) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [fd, entry] : entries_) {
    if (entry.served != Served::kByRole || !whose(entry.peer)) continue;
    // A duplicate, because gRPC may close this one any time, and its number be another socket's.
    const FileDescriptor socket(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (socket && InodeOf(socket.get()) == entry.inode) shutdown(socket.get(), SHUT_RDWR);
  }
}

std::optional<Peer> PeerRegistry::Find(const std::string& grpc_peer) const {
  absl::string_view number = grpc_peer;
  int fd = -1;
  if (!absl::ConsumePrefix(&number, "fd:") || !absl::SimpleAtoi(number, &fd)) return std::nullopt;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(fd);
  if (found == entries_.end()) return std::nullopt;
  return found->second.peer;
}

std::string PeerRegistry::Describe(const std::string& grpc_peer) const {
  const std::optional<Peer> peer = Find(grpc_peer);
  if (!peer) return absl::StrCat("unknown peer ", grpc_peer);
  return absl::StrCat("uid ", peer->uid, " pid ", peer->pid);
}

}  // namespace baton
