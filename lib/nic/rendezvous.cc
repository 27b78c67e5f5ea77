#include "lib/nic/rendezvous.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "lib/base/random_bytes.h"
#include "lib/base/status.h"
#include "lib/nic/control_socket.h"

namespace baton::nic {
namespace {

using verbs::soft::EventLoop;
using verbs::soft::MemoryOffer;
using verbs::soft::MemoryPassed;

constexpr int kAdmittedInTurn = 16;
constexpr size_t kTokenBytes = sizeof(MemoryOffer::token);
static_assert(sizeof(MemoryOffer::name) == kTokenBytes);

struct AbstractAddress {
  explicit AbstractAddress(absl::string_view name) {
    const std::string text = absl::StrCat("baton-wire-", absl::BytesToHexString(name));
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, text.data(), text.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address = {};
  socklen_t size = 0;
};

FileDescriptor UnixSocket() {
  return FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// A process of the same user can harm this one without a memory or a descriptor, too.
bool IsOfSameUser(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

}  // namespace

// ---------------------------------------------------------------- the side that offers

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Make(EventLoop* loop,
                                                             uint64_t patience_ns) {
  const std::string name = RandomBytes(kTokenBytes);
  FileDescriptor listener = UnixSocket();
  const AbstractAddress address(name);
  if (!listener || bind(listener.get(), address.get(), address.size) != 0 ||
      listen(listener.get(), kMaxMemoryOffers) != 0) {
    return ErrnoStatus(errno, "a socket to pass memory over (see RLIMIT_NOFILE)");
  }
  std::unique_ptr<Rendezvous> made(new Rendezvous(loop, patience_ns, std::move(listener), name));
  BATON_RETURN_IF_ERROR(loop->Watch(made->listener_.get(), EPOLLIN, made.get()));
  return made;
}

Rendezvous::Rendezvous(EventLoop* loop, uint64_t patience_ns, FileDescriptor listener,
                       const std::string& name)
    : loop_(loop), patience_ns_(patience_ns), listener_(std::move(listener)), name_(name) {}

Rendezvous::~Rendezvous() {
  while (!guests_.empty()) Dismiss(guests_.back().get());
  loop_->Unwatch(listener_.get());
  loop_->Forget(this);
}

absl::StatusOr<MemoryOffer> Rendezvous::Offer(MemoryMaker* maker) {
  if (offers_.size() >= kMaxMemoryOffers) {
    return absl::ResourceExhaustedError(absl::StrCat("offers: there are ", kMaxMemoryOffers));
  }
  const std::string token = RandomBytes(kTokenBytes);
  MemoryOffer offer;
  std::memcpy(offer.name, name_.data(), sizeof(offer.name));
  std::memcpy(offer.token, token.data(), sizeof(offer.token));
  offers_[token] = maker;
  return offer;
}

void Rendezvous::Withdraw(const MemoryMaker* maker) {
  absl::erase_if(offers_, [maker](const auto& entry) { return entry.second == maker; });
}

void Rendezvous::OnReady(uint32_t) {
  for (int i = 0; i < kAdmittedInTurn && Admit(); ++i) {
  }
}

// While there are too many guests, the listener's backlog holds the rest.
bool Rendezvous::Admit() {
  if (guests_.size() >= kMaxMemoryOffers) {
    loop_->Rewatch(listener_.get(), 0, this);
    return false;
  }
  auto guest = std::make_unique<Guest>();
  guest->socket.Reset(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!guest->socket) return errno == ECONNABORTED || errno == EINTR;
  if (!IsOfSameUser(guest->socket.get())) return true;
  guest->rendezvous = this;
  if (!loop_->Watch(guest->socket.get(), EPOLLIN, guest.get()).ok()) return true;
  guest->timer.context = guest.get();
  guest->timer.fire = [](void* self) {
    auto* const silent = static_cast<Guest*>(self);
    silent->rendezvous->Dismiss(silent);
  };
  loop_->Arm(&guest->timer, patience_ns_);
  guests_.push_back(std::move(guest));
  return true;
}

void Rendezvous::Serve(Guest* guest) {
  if (!guest->socket) return;  // dismissed in this turn
  ControlMessage message;
  const Received received = Receive(guest->socket.get(), &message);
  if (received == Received::kNothing) return;
  const char* const bytes = reinterpret_cast<const char*>(message.bytes.data());
  MemoryMaker* const maker =
      received == Received::kMessage ? TakeOffer({bytes, message.size}) : nullptr;
  if (maker != nullptr) {
    const absl::StatusOr<FileDescriptor> memfd = maker->MakeMemory();
    const MemoryPassed passed = {verbs::soft::kWireMagic, verbs::soft::kMemoryVersion};
    if (memfd.ok()) (void)SendMessage(guest->socket.get(), passed, memfd->get());
  }
  Dismiss(guest);
}

// A token can be used once.
MemoryMaker* Rendezvous::TakeOffer(absl::string_view token) {
  const auto found = offers_.find(token);
  if (found == offers_.end()) return nullptr;
  MemoryMaker* const maker = found->second;
  offers_.erase(found);
  return maker;
}

// The peer reads what was sent, and then the end.
void Rendezvous::Dismiss(Guest* guest) {
  if (guests_.size() == kMaxMemoryOffers) loop_->Rewatch(listener_.get(), EPOLLIN, this);
  loop_->Cancel(&guest->timer);
  loop_->Unwatch(guest->socket.get());
  guest->socket.Reset();
  const auto found = std::find_if(guests_.begin(), guests_.end(),
                                  [guest](const auto& entry) { return entry.get() == guest; });
  loop_->Bury(std::move(*found));
  guests_.erase(found);
}

// ---------------------------------------------------------------- the side that takes

absl::StatusOr<std::unique_ptr<MemoryRequest>> MemoryRequest::Make(EventLoop* loop,
                                                                   const MemoryOffer& offer,
                                                                   User* user) {
  FileDescriptor socket = UnixSocket();
  const AbstractAddress address({reinterpret_cast<const char*>(offer.name), sizeof(offer.name)});
  if (!socket || connect(socket.get(), address.get(), address.size) != 0) {
    return ErrnoStatus(errno, "connecting to the NIC that offers memory");
  }
  if (!IsOfSameUser(socket.get())) {
    return absl::PermissionDeniedError("the NIC that offers memory is of another user");
  }
  if (!Send(socket.get(), {offer.token, sizeof(offer.token)}, -1)) {
    return absl::UnavailableError("the NIC that offers memory has gone");
  }
  auto made = std::make_unique<MemoryRequest>(loop, std::move(socket), user);
  BATON_RETURN_IF_ERROR(loop->Watch(made->socket_.get(), EPOLLIN, made.get()));
  return made;
}

void MemoryRequest::Cancel() {
  if (!socket_) return;
  loop_->Unwatch(socket_.get());
  socket_.Reset();
}

void MemoryRequest::OnReady(uint32_t) {
  if (!socket_) return;  // cancelled in this turn
  ControlMessage message;
  const Received received = Receive(socket_.get(), &message);
  if (received == Received::kNothing) return;
  Cancel();
  MemoryPassed passed = {};
  if (message.size == sizeof(passed)) {
    std::memcpy(&passed, message.bytes.data(), sizeof(passed));
  }
  if (received != Received::kMessage || !message.passed ||
      passed.magic != verbs::soft::kWireMagic || passed.version != verbs::soft::kMemoryVersion) {
    return user_->OnMemory(absl::UnavailableError("the NIC that offered memory has passed none"));
  }
  user_->OnMemory(std::move(message.passed));
}

}  // namespace baton::nic
