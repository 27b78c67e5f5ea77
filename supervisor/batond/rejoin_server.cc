#include "supervisor/batond/rejoin_server.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/channel/carried_status.h"
#include "lib/channel/message_channel.h"
#include "spdlog/spdlog.h"

namespace baton {
namespace {

constexpr int kBacklog = 128;
constexpr std::chrono::milliseconds kAcceptPause(100);
// A process that is refused connects again a little later.
constexpr size_t kMostClients = 64;
constexpr double kRequestsPerSecond = 20;
constexpr double kRequestsAtOnce = 256;
// Far more than a configuration has.
constexpr uint32_t kMostBytes = 1 << 20;
constexpr size_t kMostLoggedBytes = 64;  // of what a client says is its service

}  // namespace

RejoinServer::RejoinServer(boost::asio::io_context& io, std::string who, std::optional<uid_t> user,
                           TakeIn take_in)
    : io_(io),
      who_(std::move(who)),
      user_(user),
      take_in_(std::move(take_in)),
      requests_(kRequestsPerSecond, kRequestsAtOnce, MonotonicNanoseconds()) {}

RejoinServer::~RejoinServer() {
  for (const auto& [number, socket] : clients_) socket->Close();
}

absl::Status RejoinServer::Listen(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(FileDescriptor socket, ListenUnix(path, kBacklog, 0600));
  if (user_ && lchown(path.c_str(), *user_, static_cast<gid_t>(-1)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("chown ", path));
  }
  const auto accept = [this](FileDescriptor client) { Accept(std::move(client)); };
  acceptor_.emplace(io_, std::move(socket), kAcceptPause, Acceptor::Callbacks{accept, nullptr});
  return absl::OkStatus();
}

void RejoinServer::Accept(FileDescriptor socket) {
  if (clients_.size() >= kMostClients) return;
  const int number = ++last_client_;
  auto framed = std::make_shared<FramedSocket>(io_, std::move(socket),
                                               FramedSocket::Limits{.frame_bytes = kMostBytes});
  clients_[number] = framed;
  framed->Start([this, number, raw = framed.get()] { return AnswerOne(number, *raw); },
                [this, number](const absl::Status&) { clients_.erase(number); });
}

absl::StatusOr<bool> RejoinServer::AnswerOne(int client, FramedSocket& socket) {
  internal::RejoinRequest request;
  std::vector<FileDescriptor> received;
  BATON_ASSIGN_OR_RETURN(const bool whole, socket.channel().NextFrame(&request, &received));
  if (!whole) return false;
  if (!requests_.TryTake(MonotonicNanoseconds())) {
    return absl::ResourceExhaustedError("too many requests");  // closes the client's socket
  }
  const std::string service = request.config().service().name().substr(0, kMostLoggedBytes);
  auto answer = Answer(socket.channel().fd(), request, std::move(received));
  internal::RejoinReply reply;
  std::vector<int> descriptors;
  if (answer.ok()) {
    for (const FileDescriptor& descriptor : *answer) descriptors.push_back(descriptor.get());
  } else {
    spdlog::warn("{}{} is not taken in (client {}): {}", who_, service, client,
                 MessageOf(answer.status()));
    SetStatus(answer.status(), &reply);
  }
  socket.Send(reply, descriptors);
  return true;
}

absl::StatusOr<std::vector<FileDescriptor>> RejoinServer::Answer(
    int socket, const internal::RejoinRequest& request, std::vector<FileDescriptor> received) {
  BATON_ASSIGN_OR_RETURN(const PeerCredentials peer, GetPeerCredentials(socket));
  if (peer.uid != 0 && peer.uid != geteuid() && peer.uid != user_) {
    return absl::PermissionDeniedError(absl::StrCat("uid ", peer.uid, " runs no keepers"));
  }
  if (received.size() != 1) {
    return absl::InvalidArgumentError("a keeper sends the descriptor of its lock, and no other");
  }
  BATON_ASSIGN_OR_RETURN(PeerProcess process, GetPeerProcess(socket));
  return take_in_(request, SpawnedProcess{peer.pid, std::move(process.pidfd)},
                  std::move(received[0]));
}

}  // namespace baton
