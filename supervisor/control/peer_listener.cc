#include "supervisor/control/peer_listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "lib/channel/message_channel.h"
#include "lib/channel/peer_namespace.h"
#include "spdlog/spdlog.h"

namespace baton {
namespace {

// How long to wait when accept fails for want of descriptors, which poll would report at once.
constexpr int kPauseMs = 1000;

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

absl::StatusOr<std::unique_ptr<PeerListener>> PeerListener::Start(FileDescriptor listening,
                                                                  Accepted accepted) {
  std::unique_ptr<PeerListener> listener(new PeerListener);
  listener->accepted_ = std::move(accepted);
  listener->listening_ = std::move(listening);
  listener->stop_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener->stop_) return ErrnoStatus(errno, "eventfd");
  listener->thread_ = std::thread([raw = listener.get()] { raw->Run(); });
  return listener;
}

PeerListener::~PeerListener() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void PeerListener::Run() {
  for (;;) {
    pollfd entries[2] = {{stop_.get(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
    if (poll(entries, 2, -1) < 0) continue;
    if (entries[0].revents != 0) return;
    if (AcceptOne()) continue;
    poll(entries, 1, kPauseMs);
  }
}

bool PeerListener::AcceptOne() {
  FileDescriptor socket(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return true;
    spdlog::error("{}; see RLIMIT_NOFILE", std::string(ErrnoStatus(errno, "accept").message()));
    return false;
  }
  const absl::StatusOr<Peer> peer = IdentifyPeer(socket.get());
  if (peer.ok()) accepted_(std::move(socket), *peer);
  return true;
}

}  // namespace baton
