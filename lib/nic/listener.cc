#include "lib/nic/listener.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/verbs/port_taken.h"
#include "lib/verbs/socket_address.h"

namespace baton::verbs::soft {
namespace {

constexpr int kDefaultBacklog = 1024;
constexpr int kMaxBacklog = 4096;
constexpr int kAcceptsPerTurn = 64;
constexpr uint64_t kPauseNs = 5'000'000;
// A peer has at least this long for its request, which it sends as soon as it has connected. A peer
// that is busy with thousands of connections takes a while for it.
constexpr uint64_t kLeastPatienceNs = 100'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<SoftListener>> SoftListener::Create(ConnectionCore* core,
                                                                   const Address& address,
                                                                   int backlog) {
  BATON_ASSIGN_OR_RETURN(const SocketAddress at, ToSocketAddress(address));
  BATON_ASSIGN_OR_RETURN(FileDescriptor socket, OpenTcpSocket(at, SOCK_NONBLOCK));
  // On Linux this allows binding beside connections of a former listener, but not beside a live
  // listener.
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const int bounded = backlog > 0 ? std::min(backlog, kMaxBacklog) : kDefaultBacklog;
  if (bind(socket.get(), at.get(), at.size) != 0 || listen(socket.get(), bounded) != 0) {
    return TcpBindError(errno, address, absl::StrCat("listen on ", ToString(address)));
  }
  auto listener = std::make_unique<SoftListener>(core, std::move(socket), bounded);
  BATON_RETURN_IF_ERROR(core->loop->Watch(listener->socket_.get(), EPOLLIN, listener.get()));
  return listener;
}

SoftListener::SoftListener(ConnectionCore* core, FileDescriptor socket, int backlog)
    : core_(core),
      socket_(std::move(socket)),
      backlog_(backlog),
      address_(BoundAddressOf(socket_.get())) {
  pause_timer_.context = this;
  pause_timer_.fire = [](void* self) { static_cast<SoftListener*>(self)->Continue(); };
}

SoftListener::~SoftListener() {
  core_->loop->Cancel(&pause_timer_);
  core_->loop->Unwatch(socket_.get());
  core_->loop->Forget(this);
  std::erase_if(core_->half_open, [this](const auto& entry) { return entry->listener() == this; });
}

// Returns true if no peer may be accepted now. If all places for half-open peers are taken, the
// oldest peer makes room once it has had its time.
bool SoftListener::Crowded() const {
  if (unreported_ >= backlog_) return true;
  return core_->half_open.size() >= core_->options.max_half_open &&
         core_->loop->now() - core_->half_open.front()->accepted_ns() < kLeastPatienceNs;
}

void SoftListener::OnReady(uint32_t) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    if (Crowded()) return Pause();
    if (!AcceptOne()) return;
  }
}

bool SoftListener::AcceptOne() {
  FileDescriptor socket(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) {
    if (errno == ECONNABORTED || errno == EINTR) return true;
    if (errno != EAGAIN) Pause();  // out of descriptors or memory
    return false;
  }
  auto connection = std::make_unique<SoftConnection>(core_);
  if (!connection->TakeSocket(std::move(socket), this).ok()) return true;
  core_->half_open.push_back(std::move(connection));
  if (core_->half_open.size() > core_->options.max_half_open) core_->half_open.front()->MakeRoom();
  return true;
}

// The system's backlog holds the rest meanwhile.
void SoftListener::Pause() {
  core_->loop->Rewatch(socket_.get(), 0, this);
  core_->loop->Arm(&pause_timer_, kPauseNs);
}

void SoftListener::Continue() { core_->loop->Rewatch(socket_.get(), EPOLLIN, this); }

}  // namespace baton::verbs::soft
