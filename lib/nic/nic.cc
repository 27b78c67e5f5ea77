#include "lib/nic/nic.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/pauses.h"
#include "lib/base/status.h"
#include "lib/nic/limits.h"

namespace baton::nic {

namespace {

// Identifies the loop's events in the epoll set. Sockets have ids above it, and registers have
// their eventfds with kRegisterEvent.
constexpr uint64_t kLoop = 1;

constexpr int kEventsInTurn = 32;
constexpr uint64_t kBusyTurns = 64;  // sockets are served once in this many turns, or more often
constexpr uint64_t kServeEveryNs = 1'000'000;

control::Reply ReplyTo(const control::RequestHeader& header,
                       const absl::StatusOr<uint32_t>& value) {
  control::Reply reply;
  reply.tag = header.tag;
  if (value.ok()) {
    reply.value = *value;
    return reply;
  }
  reply.error = ErrnoOf(value.status());
  PutText(value.status().message(), reply.text);
  return reply;
}

struct EventReply {
  control::Reply reply;
  control::Event event;
};

// Returns false if not even the header is valid.
bool ReadHeader(const ControlMessage& message, control::RequestHeader* header) {
  if (message.size < sizeof(*header)) return false;
  std::memcpy(header, message.bytes.data(), sizeof(*header));
  return header->bytes == message.size;
}

absl::Status Sleep(Nic* nic) {
  pollfd entry = {nic->event_fd(), POLLIN, 0};
  if (poll(&entry, 1, -1) >= 0 || errno == EINTR) return absl::OkStatus();
  return ErrnoStatus(errno, "poll of the NIC");
}

// Looks at the doorbells for a short time, without a system call, because a client that has just
// been served is about to ring again.
bool Glance(Nic* nic) {
  for (uint32_t look = 0; look < kLooksBeforeYield; ++look) {
    if (nic->TakeRings()) return true;
    Pause();
  }
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Nic>> Nic::Make(const verbs::soft::SoftDeviceOptions& options,
                                               Complain complain, bool own_addresses) {
  if (!complain) complain = [](const std::string&) {};
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return ErrnoStatus(errno, "epoll_create1 (see RLIMIT_NOFILE)");
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::soft::EventLoop> loop,
                         verbs::soft::EventLoop::Create());
  BATON_RETURN_IF_ERROR(AddToEpoll(epoll.get(), loop->event_fd(), {EPOLLIN, {.u64 = kLoop}}));
  return std::unique_ptr<Nic>(
      new Nic(options, std::move(epoll), std::move(loop), std::move(complain), own_addresses));
}

Nic::Nic(const verbs::soft::SoftDeviceOptions& options, FileDescriptor epoll,
         std::unique_ptr<verbs::soft::EventLoop> loop, Complain complain, bool own_addresses)
    : options_(options),
      epoll_(std::move(epoll)),
      loop_(std::move(loop)),
      objects_(options.seed),
      complain_(std::move(complain)),
      host_{&objects_,     loop_.get(),
            &options_,     [this](Owner file, const std::string& what) { ComplainOf(file, what); },
            own_addresses, epoll_.get()},
      last_id_(kLoop) {}

absl::Status Nic::Add(FileDescriptor socket) { return Watch(std::move(socket), 0).status(); }

// A file's socket has the file's number. If forked processes share a file, this names the process
// that made the socket.
void Nic::ComplainOf(Owner file, const std::string& what) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  const auto found = sockets_.find(file);
  if (found != sockets_.end()) {
    (void)getsockopt(found->second.fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size);
  }
  complain_(absl::StrCat("client ", file, " of process ", peer.pid, ": ", what));
}

absl::StatusOr<uint64_t> Nic::Watch(FileDescriptor socket, Owner owner) {
  if (sockets_.size() >= kMaxSockets) {
    return absl::ResourceExhaustedError(absl::StrCat("sockets: there are ", kMaxSockets));
  }
  const auto of_file = std::count_if(sockets_.begin(), sockets_.end(), [owner](const auto& entry) {
    return owner != 0 && entry.second.owner == owner;
  });
  if (static_cast<size_t>(of_file) >= kMaxSocketsOfFile) {
    return absl::ResourceExhaustedError(
        absl::StrCat("call sockets: this file has ", kMaxSocketsOfFile));
  }
  BATON_RETURN_IF_ERROR(AddToEpoll(epoll_.get(), socket.get(), {EPOLLIN, {.u64 = last_id_ + 1}}));
  sockets_[++last_id_] = {std::move(socket), owner, false};
  return last_id_;
}

bool Nic::Progress() {
  if (std::exchange(sleeping_, false)) {
    for (auto& [owner, context] : contexts_) context->registers().SetSleeping(false);
  }
  bool busy = Execute();
  const bool due = ++turns_ % kBusyTurns == 0 || loop_->now() - served_ns_ >= kServeEveryNs;
  if (!busy || due) busy |= Serve();
  return busy;
}

bool Nic::Execute() {
  bool busy = TakeRings();
  busy |= loop_->Progress();
  TellLoss();
  return busy;
}

void Nic::TellLoss() {
  if (!loop_->lost() || std::exchange(loss_told_, true)) return;
  for (auto& [owner, context] : contexts_) {
    context->Tell(verbs::DeviceEventType::kDeviceLost, 0);
  }
}

bool Nic::TakeRings() {
  loop_->UpdateNow();
  bool taken = false;
  for (auto& [owner, context] : contexts_) taken |= context->registers().Take();
  return taken;
}

bool Nic::PrepareToWait() {
  if (!loop_->PrepareToWait()) return false;
  sleeping_ = true;
  for (auto& [owner, context] : contexts_) context->registers().SetSleeping(true);
  for (auto& [owner, context] : contexts_) {
    if (!context->registers().empty()) return false;
  }
  return true;
}

bool Nic::Serve() {
  served_ns_ = loop_->now();
  epoll_event events[kEventsInTurn];
  const int count = epoll_wait(epoll_.get(), events, kEventsInTurn, 0);
  bool served = false;
  // Empties the eventfds while all registers of these events exist, because a message may end one.
  for (int i = 0; i < count; ++i) {
    if ((events[i].data.u64 & kRegisterEvent) == 0) continue;
    Empty(static_cast<int>(events[i].data.u64 & ~kRegisterEvent));
    served = true;
  }
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[i].data.u64;
    // Each turn of the NIC runs the loop anyway.
    if (id == kLoop || (id & kRegisterEvent) != 0) continue;
    ServeSocket(id);
    served = true;
  }
  return served;
}

// A socket of this turn may have ended with its file.
void Nic::ServeSocket(uint64_t id) {
  const auto found = sockets_.find(id);
  if (found == sockets_.end()) return;
  ControlMessage message;
  const Received received = Receive(found->second.fd.get(), &message);
  if (received == Received::kNothing) return;
  if (!Answer(id, received, &message)) Close(id);
  Discard(std::move(message.passed));
  for (FileDescriptor& superfluous : message.more) Discard(std::move(superfluous));
}

bool Nic::Answer(uint64_t id, Received received, ControlMessage* message) {
  Socket& socket = sockets_.at(id);
  control::RequestHeader header;
  if (received == Received::kNoDescriptor && ReadHeader(*message, &header)) {
    const absl::Status refused = absl::ResourceExhaustedError(
        "the NIC has no descriptor for what was passed: raise its RLIMIT_NOFILE");
    return SendMessage(socket.fd.get(), ReplyTo(header, refused));
  }
  if (received != Received::kMessage || !ReadHeader(*message, &header)) {
    if (received != Received::kEnded) {
      host_.complain(socket.owner != 0 ? socket.owner : id, "it sent what is no message");
    }
    return false;
  }
  if (socket.owner == 0) return Open(id, header, *message);
  if (!socket.file) return Execute(id, header, message);
  if (static_cast<control::Op>(header.op) != control::Op::kAddSocket) return false;
  AddSocket(socket, header, *message);
  return true;
}

// The client has a copy of the eventfd, and may have cleared its O_NONBLOCK.
void Nic::Empty(int eventfd) {
  uint64_t count = 0;
  const iovec into = {&count, sizeof(count)};
  (void)!preadv2(eventfd, &into, 1, -1, RWF_NOWAIT);
}

// A client in this process is trusted to pass only descriptors that close at once.
void Nic::Discard(FileDescriptor descriptor) {
  if (host_.own_addresses) return descriptor.Reset();
  closer_.Close(std::move(descriptor));
}

bool Nic::Open(uint64_t id, const control::RequestHeader& header, const ControlMessage& message) {
  Socket& socket = sockets_[id];
  control::OpenObjects open;
  const bool objects = static_cast<control::Op>(header.op) == control::Op::kOpenObjects;
  if (!objects && static_cast<control::Op>(header.op) != control::Op::kOpenIds) return false;
  absl::StatusOr<uint32_t> opened = 0u;
  if (message.size == sizeof(open)) std::memcpy(&open, message.bytes.data(), sizeof(open));
  if (message.size != sizeof(open) || open.version != control::kControlVersion ||
      open.reserved != 0) {
    opened = absl::InvalidArgumentError(
        absl::StrCat("version: this NIC has ", control::kControlVersion, "; use its library"));
  }
  if (!SendMessage(socket.fd.get(), ReplyTo(header, opened)) || !opened.ok()) return false;
  socket.owner = id;
  socket.file = true;
  if (objects) {
    contexts_[id] = std::make_unique<Context>(id, &host_);
    if (loss_told_) contexts_[id]->Tell(verbs::DeviceEventType::kDeviceLost, 0);
  } else {
    connections_[id] = std::make_unique<Connections>(&host_);
  }
  return true;
}

// The NIC makes the call socket. A socket of the client could be the last copy of the client's
// file, which would then never end.
void Nic::AddSocket(const Socket& file, const control::RequestHeader& header,
                    const ControlMessage& message) {
  if (!message.passed) return;
  FileDescriptor theirs;
  const auto add = [&]() -> absl::StatusOr<uint32_t> {
    BATON_ASSIGN_OR_RETURN(SocketPair pair, MakeSocketPair(SOCK_SEQPACKET | SOCK_NONBLOCK));
    // `file` may have moved afterwards.
    BATON_ASSIGN_OR_RETURN(const uint64_t id, Watch(std::move(pair.ours), file.owner));
    theirs = std::move(pair.theirs);
    return static_cast<uint32_t>(id);
  };
  const absl::StatusOr<uint32_t> number = add();
  (void)SendMessage(message.passed.get(), ReplyTo(header, number), theirs.get());
}

// Ends a call socket of a dead process. What the process has sent there and the NIC has not read is
// lost, so the process that follows it knows that nothing more comes.
absl::StatusOr<uint32_t> Nic::EndSocket(const Socket& caller, const ControlMessage& message) {
  control::EndSocket request;
  if (message.size != sizeof(request)) return absl::InvalidArgumentError("bytes of END_SOCKET");
  std::memcpy(&request, message.bytes.data(), sizeof(request));
  const auto found = std::find_if(sockets_.begin(), sockets_.end(), [&](const auto& entry) {
    return entry.second.owner == caller.owner && !entry.second.file &&
           static_cast<uint32_t>(entry.first) == request.number;
  });
  if (found == sockets_.end()) return 0u;  // it has ended
  if (&found->second == &caller) return absl::InvalidArgumentError("number: it is this socket's");
  Close(found->first);
  return 0u;
}

bool Nic::Execute(uint64_t id, const control::RequestHeader& header, ControlMessage* message) {
  if (static_cast<control::Op>(header.op) == control::Op::kEndSocket) {
    const control::Reply reply = ReplyTo(header, EndSocket(sockets_.at(id), *message));
    return SendMessage(sockets_.at(id).fd.get(), reply);
  }
  const Socket& socket = sockets_.at(id);
  Call call;
  call.bytes = message->span();
  call.passed = std::move(message->passed);
  const auto context = contexts_.find(socket.owner);
  ClientFile* const file = context != contexts_.end()
                               ? static_cast<ClientFile*>(context->second.get())
                               : connections_.at(socket.owner).get();
  const absl::StatusOr<uint32_t> value = file->Execute(&call);
  message->passed = std::move(call.passed);
  EventReply reply = {ReplyTo(header, value), {}};
  reply.reply.more = call.more;
  if (!call.event.has_value()) {
    return SendMessage(socket.fd.get(), reply.reply, value.ok() ? call.answer.get() : -1);
  }
  reply.event = *call.event;
  return SendMessage(socket.fd.get(), reply);
}

void Nic::Close(uint64_t id) {
  contexts_.erase(id);
  connections_.erase(id);
  const bool file = sockets_.at(id).file;
  absl::erase_if(sockets_, [&](auto& entry) {
    if (entry.first != id && !(file && entry.second.owner == id)) return false;
    // The client sees the end now, no matter when the descriptor is closed.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry.second.fd.get(), nullptr);
    shutdown(entry.second.fd.get(), SHUT_RDWR);
    Discard(std::move(entry.second.fd));
    return true;
  });
}

absl::Status Serve(Nic* nic, uint32_t yield_microseconds) {
  constexpr uint64_t kNsPerUs = 1000;
  const uint64_t yield_ns = yield_microseconds * kNsPerUs;
  uint64_t idle_since = 0;
  while (nic->has_clients()) {
    const bool worked = nic->Progress();
    if (idle_since == 0 && (worked || Glance(nic))) continue;
    if (worked) {
      idle_since = 0;
      continue;
    }
    const uint64_t now = MonotonicNanoseconds();
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < yield_ns) {
      sched_yield();
    } else if (nic->PrepareToWait()) {
      if (absl::Status slept = Sleep(nic); !slept.ok()) return slept;
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::nic
