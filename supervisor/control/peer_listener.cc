#include "supervisor/control/peer_listener.h"

#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "lib/channel/message_channel.h"
#include "lib/channel/peer_namespace.h"
#include "spdlog/spdlog.h"

namespace baton {
namespace {

// How long to wait when accept fails for want of descriptors: the socket stays readable.
constexpr std::chrono::seconds kPause(1);

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

PeerListener::PeerListener(boost::asio::io_context& loop, FileDescriptor listening,
                           Accepted accepted)
    : accepted_(std::move(accepted)), listening_(loop, listening.Release()), pause_(loop) {
  boost::asio::post(loop, [this] { Wait(); });
}

void PeerListener::Wait() {
  listening_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                        [this](const boost::system::error_code& error) {
                          if (error) return;
                          if (AcceptOne()) return Wait();
                          pause_.expires_after(kPause);
                          pause_.async_wait([this](const auto&) { Wait(); });
                        });
}

bool PeerListener::AcceptOne() {
  FileDescriptor socket(
      accept4(listening_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
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
