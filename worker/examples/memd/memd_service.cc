#include "worker/examples/memd/memd_service.h"

#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/end_text.h"
#include "worker/heap.h"
#include "worker/heap_grants.h"
#include "worker/leases.h"

namespace baton::memd {
namespace {

constexpr uint32_t kReceives = kRequestWindow + kNoticeWindow;
// A client may have the answers to its window of requests, and ask again, before their completions
// are delivered here.
constexpr uint32_t kMinSendDepth = 2 * kRequestWindow;
// Places of requests and replies begin on cache lines.
constexpr uint64_t kRequestPlace = 64;
constexpr uint64_t kReplyPlace = sizeof(Reply);
static_assert(sizeof(Request) <= kRequestPlace);
static_assert(kReplyPlace % kRequestPlace == 0);

constexpr uint64_t kNanosecondsPerMs = 1'000'000;
// Connections whose leases one call of the timer ends: revoking takes the keeper's time.
constexpr int kMostEndedAtOnce = 4;
// After leases could not be freed: no room in the transaction, or the keeper does not answer.
constexpr uint64_t kRetryNs = 20 * kNanosecondsPerMs;

uint32_t AccessOf(uint32_t rights) {
  return ((rights & kRead) != 0 ? uint32_t{verbs::kRemoteRead} : 0) |
         ((rights & kWrite) != 0 ? uint32_t{verbs::kRemoteWrite} : 0) |
         ((rights & kAtomic) != 0 ? uint32_t{verbs::kRemoteAtomic} : 0);
}

uint32_t RightsOf(uint32_t access) {
  return ((access & verbs::kRemoteRead) != 0 ? uint32_t{kRead} : 0) |
         ((access & verbs::kRemoteWrite) != 0 ? uint32_t{kWrite} : 0) |
         ((access & verbs::kRemoteAtomic) != 0 ? uint32_t{kAtomic} : 0);
}

// The library refuses what is too long.
uint64_t NanosecondsOf(uint64_t milliseconds) {
  return std::min(milliseconds, Leases::kMostDurationNs / kNanosecondsPerMs + 1) *
         kNanosecondsPerMs;
}

uint64_t MillisecondsLeft(const Lease& lease) {
  if (lease.ends_ns == 0) return 0;
  const uint64_t now = Leases::Now();
  return lease.ends_ns <= now ? 1
                              : std::max<uint64_t>((lease.ends_ns - now) / kNanosecondsPerMs, 1);
}

// kUnavailable means to a client that its connection has ended. Here the keeper has not answered,
// and the client may ask again.
absl::StatusCode CodeFor(const absl::Status& status) {
  return absl::IsUnavailable(status) ? absl::StatusCode::kDeadlineExceeded : status.code();
}

absl::Status CheckRequest(const Request& request, uint32_t bytes) {
  if (bytes == sizeof(Request) && request.magic == kRequestMagic &&
      request.version == kProtocolVersion && request.reserved == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a message of ", bytes, " bytes is no request of version ", kProtocolVersion));
}

}  // namespace

// ---------------------------------------------------------------- deadlines

void Deadlines::Set(Connection* connection, uint64_t end_ns) {
  const auto found = end_of_.find(connection);
  if (found != end_of_.end()) {
    if (found->second.end_ns == end_ns) return;
    ends_.erase({found->second.end_ns, connection});
    end_of_.erase(found);
  }
  if (end_ns == 0) return;
  ends_.emplace(end_ns, connection);
  end_of_[connection] = {end_ns, &connection->shard()};
}

// The connections of a shard that was lost must not be looked at.
void Deadlines::Forget(const Shard& shard) {
  absl::erase_if(end_of_, [&](const auto& entry) {
    const auto& [connection, end] = entry;
    if (end.shard != &shard) return false;
    ends_.erase({end.end_ns, connection});
    return true;
  });
}

// ---------------------------------------------------------------- capacity, and where things are

absl::Status MemdService::Begin(Worker& worker) {
  BATON_RETURN_IF_ERROR(Fit(worker));
  // Leases end by this clock. It goes on while the machine is suspended.
  timer_.Reset(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_) return ErrnoStatus(errno, "cannot make a timer");
  return worker.Watch(timer_.get(), [this] { OnTimer(); });
}

absl::Status MemdService::Fit(const Worker& worker) {
  const Capacity& capacity = worker.capacity();
  shared_slots_ = uint64_t{2} * capacity.shared_receive_queue_depth;
  const uint32_t receives = shared_slots_ != 0 ? kReceives : capacity.receive_queue_depth;
  if (capacity.send_queue_depth < kMinSendDepth || receives < kReceives) {
    return absl::InvalidArgumentError(absl::StrCat(
        "queues of ", capacity.send_queue_depth, " sends and ", capacity.receive_queue_depth,
        " receives: raise the service's ", "send_queue_depth to ", kMinSendDepth,
        " and receive_queue_depth to ", kReceives));
  }
  if (capacity.shard_heap_bytes == 0) {
    return absl::InvalidArgumentError(
        "the service has no heaps, where leased memory is: set shard_heap_bytes");
  }
  if (capacity.connection_state_bytes < StateBytesFor(1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the service keeps ", capacity.connection_state_bytes,
        " bytes of state per connection: raise connection_state_bytes to ", StateBytesFor(1),
        ", and by ", StateBytesFor(1) - StateBytesFor(0), " for each further lease"));
  }
  most_leases_ = std::min({options_.most_leases, Leases::kMostLeases,
                           (capacity.connection_state_bytes - StateBytesFor(0)) /
                               (StateBytesFor(1) - StateBytesFor(0))});
  receive_ring_ = shared_slots_ != 0 ? 0 : uint64_t{2} * capacity.receive_queue_depth;
  reply_ring_ = uint64_t{2} * capacity.send_queue_depth;
  slab_bytes_ = receive_ring_ * kRequestPlace + reply_ring_ * kReplyPlace;
  shared_bytes_ = capacity.shards * shared_slots_ * kRequestPlace;
  const uint64_t needed = shared_bytes_ + slab_bytes_ * capacity.connections;
  if (worker.buffers().size() < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("the service's ", worker.buffers().size(), " bytes of buffers are too few: ",
                     "raise buffer_bytes to ", needed, ", or lower max_connections"));
  }
  return absl::OkStatus();
}

uint64_t MemdService::ReceiveOffset(const Connection& connection, uint64_t sequence) const {
  if (shared_slots_ != 0) {
    return (connection.shard().index() * shared_slots_ + sequence) * kRequestPlace;
  }
  return SlabOffset(connection) + sequence % receive_ring_ * kRequestPlace;
}

uint64_t MemdService::ReplyOffset(const Connection& connection, uint64_t sequence) const {
  return SlabOffset(connection) + receive_ring_ * kRequestPlace +
         sequence % reply_ring_ * kReplyPlace;
}

absl::StatusOr<ConnectionState> MemdService::Load(Connection& connection) const {
  return ConnectionState::Load(connection, most_leases_);
}

// Not before its commit does the state say so; a deadline that is wrong until then only makes the
// timer look in vain.
absl::Status MemdService::Save(Connection& connection, ConnectionState& state) {
  BATON_RETURN_IF_ERROR(state.Save(connection));
  deadlines_.Set(&connection, state.leases().next_end().value_or(0));
  SetTimer();
  return absl::OkStatus();
}

// ---------------------------------------------------------------- owners

// Frees memory that no state knows, and revokes what dead owners granted of it.
absl::Status MemdService::OnAdopt(Shard& shard) {
  BATON_CRASH_POINT("memd-adopt-begin");
  absl::flat_hash_set<uint64_t> known;
  for (Connection* connection : shard.connections()) {
    if (connection->state().empty()) continue;
    BATON_ASSIGN_OR_RETURN(const ConnectionState state, Load(*connection));
    for (const Lease& lease : state.leases().all()) known.insert(lease.offset);
    deadlines_.Set(connection, state.leases().next_end().value_or(0));
  }
  BATON_RETURN_IF_ERROR(HeapGrants::FreeLost(
      shard, [&](const Buffer& memory) { return known.contains(memory.offset); }));
  SetTimer();  // those that are overdue end at once, and keep no peer waiting
  BATON_RETURN_IF_ERROR(PostShared(shard));
  BATON_CRASH_POINT("memd-adopt-end");
  return absl::OkStatus();
}

// No state names memory that is not freed here, so the next owner frees it.
void MemdService::OnRelease(Shard& shard) {
  deadlines_.Forget(shard);
  unfreed_.erase(&shard);
}

void MemdService::OnLost(Shard& shard) {
  OnRelease(shard);
  spdlog::warn("shard {} was taken away", shard.index());
}

void MemdService::OnShutdown(std::string_view reason) {
  spdlog::info("asked to end: {}", std::string(reason));
}

// ---------------------------------------------------------------- completions

void MemdService::OnCompletion(Shard& shard, const Completion& completion) {
  Connection& connection = *completion.connection;
  switch (completion.kind) {
    case Completion::Kind::kConnectRequest:
      OnConnectRequest(shard, connection);
      break;
    case Completion::Kind::kReceive:
      // An error ends the connection by itself: its kDisconnected follows.
      if (completion.status == verbs::CompletionStatus::kSuccess) {
        const absl::Status status = OnReceive(shard, completion);
        if (!status.ok()) Drop(shard, connection, status);
      }
      // A shared receive is posted again whatever became of its connection.
      if (const absl::Status status = PostShared(shard); !status.ok()) {
        spdlog::error("shard {}: receives are missing: {}", shard.index(),
                      std::string(status.message()));
      }
      break;
    case Completion::Kind::kSend:
      if (completion.status != verbs::CompletionStatus::kSuccess &&
          completion.status != verbs::CompletionStatus::kFlushError) {
        spdlog::error("connection {}: reply {} failed: {}", connection.index(), completion.sequence,
                      std::string(verbs::CompletionStatusName(completion.status)));
      }
      break;
    case Completion::Kind::kEstablished:
      break;
    case Completion::Kind::kDisconnected:
    case Completion::Kind::kConnectFailed:
      OnEnd(shard, completion);
      break;
  }
}

void MemdService::OnConnectRequest(Shard& shard, Connection& connection) {
  BATON_CRASH_POINT("memd-accept-begin");
  const absl::Status status = Accept(shard, connection);
  if (!status.ok()) {
    shard.Abandon();
    spdlog::error("connection {} of {} is refused: {}", connection.index(),
                  std::string(connection.peer_address()), std::string(status.message()));
    const absl::Status rejected = shard.Reject(connection, MessageOf(status).substr(0, 100));
    if (!rejected.ok()) Drop(shard, connection, rejected);
  }
  BATON_CRASH_POINT("memd-accept-end");
}

absl::Status MemdService::Accept(Shard& shard, Connection& connection) {
  for (uint32_t i = 0; shared_slots_ == 0 && i < kReceives; ++i) {
    BATON_RETURN_IF_ERROR(PostReceive(shard, connection));
  }
  const Greeting greeting = {kGreetingMagic, kProtocolVersion, static_cast<uint16_t>(most_leases_),
                             options_.most_bytes};
  BATON_RETURN_IF_ERROR(
      shard.Accept(connection, {reinterpret_cast<const char*>(&greeting), sizeof(greeting)}));
  BATON_ASSIGN_OR_RETURN(ConnectionState state, Load(connection));
  return Save(connection, state);
}

absl::Status MemdService::PostReceive(Shard& shard, Connection& connection) const {
  const Buffer buffer{ReceiveOffset(connection, connection.next_receive()), kRequestPlace};
  return shard.Receive(connection, {&buffer, 1});
}

absl::Status MemdService::PostShared(Shard& shard) const {
  while (shared_slots_ != 0 && shard.shared_receive_room() > 0) {
    const uint64_t place = shard.index() * shared_slots_ + shard.next_shared_receive();
    const Buffer buffer{place * kRequestPlace, kRequestPlace};
    BATON_RETURN_IF_ERROR(shard.ReceiveShared({&buffer, 1}));
  }
  return absl::OkStatus();
}

absl::Status MemdService::OnReceive(Shard& shard, const Completion& completion) {
  Connection& connection = *completion.connection;
  BATON_ASSIGN_OR_RETURN(ConnectionState state, Load(connection));
  // Judges a copy, which nobody can change meanwhile.
  Request request = {};
  std::memcpy(&request,
              shard.worker().buffers().data() + ReceiveOffset(connection, completion.sequence),
              sizeof(request));
  // The connection takes its entry of the transaction before leases that are over, which are freed,
  // can take all that there are.
  BATON_RETURN_IF_ERROR(shared_slots_ == 0 ? PostReceive(shard, connection)
                                           : Save(connection, state));
  if (completion.opcode == verbs::CompletionOpcode::kReceiveWithImmediate) {
    state.CountNotice(completion.immediate);
    BATON_CRASH_POINT("memd-notice-counted");
    return Save(connection, state);
  }
  BATON_RETURN_IF_ERROR(CheckRequest(request, completion.byte_len));
  return Answer(shard, connection, state, request);
}

// A request that cannot be granted is answered with the reason. The state may have changed then,
// too: leases that are overdue are freed first.
absl::Status MemdService::Answer(Shard& shard, Connection& connection, ConnectionState& state,
                                 const Request& request) {
  BATON_CRASH_POINT("memd-request-begin");
  const absl::StatusOr<Lease> lease = Execute(state, request);
  BATON_CRASH_POINT("memd-request-executed");
  if (absl::IsAborted(lease.status())) return lease.status();  // the shard is not ours any more
  const Reply reply = ReplyTo(request, lease, state);
  const Buffer place{ReplyOffset(connection, connection.next_send()), sizeof(reply)};
  std::memcpy(shard.worker().buffers().data() + place.offset, &reply, sizeof(reply));
  SendWork send;
  send.buffers = {&place, 1};
  send.solicited = true;
  BATON_RETURN_IF_ERROR(shard.Send(connection, send));
  BATON_CRASH_POINT("memd-reply-staged");
  BATON_RETURN_IF_ERROR(Save(connection, state));
  BATON_CRASH_POINT("memd-request-end");
  return absl::OkStatus();  // and the library commits
}

absl::StatusOr<Lease> MemdService::Execute(ConnectionState& state, const Request& request) const {
  Leases& leases = state.leases();
  switch (request.kind) {
    case RequestKind::kAllocate:
      return Allocate(state, request);
    case RequestKind::kFree:
      BATON_RETURN_IF_ERROR(leases.Free(request.lease));
      return Lease{};
    case RequestKind::kRenew:
      return leases.Renew(request.lease, NanosecondsOf(request.milliseconds), Leases::Now());
    case RequestKind::kStat: {
      if (request.lease == 0) return Lease{};
      const Lease* const found = leases.Find(request.lease);
      if (found != nullptr) return *found;
      return absl::NotFoundError(absl::StrCat("lease: there is no lease ", request.lease));
    }
  }
  return absl::UnimplementedError(
      absl::StrCat("kind: ", static_cast<uint32_t>(request.kind), " is no request"));
}

absl::StatusOr<Lease> MemdService::Allocate(ConnectionState& state, const Request& request) const {
  Leases& leases = state.leases();
  // A lease whose time is over counts no more, and is none that the request could repeat.
  const uint64_t now = Leases::Now();
  BATON_RETURN_IF_ERROR(leases.FreeOverdue(now));
  const bool is_repeated =
      std::any_of(leases.all().begin(), leases.all().end(),
                  [&](const Lease& lease) { return lease.request == request.number; });
  if (!is_repeated && (leases.bytes() > options_.most_bytes ||
                       request.bytes > options_.most_bytes - leases.bytes())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("bytes: a client has ", options_.most_bytes, " at most"));
  }
  if ((request.rights & ~kAllRights) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("rights: ", request.rights));
  }
  LeaseRequest wanted;
  wanted.request = request.number;
  wanted.bytes = request.bytes;
  wanted.access = AccessOf(request.rights);
  wanted.duration_ns = NanosecondsOf(request.milliseconds);
  return leases.Allocate(wanted, now);
}

Reply MemdService::ReplyTo(const Request& request, const absl::StatusOr<Lease>& lease,
                           const ConnectionState& state) const {
  Reply reply = {};
  reply.magic = kReplyMagic;
  reply.version = kProtocolVersion;
  reply.kind = request.kind;
  reply.number = request.number;
  reply.status = static_cast<uint32_t>(CodeFor(lease.status()));
  reply.notices = state.notices();
  reply.server_version = options_.version;
  if (!lease.ok()) {
    MessageOf(lease.status()).copy(reply.reason, sizeof(reply.reason));
    return reply;
  }
  reply.lease = lease->id;
  reply.address = lease->remote_address;
  reply.bytes = lease->bytes;
  reply.milliseconds = MillisecondsLeft(*lease);
  reply.rkey = lease->rkey;
  reply.rights = RightsOf(lease->access);
  reply.lease_notices = state.NoticesIn(lease->id);
  return reply;
}

// ---------------------------------------------------------------- the end of a connection

void MemdService::OnEnd(Shard& shard, const Completion& completion) {
  Connection& connection = *completion.connection;
  BATON_CRASH_POINT("memd-end-begin");
  deadlines_.Set(&connection, 0);
  const absl::Status status = FreeAll(shard, connection);
  BATON_CRASH_POINT("memd-end-freed");
  spdlog::info("connection {} of {} ended: {}", connection.index(),
               std::string(connection.peer_address()), std::string(examples::EndText(completion)));
  // The next owner frees it when it adopts the shard.
  if (!status.ok()) {
    spdlog::error("connection {}: its memory is still leased: {}", connection.index(),
                  std::string(status.message()));
  }
}

absl::Status MemdService::FreeAll(Shard& shard, Connection& connection) {
  if (connection.state().empty()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(ConnectionState state, Load(connection));
  absl::Status status = state.leases().FreeAll();
  if (!absl::IsResourceExhausted(status)) return status;
  // The driver is behind, and the transaction has no room for all. No state will know the rest.
  const absl::Span<const Lease> rest = state.leases().all();
  std::vector<Lease>& unfreed = unfreed_[&shard];
  unfreed.insert(unfreed.end(), rest.begin(), rest.end());
  retry_ns_ = Leases::Now() + kRetryNs;
  SetTimer();
  return absl::OkStatus();
}

absl::Status MemdService::FreeOne(Shard& shard, const Lease& lease) {
  BATON_RETURN_IF_ERROR(HeapGrants::Revoke(shard, lease.memory(), lease.grant));
  BATON_RETURN_IF_ERROR(shard.heap().Free(lease.memory()));
  return shard.Commit();
}

void MemdService::FreeRest(uint64_t now_ns) {
  if (retry_ns_ == 0 || retry_ns_ > now_ns) return;
  retry_ns_ = 0;
  for (auto& [shard, leases] : unfreed_) {
    while (!leases.empty()) {
      const absl::Status status = FreeOne(*shard, leases.back());
      if (!status.ok()) shard->Abandon();
      if (absl::IsResourceExhausted(status)) {
        retry_ns_ = now_ns + kRetryNs;
        break;
      }
      if (!status.ok()) {
        spdlog::error("shard {}: {} bytes are left to the next owner: {}", shard->index(),
                      leases.back().bytes, std::string(status.message()));
      }
      leases.pop_back();
    }
  }
  absl::erase_if(unfreed_, [](const auto& entry) { return entry.second.empty(); });
}

void MemdService::Drop(Shard& shard, Connection& connection, const absl::Status& why) {
  spdlog::error("connection {} of {} is disconnected: {}", connection.index(),
                std::string(connection.peer_address()), std::string(why.message()));
  shard.Abandon();  // drops what was staged
  // Its leases are those of the committed state again. kDisconnected frees them.
  if (const absl::Status status = shard.Disconnect(connection); !status.ok()) {
    spdlog::error("connection {}: disconnecting failed: {}", connection.index(),
                  std::string(status.message()));
  }
  if (const absl::Status status = HeapGrants::RevokeLost(shard); !status.ok()) {
    spdlog::error("shard {}: grants that no state knows are left: {}", shard.index(),
                  std::string(status.message()));
  }
}

// ---------------------------------------------------------------- time

void MemdService::OnTimer() {
  uint64_t expirations = 0;
  (void)!read(timer_.get(), &expirations, sizeof(expirations));  // also in vain: it was set anew
  timer_end_ = 0;
  // One time for all, so that no connection comes twice.
  const uint64_t now = Leases::Now();
  FreeRest(now);
  for (int i = 0; i < kMostEndedAtOnce; ++i) {
    if (deadlines_.empty() || deadlines_.first_end() > now) break;
    Connection* const connection = deadlines_.first();
    const absl::Status status = FreeOverdue(*connection, now);
    if (status.ok()) continue;
    spdlog::warn("connection {}: leases that are over are still there: {}", connection->index(),
                 std::string(status.message()));
    // If it has ended, its kDisconnected frees them.
    const bool has_ended = absl::IsFailedPrecondition(status);
    deadlines_.Set(connection, has_ended ? 0 : now + kRetryNs);
  }
  SetTimer();
}

// In a transaction of its own: memory must not be free without the state that says so.
absl::Status MemdService::FreeOverdue(Connection& connection, uint64_t now_ns) {
  BATON_CRASH_POINT("memd-overdue-begin");
  BATON_ASSIGN_OR_RETURN(ConnectionState state, Load(connection));
  absl::Status freed = state.leases().FreeOverdue(now_ns);
  BATON_CRASH_POINT("memd-overdue-freed");
  Shard& shard = connection.shard();
  absl::Status saved = Save(connection, state);
  if (!saved.ok()) {
    shard.Abandon();
    return saved;
  }
  BATON_CRASH_POINT("memd-overdue-end");
  BATON_RETURN_IF_ERROR(shard.Commit());
  return freed;
}

void MemdService::SetTimer() {
  uint64_t end = deadlines_.empty() ? 0 : deadlines_.first_end();
  if (retry_ns_ != 0) end = end == 0 ? retry_ns_ : std::min(end, retry_ns_);
  if (end == timer_end_) return;
  itimerspec at = {};
  at.it_value.tv_sec = static_cast<time_t>(end / 1'000'000'000);
  at.it_value.tv_nsec = static_cast<long>(end % 1'000'000'000);
  if (timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr) != 0) {
    spdlog::error("the timer cannot be set: {}", std::strerror(errno));
    return;
  }
  timer_end_ = end;
}

}  // namespace baton::memd
