#include "supervisor/control/peers.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/channel/message_channel.h"

namespace baton {
namespace {

std::optional<ino_t> InodeOf(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode)) return std::nullopt;
  return info.st_ino;
}

}  // namespace

absl::StatusOr<Peer> IdentifyPeer(int socket) {
  BATON_ASSIGN_OR_RETURN(const PeerCredentials credentials, GetPeerCredentials(socket));
  Peer peer{credentials.pid, credentials.uid, {credentials.gid}, IsPeerContained(socket)};
  std::vector<gid_t> groups(64);
  for (;;) {
    socklen_t bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    const int result = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes);
    if (result != 0 && errno != ERANGE) return ErrnoStatus(errno, "getsockopt(SO_PEERGROUPS)");
    groups.resize(bytes / sizeof(gid_t));
    if (result == 0) break;
  }
  peer.gids.insert(peer.gids.end(), groups.begin(), groups.end());
  return peer;
}

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
  std::erase_if(entries_, [this](const auto& one) {
    const auto& [fd, entry] = one;
    if (InodeOf(fd) == entry.inode) return false;
    --of_uid_[entry.peer.uid];
    return true;
  });
}

void PeerRegistry::End(const std::function<bool(const Peer&)>& whose) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [fd, entry] : entries_) {
    if (entry.served != Served::kByRole || !whose(entry.peer)) continue;
    // Uses a duplicate, because gRPC may close `fd` at any time, and another socket may get its
    // number.
    const FileDescriptor socket = CopyOf(fd);
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
