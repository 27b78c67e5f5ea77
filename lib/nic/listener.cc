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
  absl::erase_if(core_->half_open,
                 [this](const auto& entry) { return entry.first->listener() == this; });
}

bool SoftListener::Crowded() const {
  return core_->half_open.size() >= core_->options.max_half_open || unreported_ >= backlog_;
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
  SoftConnection* const key = connection.get();
  if (connection->TakeSocket(std::move(socket), this).ok()) {
    core_->half_open.emplace(key, std::move(connection));
  }
  return true;
}

// The system's backlog holds the rest meanwhile.
void SoftListener::Pause() {
  core_->loop->Rewatch(socket_.get(), 0, this);
  core_->loop->Arm(&pause_timer_, kPauseNs);
}

void SoftListener::Continue() { core_->loop->Rewatch(socket_.get(), EPOLLIN, this); }

}  // namespace baton::verbs::soft
