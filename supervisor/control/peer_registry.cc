#include "supervisor/control/peer_registry.h"

#include <sys/stat.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace baton {
namespace {

std::optional<ino_t> InodeOf(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode)) return std::nullopt;
  return info.st_ino;
}

}  // namespace

bool PeerRegistry::Add(int fd, const Peer& peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto former = entries_.find(fd);
  if (former != entries_.end()) {
    --of_uid_[former->second.peer.uid];
    entries_.erase(former);
  }
  if (of_uid_[peer.uid] >= connections_per_uid_) ForgetClosed();
  if (of_uid_[peer.uid] >= connections_per_uid_) return false;
  ++of_uid_[peer.uid];
  entries_[fd] = Entry{peer, InodeOf(fd).value_or(0)};
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
