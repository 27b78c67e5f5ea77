#include "worker/keeper_session.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/holdable.h"
#include "lib/base/random_bytes.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "lib/channel/carried_status.h"

namespace baton {
namespace {

constexpr uint64_t kMillisecondNs = 1'000'000;
// How often a caller that must not block looks whether another thread's request is over.
constexpr int kOtherReplyMs = 1;
constexpr int kResumptionLookMs = 5;
constexpr int kDetachAgainMs = 20;
constexpr size_t kAttemptBytes = 16;
// Attach gives up after as many deaths: keepers may be dying of its request.
constexpr int kMostDeaths = 3;

absl::Status KeeperIsOlder(std::string_view without) {
  return absl::UnimplementedError(
      absl::StrCat("the keeper of this service is of a release without ", View(without),
                   ": replace it (`baton upgrade --baton`)"));
}

// A keeper that does not know a request about descriptors is older. One that does may say that the
// driver is.
absl::Status KnownToKeeper(const absl::Status& status) {
  const bool is_unknown = absl::IsUnimplemented(status) &&
                          absl::StrContains(status.message(), "this keeper does not know");
  return is_unknown ? KeeperIsOlder("held descriptors") : status;
}

absl::Status NoKeeperYet() {
  return absl::UnavailableError("the keeper is gone, and another has not followed yet");
}

// Returns false for a region's.
bool IsGrant(const internal::WorkerRequest& request) {
  return request.has_grant() && request.grant().memfd() == 0;
}

// Returns a grant's number, or arena::GrantOfRegion() of a region's. Returns nothing for a number
// that no grant and no region has.
template <typename Named>  // internal::Granted, internal::RevokeRequest
std::optional<uint32_t> PlaceOf(const Named& named) {
  if (named.region() > arena::kRegions) return std::nullopt;
  if (named.region() != 0) return arena::GrantOfRegion(named.region());
  if (named.grant() >= arena::kGrants) return std::nullopt;
  return named.grant();
}

}  // namespace

absl::StatusOr<FileDescriptor> KeeperSession::Reach(const std::string& socket,
                                                    const std::string& service) {
  auto connected = ConnectUnix(socket);
  if (connected.ok()) return connected;
  return absl::Status(connected.status().code(),
                      absl::StrCat(connected.status().message(), ": is batond running, and is ",
                                   socket, " the socket of service ", service, "?"));
}

absl::StatusOr<internal::WorkerReply> KeeperSession::Ask(const internal::WorkerRequest& request,
                                                         const Wait& wait,
                                                         std::vector<FileDescriptor>* received,
                                                         int sent) {
  if (getpid() != process_) {
    return absl::FailedPreconditionError(
        "this process was forked by the one that attached, and has no part in its session: attach "
        "in the process that is to serve");
  }
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (!wait) lock.lock();
  while (!lock.owns_lock() && !lock.try_lock()) wait({-1, 0, 0}, kOtherReplyMs);
  deadline_ns_ = MonotonicNanoseconds() + ReplyTimeoutNs();
  if (tie_ == Tie::kUp) {
    TakeLateReplies();
    RevokeUnwanted();
  }
  internal::WorkerRequest numbered = request;
  numbered.set_number(++last_number_);
  for (;;) {
    if (tie_ == Tie::kUp || !resumable()) {
      absl::StatusOr<internal::WorkerReply> reply = AskOnce(numbered, wait, received, sent);
      if (tie_ == Tie::kUp || !resumable()) return reply;
    }
    // The control stream's thread asks again by itself.
    absl::Status resumed = wait ? AwaitResumption(wait) : NoKeeperYet();
    if (!resumed.ok()) return Postpone(numbered, std::move(resumed));
  }
}

absl::StatusOr<internal::WorkerReply> KeeperSession::AskOnce(
    const internal::WorkerRequest& request, const Wait& wait,
    std::vector<FileDescriptor>* received_descriptors, int passed) {
  // It is due if a resumption has sent it again.
  if (!IsDue(request.number())) BATON_RETURN_IF_ERROR(SendOnce(request, wait, passed));
  internal::WorkerReply reply;
  BATON_RETURN_IF_ERROR(AwaitReplies(wait, request.number(), &reply, received_descriptors));
  BATON_RETURN_IF_ERROR(StatusIn(reply));
  return reply;
}

// A driver knows again the last request of a worker alone, so a request that may be sent again is
// the last one until it is answered. The keeper kills the process of a worker that leaves without a
// word, so a worker says farewell also to a keeper that does not answer.
absl::Status KeeperSession::SendOnce(const internal::WorkerRequest& request, const Wait& wait,
                                     int passed) {
  // A keeper that takes no descriptor would close the session.
  if (passed >= 0 && !takes_descriptors_) return KeeperIsOlder("held descriptors");
  if (!request.has_detach()) {
    if (is_silent_ && !due_.empty()) {
      return Postpone(request, absl::UnavailableError(
                                   "the keeper has not answered an earlier request, because it is "
                                   "stopped or busy, and was not asked again: try again later"));
    }
    internal::WorkerReply reply;
    absl::Status answered = AwaitReplies(wait, /*number=*/0, &reply, nullptr);
    if (!answered.ok()) return Postpone(request, std::move(answered));
  }
  const std::vector<int> with = passed >= 0 ? std::vector<int>{passed} : std::vector<int>();
  // The rest of a request that is not sent at once is sent while the reply is awaited.
  absl::Status sent = channel_.Send(request, with, wait ? 0 : LeftMs());
  if (absl::IsUnavailable(sent)) tie_ = Tie::kLost;
  if (!sent.ok() && !absl::IsDeadlineExceeded(sent)) return sent;
  due_.push_back(request);  // also one that is still on its way
  if (IsGrant(request)) in_doubt_.Set(request.grant().offset(), request.grant().length());
  if (wait || sent.ok()) return absl::OkStatus();
  is_silent_ = true;
  return sent;
}

// Waits for everything that is due. `last` receives the last reply. `number`: the caller's request,
// which is the last; 0: the caller has none.
absl::Status KeeperSession::AwaitReplies(const Wait& wait, uint64_t number,
                                         internal::WorkerReply* last,
                                         std::vector<FileDescriptor>* descriptors) {
  while (!due_.empty()) {
    const absl::Status received = Receive(last, wait, descriptors);
    if (absl::IsUnavailable(received)) tie_ = Tie::kLost;
    if (absl::IsDeadlineExceeded(received)) is_silent_ = true;
    BATON_RETURN_IF_ERROR(received);
    TakeReply(*last, number);
  }
  return absl::OkStatus();
}

// Notes what has become of the oldest request that is due. Replies come in order.
void KeeperSession::TakeReply(const internal::WorkerReply& reply, uint64_t awaited) {
  const internal::WorkerRequest request = std::move(due_.front());
  due_.pop_front();
  if (due_.empty()) is_silent_ = false;
  takes_descriptors_ = reply.takes_descriptors();
  const bool is_begun = begun_ && begun_->number == request.number();
  if (is_begun) {
    const absl::Status status = StatusIn(reply);
    begun_->reply = status.ok() ? Reply(reply) : Reply(status);
  }
  if (request.has_hold_descriptor() && !is_begun && request.number() != awaited &&
      StatusIn(reply).ok()) {
    unwanted_descriptor_ = reply.held().number();
  }
  if (request.has_revoke()) {
    if (const auto place = PlaceOf(request.revoke())) unwanted_.reset(*place);
  }
  if (!request.has_grant()) return;
  const internal::Granted& granted = reply.granted();
  const bool is_late = request.number() != awaited && StatusIn(reply).ok();
  const auto place = PlaceOf(granted);
  if (is_late && place && IsGrant(request) == (granted.region() == 0)) unwanted_.set(*place);
  if (IsGrant(request)) in_doubt_.Clear();
}

void KeeperSession::Settle() {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  if (tie_ == Tie::kUp) {
    TakeLateReplies();
    RevokeUnwanted();
  }
  EndBegun();
  if (!begun_ || !begun_->reply) return;
  const Begun ended = *std::exchange(begun_, std::nullopt);
  lock.unlock();
  ended.done(*ended.reply);
}

// One that cannot be answered any more, or is not in time, ends all the same. The keeper may have
// executed it.
void KeeperSession::EndBegun() {
  if (!begun_ || begun_->reply) return;
  const bool is_lost = !IsDue(begun_->number) || (tie_ != Tie::kUp && !resumable()) || !over_.ok();
  if (is_lost) {
    begun_->reply = absl::UnavailableError("the keeper was gone before it answered");
  } else if (MonotonicNanoseconds() >= begun_->deadline_ns) {
    is_silent_ = true;
    begun_->reply =
        absl::DeadlineExceededError("the keeper has not answered, because it is stopped or busy");
  }
}

// A request that is due is always the last one (SendOnce), so it is refused beside another.
absl::Status KeeperSession::Begin(internal::WorkerRequest request, int passed,
                                  std::function<void(const Reply&)> done) {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (lock.owns_lock() && tie_ == Tie::kUp && !begun_) {
    TakeLateReplies();
    RevokeUnwanted();
  }
  if (!lock.owns_lock() || tie_ != Tie::kUp || begun_ || !due_.empty()) {
    return absl::UnavailableError(
        "the keeper is gone, or has another request to answer first: try again soon");
  }
  request.set_number(++last_number_);
  const std::vector<int> with = passed >= 0 ? std::vector<int>{passed} : std::vector<int>();
  absl::Status sent = channel_.Send(request, with, 0);
  if (absl::IsUnavailable(sent)) tie_ = Tie::kLost;
  if (!sent.ok() && !absl::IsDeadlineExceeded(sent)) return sent;
  begun_ = Begun{request.number(), MonotonicNanoseconds() + ReplyTimeoutNs(), std::move(done)};
  due_.push_back(std::move(request));
  return absl::OkStatus();
}

void KeeperSession::TakeLateReplies() {
  while (!due_.empty()) {
    internal::WorkerReply reply;
    const absl::Status received = channel_.Receive(&reply, 0);
    if (absl::IsUnavailable(received)) tie_ = Tie::kLost;
    if (!received.ok()) return;
    TakeReply(reply, /*awaited=*/0);
  }
}

// Nobody waits for the replies. What cannot be sent now is sent by a later call.
void KeeperSession::RevokeUnwanted() {
  if (!due_.empty() || tie_ != Tie::kUp) return;
  if (unwanted_descriptor_ != 0) {
    internal::WorkerRequest request;
    request.mutable_drop_descriptor()->set_number(unwanted_descriptor_);
    if (!SendUnawaited(std::move(request))) return;
    unwanted_descriptor_ = 0;
  }
  // A worker settles in one of many turns, and nothing is unwanted in nearly all of them.
  if (unwanted_.none()) return;
  for (uint32_t place = 0; place < unwanted_.size(); ++place) {
    if (!unwanted_.test(place)) continue;
    internal::WorkerRequest request;
    if (const uint32_t region = arena::RegionOfGrant(place); region != 0) {
      request.mutable_revoke()->set_region(region);
    } else {
      request.mutable_revoke()->set_grant(place);
    }
    if (!SendUnawaited(std::move(request))) return;
  }
}

// Returns false if it cannot be sent.
bool KeeperSession::SendUnawaited(internal::WorkerRequest request) {
  request.set_number(++last_number_);
  const absl::Status sent = channel_.Send(request, {}, 0);
  if (!sent.ok() && !absl::IsDeadlineExceeded(sent)) return false;
  due_.push_back(std::move(request));
  return true;
}

// Returns `why`. A grant that was not revoked therefore is revoked when the keeper answers. A
// region is not: another may have its number by then.
absl::Status KeeperSession::Postpone(const internal::WorkerRequest& request, absl::Status why) {
  if (!request.has_revoke() || request.revoke().region() != 0 || IsDue(request.number())) {
    return why;
  }
  if (const auto place = PlaceOf(request.revoke())) unwanted_.set(*place);
  return why;
}

// ---------------------------------------------------------------- the next keeper

void KeeperSession::KeepResumable(const std::string& socket, const internal::Attached& attached) {
  if (socket.empty()) return;
  socket_ = socket;
  key_ = attached.session_key();
  worker_id_ = attached.worker_id();
}

absl::StatusOr<bool> KeeperSession::Resume() {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  // No request has failed on the socket that the caller saw close. If the socket is open, a request
  // has resumed the session meanwhile.
  if (tie_ == Tie::kUp) {
    pollfd socket = {channel_.fd(), POLLRDHUP, 0};
    if (poll(&socket, 1, 0) != 1) return true;
    tie_ = Tie::kLost;
  }
  return ResumeLocked();
}

absl::StatusOr<bool> KeeperSession::ResumeLocked() {
  BATON_RETURN_IF_ERROR(over_);
  // The socket is there whether a keeper runs or not, except at the moment when a keeper is
  // replaced.
  if (tie_ == Tie::kLost && !AskForSession(socket_).ok()) return false;
  internal::WorkerReply reply;
  const absl::Status received = channel_.Receive(&reply, 0);
  if (absl::IsDeadlineExceeded(received)) return false;
  if (!received.ok()) {
    tie_ = Tie::kLost;
    return false;
  }
  over_ = StatusIn(reply);
  BATON_RETURN_IF_ERROR(over_);
  takes_descriptors_ = reply.takes_descriptors();
  tie_ = Tie::kUp;
  is_silent_ = false;
  if (SendAgain().ok()) return true;
  tie_ = Tie::kLost;
  return false;
}

// Sends again what is due about memory, so that the session learns what has become of it. Callers
// send other requests again themselves, or have given them up.
absl::Status KeeperSession::SendAgain() {
  std::erase_if(due_, [](const internal::WorkerRequest& request) {
    return !request.has_grant() && !request.has_revoke();
  });
  for (const internal::WorkerRequest& request : due_) {
    const absl::Status sent = channel_.Send(request, {}, 0);
    if (!absl::IsDeadlineExceeded(sent)) BATON_RETURN_IF_ERROR(sent);
  }
  return absl::OkStatus();
}

absl::Status KeeperSession::AskForSession(const std::string& socket) {
  BATON_ASSIGN_OR_RETURN(FileDescriptor connected, ConnectUnix(socket, /*timeout_ms=*/0));
  channel_ = MessageChannel(std::move(connected));
  sockets_used_.fetch_add(1, std::memory_order_relaxed);
  internal::WorkerRequest request;
  request.mutable_resume()->set_worker_id(worker_id_);
  request.mutable_resume()->set_session_key(key_);
  BATON_RETURN_IF_ERROR(channel_.Enqueue(request));
  tie_ = Tie::kAsked;
  return absl::OkStatus();
}

// A keeper for which another request has waited in vain is not waited for again.
absl::Status KeeperSession::AwaitResumption(const Wait& wait) {
  for (;;) {
    BATON_ASSIGN_OR_RETURN(const bool resumed, ResumeLocked());
    if (resumed) return absl::OkStatus();
    if (is_silent_ || LeftMs() == 0) {
      is_silent_ = true;
      return NoKeeperYet();
    }
    wait({-1, 0, 0}, kResumptionLookMs);
  }
}

absl::Status KeeperSession::Receive(internal::WorkerReply* reply, const Wait& wait,
                                    std::vector<FileDescriptor>* descriptors) {
  if (!wait) return channel_.Receive(reply, LeftMs(), descriptors);
  for (;;) {
    absl::Status received = channel_.Receive(reply, 0, descriptors);
    const int left_ms = LeftMs();
    if (!absl::IsDeadlineExceeded(received) || left_ms == 0) return received;
    const short events = channel_.pending() ? POLLIN | POLLOUT : POLLIN;
    wait({channel_.fd(), events, 0}, left_ms);
  }
}

int KeeperSession::LeftMs() const {
  const uint64_t now = MonotonicNanoseconds();
  return now >= deadline_ns_ ? 0 : static_cast<int>((deadline_ns_ - now) / kMillisecondNs + 1);
}

absl::StatusOr<internal::Attached> KeeperSession::Attach(const WorkerOptions& options,
                                                         uint32_t layout_version,
                                                         const std::string& socket,
                                                         std::vector<FileDescriptor>* descriptors) {
  internal::WorkerRequest request;
  internal::AttachArena* attach = request.mutable_attach();
  attach->set_protocol_version(kProtocolVersion);
  attach->set_layout_version(layout_version);
  attach->set_name(options.name.empty() ? program_invocation_short_name : options.name);
  attach->set_version(options.version);
  attach->set_library_release(kRelease);
  attach->set_resumes_session(true);
  attach->set_service(options.service);
  attach->set_reads_state_version_min(options.reads_state_version_min);
  attach->set_reads_state_version_max(options.reads_state_version_max);
  attach->set_writes_state_version(options.writes_state_version);
  attach->set_attempt(RandomBytes(kAttemptBytes));
  for (int deaths = 0;;) {
    const absl::StatusOr<internal::WorkerReply> reply = Ask(request, {}, descriptors);
    if (reply.ok()) return reply->attached();
    if (tie_ == Tie::kUp || socket.empty() || ++deaths == kMostDeaths) return reply.status();
    BATON_RETURN_IF_ERROR(UseNextKeeper(socket));
  }
}

// The driver listens on `socket` while no keeper lives, so this seldom waits.
absl::Status KeeperSession::UseNextKeeper(const std::string& socket) {
  const uint64_t deadline = MonotonicNanoseconds() + ReplyTimeoutNs();
  for (;;) {
    absl::StatusOr<FileDescriptor> connected = ConnectUnix(socket, /*timeout_ms=*/0);
    if (connected.ok()) {
      channel_ = MessageChannel(*std::move(connected));
      due_.clear();
      tie_ = Tie::kUp;
      return absl::OkStatus();
    }
    const bool may_pass =
        absl::IsUnavailable(connected.status()) || absl::IsNotFound(connected.status());
    if (!may_pass || MonotonicNanoseconds() >= deadline) return connected.status();
    poll(nullptr, 0, kResumptionLookMs);
  }
}

absl::Status KeeperSession::SetReady() {
  internal::WorkerRequest request;
  request.mutable_set_ready();
  return Ask(request, wait_).status();
}

absl::Status KeeperSession::TakeOver(absl::Span<const uint32_t> shards) {
  internal::WorkerRequest request;
  request.mutable_take_over()->mutable_shards()->Add(shards.begin(), shards.end());
  absl::Status begun = Ask(request, wait_).status();
  if (!absl::IsUnimplemented(begun)) return begun;
  return absl::UnimplementedError(
      absl::StrCat(KeeperIsOlder("take-overs").message(),
                   ", or upgrade with `baton upgrade --exec` or `baton handoff`"));
}

bool KeeperSession::IsUp() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return tie_ == Tie::kUp;
}

absl::Status KeeperSession::Detach() {
  internal::WorkerRequest request;
  request.mutable_detach();
  const uint64_t deadline_ns = MonotonicNanoseconds() + ReplyTimeoutNs();
  for (;;) {
    absl::Status detached = Ask(request).status();
    const bool later = absl::IsUnavailable(detached) && IsUp();
    if (!later || MonotonicNanoseconds() >= deadline_ns) return detached;
    poll(nullptr, 0, kDetachAgainMs);
  }
}

absl::StatusOr<std::string> KeeperSession::NewToken() {
  internal::WorkerRequest request;
  request.mutable_new_token();
  BATON_ASSIGN_OR_RETURN(const internal::WorkerReply reply, Ask(request));
  return reply.token().token();
}

absl::StatusOr<uint16_t> KeeperSession::Listen(const std::string& host, uint16_t port) {
  internal::WorkerRequest request;
  request.mutable_listen()->set_host(host);
  request.mutable_listen()->set_port(port);
  BATON_ASSIGN_OR_RETURN(const internal::WorkerReply reply, Ask(request, wait_));
  return static_cast<uint16_t>(reply.listening().port());
}

absl::StatusOr<internal::Connecting> KeeperSession::Connect(uint32_t shard, const std::string& host,
                                                            uint16_t port,
                                                            std::string_view private_data,
                                                            uint64_t tag) {
  internal::WorkerRequest request;
  internal::ConnectRequest* connect = request.mutable_connect();
  connect->set_host(host);
  connect->set_port(port);
  connect->set_shard(shard);
  connect->set_private_data(std::string(private_data));
  connect->set_tag(tag);
  BATON_ASSIGN_OR_RETURN(const internal::WorkerReply reply, Ask(request, wait_));
  return reply.connecting();
}

absl::StatusOr<Worker::Grant> KeeperSession::Grant(uint64_t offset, uint64_t length,
                                                   uint32_t access, uint64_t descriptor) {
  internal::WorkerRequest request;
  internal::GrantRequest* grant = request.mutable_grant();
  grant->set_offset(offset);
  grant->set_length(length);
  grant->set_remote_read((access & verbs::kRemoteRead) != 0);
  grant->set_remote_write((access & verbs::kRemoteWrite) != 0);
  grant->set_remote_atomic((access & verbs::kRemoteAtomic) != 0);
  grant->set_memfd(descriptor);
  BATON_ASSIGN_OR_RETURN(const internal::WorkerReply reply, Ask(request, wait_));
  const internal::Granted& granted = reply.granted();
  return Worker::Grant{descriptor != 0 ? granted.region() : granted.grant(), granted.rkey(),
                       granted.remote_address()};
}

absl::Status KeeperSession::Revoke(uint32_t grant) {
  internal::WorkerRequest request;
  request.mutable_revoke()->set_grant(grant);
  return Ask(request, wait_).status();
}

absl::Status KeeperSession::RevokeRegion(uint32_t region) {
  internal::WorkerRequest request;
  request.mutable_revoke()->set_region(region);
  return Ask(request, wait_).status();
}

// ---------------------------------------------------------------- held descriptors

// Before Linux 6.5 the keeper takes a descriptor only after it has seen a request of this process.
absl::Status KeeperSession::CheckPassable(int fd, uint64_t tag) {
  if (fd < 0) return absl::InvalidArgumentError(absl::StrCat("fd: ", fd, " is none"));
  // The keeper checks it again. But it would have to close what it refuses.
  BATON_RETURN_IF_ERROR(CheckHoldable(fd, process_));
  if (!takes_descriptors_) BATON_RETURN_IF_ERROR(HeldDescriptors(tag).status());
  return takes_descriptors_ ? absl::OkStatus() : KeeperIsOlder("held descriptors");
}

absl::StatusOr<uint64_t> KeeperSession::HoldDescriptor(int fd, uint64_t tag) {
  BATON_RETURN_IF_ERROR(CheckPassable(fd, tag));
  internal::WorkerRequest request;
  request.mutable_hold_descriptor()->set_tag(tag);
  BATON_ASSIGN_OR_RETURN(const internal::WorkerReply reply, Ask(request, wait_, nullptr, fd));
  return reply.held().number();
}

absl::Status KeeperSession::BeginHoldDescriptor(
    int fd, uint64_t tag, std::function<void(absl::StatusOr<uint64_t>)> done) {
  BATON_RETURN_IF_ERROR(CheckPassable(fd, tag));
  internal::WorkerRequest request;
  request.mutable_hold_descriptor()->set_tag(tag);
  return Begin(std::move(request), fd, [done = std::move(done)](const Reply& reply) {
    done(reply.ok() ? absl::StatusOr<uint64_t>(reply->held().number()) : reply.status());
  });
}

absl::StatusOr<int> KeeperSession::TakeDescriptor(uint64_t number) {
  internal::WorkerRequest request;
  request.mutable_take_descriptor()->set_number(number);
  std::vector<FileDescriptor> received;
  BATON_RETURN_IF_ERROR(KnownToKeeper(Ask(request, wait_, &received).status()));
  if (received.size() == 1) return received.front().Release();
  return absl::ResourceExhaustedError("the descriptor has not arrived: raise RLIMIT_NOFILE");
}

absl::Status KeeperSession::DropDescriptor(uint64_t number) {
  internal::WorkerRequest request;
  request.mutable_drop_descriptor()->set_number(number);
  return KnownToKeeper(Ask(request, wait_).status());
}

absl::Status KeeperSession::BeginDropDescriptor(uint64_t number,
                                                std::function<void(absl::Status)> done) {
  internal::WorkerRequest request;
  request.mutable_drop_descriptor()->set_number(number);
  return Begin(std::move(request), /*passed=*/-1, [done = std::move(done)](const Reply& reply) {
    done(KnownToKeeper(reply.status()));
  });
}

absl::StatusOr<std::vector<uint64_t>> KeeperSession::HeldDescriptors(uint64_t tag) {
  internal::WorkerRequest request;
  request.mutable_list_descriptors()->set_tag(tag);
  const absl::StatusOr<internal::WorkerReply> reply = Ask(request, wait_);
  BATON_RETURN_IF_ERROR(KnownToKeeper(reply.status()));
  const auto& numbers = reply->all_held().numbers();
  return std::vector<uint64_t>(numbers.begin(), numbers.end());
}

}  // namespace baton
