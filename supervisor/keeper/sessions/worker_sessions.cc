#include "supervisor/keeper/sessions/worker_sessions.h"

#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/random_bytes.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "lib/channel/carried_status.h"
#include "lib/channel/message_channel.h"
#include "lib/channel/waits.h"
#include "lib/text/text.h"
#include "supervisor/config/state_files.h"
#include "supervisor/driver/engine/death_watcher.h"
#include "supervisor/keeper/sessions/attach_check.h"

namespace baton::keeper {
namespace {

constexpr FramedSocket::Limits kSocketLimits = {.frame_bytes = 64 << 10, .text_bytes = 16 << 10};
// The most clients of the socket that have not attached. Anybody may connect.
constexpr size_t kMaxStrangers = 64;
constexpr size_t kMaxReleaseBytes = 32;
constexpr size_t kSessionKeyBytes = 16;
// How long workers have to resume their sessions with the next keeper. They look for it every few
// milliseconds, unless they are stopped.
constexpr std::chrono::seconds kResumptionTimeout(10);
// A worker looks for the next keeper at least once in this many polls, each of which is a beat. A
// worker that has polled less is busy, or stopped. The policy's on_hang says what becomes of it.
constexpr uint64_t kBeatsToResume = 1 << 17;
// Keys of what is held for the next keeper.
constexpr char kHeldWorkers[] = "lasting/worker/";
constexpr char kHeldLastId[] = "lasting/last_worker_id";
// The first layout version whose workers look at DriverMemoryHeader::stop_requested.
constexpr uint32_t kStopRequestLayoutVersion = 2;

using Change = internal::ChangeWorker;

internal::AddWorker EntryOf(const WorkerSession& session, Standing standing) {
  internal::AddWorker worker;
  worker.set_slot(session.slot);
  worker.set_id(session.id);
  worker.set_pid(session.peer.pid);
  worker.set_reads_state_version_min(session.attached_with.reads_state_version_min());
  worker.set_reads_state_version_max(session.attached_with.reads_state_version_max());
  worker.set_writes_state_version(session.attached_with.writes_state_version());
  worker.set_standing(standing == Standing::kFirst ? internal::STANDING_FIRST
                                                   : internal::STANDING_LAST);
  return worker;
}

}  // namespace

WorkerSessions::WorkerSessions(boost::asio::io_context& loop, const internal::KeeperConfig& config,
                               DriverClient& driver, Policies& policies, EventLog& events)
    : loop_(loop),
      config_(config),
      arena_(driver.arena()),
      driver_(driver),
      events_(events),
      lock_holders_(loop, config.launcher(), arena_),
      resumption_timer_(loop),
      slots_(arena_.shape().workers),
      reserved_(arena_.shape().workers, 0),
      hang_watch_(
          loop, config, driver, policies, events, slots_,
          [this](uint64_t worker_id, std::string_view cause) { (void)Kill(worker_id, cause); }) {}

void WorkerSessions::Accept(FileDescriptor socket) {
  const auto peer = GetPeerCredentials(socket.get());
  if (!peer.ok()) return;
  auto connector = GetPeerProcess(socket.get());
  if (!connector.ok()) return;
  auto session = std::make_shared<WorkerSession>(loop_);
  session->peer = *peer;
  session->process.assign(connector->pidfd.Release());
  session->process_certain = connector->certain;
  session->distrusted = config_.distrust_contained_root() && IsPeerContained(socket.get());
  std::erase_if(strangers_, [](const auto& stranger) {
    const SessionPtr waiting = stranger.lock();
    return !waiting || waiting->attached;
  });
  if (strangers_.size() >= kMaxStrangers) {
    // Closes the oldest, which has had the most time.
    if (const auto oldest = strangers_.front().lock()->socket.lock()) oldest->Close();
    strangers_.pop_front();
  }
  strangers_.push_back(session);
  const std::shared_ptr<FramedSocket> framed = Start(session, std::move(socket));
  if (!session->process_certain && !framed->channel().AwaitSender(peer->pid).ok()) framed->Close();
}

void WorkerSessions::AcceptChild(FileDescriptor socket, const PeerCredentials& peer,
                                 FileDescriptor pidfd, const internal::WorkerPlace& place) {
  auto session = std::make_shared<WorkerSession>(loop_);
  reserved_[place.slot()] = place.id();
  last_id_ = std::max(last_id_, place.id());
  session->peer = peer;
  session->id = place.id();
  session->slot = place.slot();
  session->process.assign(pidfd.Release());
  session->process_certain = true;
  WatchProcess(session);
  Start(session, std::move(socket));
}

std::shared_ptr<FramedSocket> WorkerSessions::Start(const SessionPtr& session,
                                                    FileDescriptor socket) {
  auto framed = std::make_shared<FramedSocket>(loop_, std::move(socket), kSocketLimits);
  session->socket = framed;
  framed->Start([this, session] { return OnFrame(session); },
                [this, session](const absl::Status& why) { OnClosed(session, why); });
  return framed;
}

absl::StatusOr<bool> WorkerSessions::OnFrame(const SessionPtr& session) {
  const std::shared_ptr<FramedSocket> socket = session->socket.lock();
  if (!socket) return false;
  internal::WorkerRequest request;
  BATON_ASSIGN_OR_RETURN(const bool whole, socket->channel().NextFrame(&request));
  if (!whole) return false;
  if (!session->process_certain && socket->channel().sender_seen() && !session->IsProcessDead()) {
    session->process_certain = true;
    if (session->attached) Hold(*session);
  }
  const bool served = session->attached && session->process_certain;
  if (served && request.has_grant()) {
    Grant(session, socket, request);
    return true;
  }
  if (served && request.has_revoke()) {
    Revoke(session, socket, request);
    return true;
  }
  std::vector<int> descriptors;
  FileDescriptor keep;  // open until the frame, which carries a duplicate, is queued
  const internal::WorkerReply reply = Handle(session, request, &descriptors, &keep);
  socket->Send(reply, descriptors);
  if (session->detached) return absl::UnavailableError("detached");
  return true;
}

internal::WorkerReply WorkerSessions::Handle(const SessionPtr& session,
                                             const internal::WorkerRequest& request,
                                             std::vector<int>* descriptors, FileDescriptor* keep) {
  using internal::WorkerRequest;
  internal::WorkerReply reply;
  absl::Status status;
  const bool begins = request.has_attach() || request.has_resume();
  if (session->attached == begins) {
    status = absl::FailedPreconditionError("attach comes first, and once");
  } else if (session->attached && !session->process_certain && !request.has_detach()) {
    status = absl::FailedPreconditionError(absl::StrCat(
        "process ", session->peer.pid,
        ", which connected, has to send this itself, after the reply to its attaching: "
        "attach anew"));
  } else {
    switch (request.request_case()) {
      case WorkerRequest::kAttach:
        status = Attach(session, request.attach(), reply.mutable_attached(), descriptors, keep);
        break;
      case WorkerRequest::kResume:
        status = ResumeSession(session, request.resume());
        break;
      case WorkerRequest::kSetReady:
        status = SetReady(session);
        break;
      case WorkerRequest::kListen:
        status =
            Listen({session->id, request.number()}, request.listen(), reply.mutable_listening());
        break;
      case WorkerRequest::kConnect:
        status =
            Connect({session->id, request.number()}, request.connect(), reply.mutable_connecting());
        break;
      case WorkerRequest::kNewToken:
        reply.mutable_token()->set_token(tokens_.New(session->id));
        break;
      case WorkerRequest::kDetach:
        status = Detach(session);
        break;
      default:
        status = absl::UnimplementedError("a request this keeper does not know");
    }
  }
  if (!status.ok()) {
    reply.Clear();
    descriptors->clear();
  }
  SetStatus(status, &reply);
  return reply;
}

// ---------------------------------------------------------------- listeners, connections, grants

absl::Status WorkerSessions::Listen(const DriverClient::Asker& asker,
                                    const internal::ListenRequest& request,
                                    internal::Listening* listening) {
  if (request.port() > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("port: ", request.port(), ", at most 65535"));
  }
  const verbs::Address asked = {request.host(), static_cast<uint16_t>(request.port())};
  BATON_ASSIGN_OR_RETURN(*listening,
                         driver_.ListenFor(asker, asked, config_.service().max_listeners()));
  return absl::OkStatus();
}

absl::Status WorkerSessions::Connect(const DriverClient::Asker& asker,
                                     const internal::ConnectRequest& request,
                                     internal::Connecting* connecting) {
  if (request.shard() >= arena_.shape().shards || request.port() > 65535) {
    return absl::InvalidArgumentError("shard, port: out of range");
  }
  BATON_ASSIGN_OR_RETURN(*connecting, driver_.ConnectFor(asker, request));
  return absl::OkStatus();
}

void WorkerSessions::Grant(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
                           const internal::WorkerRequest& request) {
  socket->Pause();
  const auto done = [this, session, socket](const absl::StatusOr<internal::Granted>& granted) {
    // Revokes the grant of a worker that is gone, because nobody else could.
    if (granted.ok() && !HasPlace(*session)) {
      return driver_.Revoke({}, granted->grant(), [](const absl::Status&) {});
    }
    internal::WorkerReply reply;
    if (granted.ok()) *reply.mutable_granted() = *granted;
    Answer(session, socket, granted.status(), std::move(reply));
  };
  const absl::Status asked =
      driver_.GrantFor({session->id, request.number()}, request.grant(), done);
  if (!asked.ok()) boost::asio::post(loop_, [asked, done] { done(asked); });
}

void WorkerSessions::Revoke(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
                            const internal::WorkerRequest& request) {
  socket->Pause();
  driver_.Revoke({session->id, request.number()}, request.revoke().grant(),
                 [this, session, socket](const absl::Status& revoked) {
                   Answer(session, socket, revoked, internal::WorkerReply());
                 });
}

void WorkerSessions::Answer(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
                            const absl::Status& status, internal::WorkerReply reply) {
  if (!HasPlace(*session)) return;
  SetStatus(status, &reply);
  socket->Send(reply);
  socket->Resume();
}

// ---------------------------------------------------------------- places

absl::StatusOr<uint32_t> WorkerSessions::FreeSlot() const {
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (IsFree(slot)) return slot;
  }
  return absl::ResourceExhaustedError(absl::StrCat("all ", slots_.size(),
                                                   " workers of the service are attached: raise "
                                                   "max_workers"));
}

uint32_t WorkerSessions::free_slots() const {
  uint32_t count = 0;
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) count += IsFree(slot);
  return count;
}

// Holds the number before it is used, so that no later keeper gives it to another worker.
uint64_t WorkerSessions::NewId() {
  driver_.Hold(kHeldLastId, absl::StrCat(++last_id_));
  return last_id_;
}

absl::StatusOr<internal::WorkerPlace> WorkerSessions::Reserve() {
  BATON_ASSIGN_OR_RETURN(const uint32_t slot, FreeSlot());
  reserved_[slot] = NewId();
  return PlaceOf(slot, reserved_[slot]);
}

void WorkerSessions::FreePlace(const internal::WorkerPlace& place) {
  if (reserved_[place.slot()] == place.id()) reserved_[place.slot()] = 0;
}

bool WorkerSessions::HasPlace(const WorkerSession& session) const {
  if (session.attached) return slots_[session.slot].get() == &session;
  return session.id != 0 && reserved_[session.slot] == session.id;
}

void WorkerSessions::LeavePlace(const SessionPtr& session) {
  driver_.ChangeWorker(session->slot, session->id, Change::PLACE_LEFT);
  if (session->attached) driver_.Drop(absl::StrCat(kHeldWorkers, session->slot));
  slots_[session->slot] = nullptr;
  reserved_[session->slot] = 0;
  session->process.close();
  tokens_.Forget(session->id);
}

// ---------------------------------------------------------------- attaching

// Returns the session of a worker whose keeper died between holding the session and answering.
WorkerSessions::SessionPtr WorkerSessions::FindUnanswered(
    const WorkerSession& session, const internal::AttachArena& attach) const {
  if (attach.attempt().empty()) return nullptr;
  for (const SessionPtr& other : slots_) {
    if (other && other->awaits_resumption && other->peer.pid == session.peer.pid &&
        other->peer.uid == session.peer.uid && other->attached_with.attempt() == attach.attempt()) {
      return other;
    }
  }
  return nullptr;
}

absl::Status WorkerSessions::Attach(const SessionPtr& session, const internal::AttachArena& attach,
                                    internal::Attached* attached, std::vector<int>* descriptors,
                                    FileDescriptor* keep) {
  const bool is_child = session->id != 0;
  BATON_RETURN_IF_ERROR(CheckAttach(config_.service(), arena_.header().oldest_reader,
                                    {session->peer, is_child, session->distrusted}, attach));
  const SessionPtr unanswered = FindUnanswered(*session, attach);
  if (unanswered) {
    session->slot = unanswered->slot;
  } else if (!is_child) {
    BATON_ASSIGN_OR_RETURN(session->slot, FreeSlot());
  }
  // A dead process cannot be watched or killed, though another may hold its socket.
  if (session->IsProcessDead()) {
    return absl::FailedPreconditionError(
        absl::StrCat("process ", session->peer.pid, ", which connected, is dead"));
  }
  BATON_ASSIGN_OR_RETURN(SocketPair wake, MakeSocketPair(SOCK_STREAM | SOCK_NONBLOCK));
  if (!is_child) {
    session->id = unanswered ? unanswered->id : NewId();
    WatchProcess(session);
  }
  session->attached = true;
  session->attached_with = attach;
  session->attached_with.set_library_release(OneLine(attach.library_release(), kMaxReleaseBytes));
  session->attached_ns = MonotonicNanoseconds();
  session->heartbeat.Restart();
  slots_[session->slot] = session;
  reserved_[session->slot] = 0;
  // Holds the session first, in case this keeper dies. Otherwise a worker that only the driver
  // knows would keep its slot for ever, and one that an upgrade counts would seem to have left.
  session->key = RandomBytes(kSessionKeyBytes);
  Hold(*session);
  const Standing standing =
      observer_ ? observer_->OnAttached(session->id, session->peer.pid) : Standing::kFirst;
  driver_.AddWorker(EntryOf(*session, standing), std::move(wake.ours));

  attached->set_worker_id(session->id);
  attached->set_worker_slot(session->slot);
  attached->set_token(tokens_.New(session->id));
  attached->set_session_key(session->key);
  attached->set_control_socket(config_.control_socket());
  if (is_child) {
    attached->set_worker_socket(WorkerSocketPath(config_.state_dir(), config_.service().name()));
  }
  attached->set_layout_version(arena::kLayoutVersion);
  attached->set_protocol_version(kProtocolVersion);
  attached->set_heartbeat_ms(hang_watch_.heartbeat_ms());
  attached->set_outside_effects(config_.service().outside_effects());
  *attached->mutable_placement() = config_.service().placement();
  *descriptors = {arena_.worker_log_fd(), arena_.driver_log_fd(), arena_.buffers_fd(),
                  wake.theirs.get()};
  *keep = std::move(wake.theirs);
  events_.Add("worker_attached",
              absl::StrCat("worker ", session->id, " (", attach.name(), " ", attach.version(),
                           ", pid ", session->peer.pid, ") attached"),
              session->id);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- sessions that go on

void WorkerSessions::Hold(WorkerSession& session) {
  driver_.Hold(absl::StrCat(kHeldWorkers, session.slot), session.ToHeld().SerializeAsString(),
               {session.process.native_handle()});
}

void WorkerSessions::Restore(DriverClient::HeldByKey& held) {
  for (auto& [key, entry] : held) {
    uint64_t last_id = 0;
    if (key == kHeldLastId && absl::SimpleAtoi(entry.value, &last_id)) {
      last_id_ = std::max(last_id_, last_id);
    }
    if (!key.starts_with(kHeldWorkers) || entry.descriptors.size() != 1) continue;
    internal::HeldWorker worker;
    if (worker.ParseFromString(entry.value) && worker.place().slot() < slots_.size()) {
      RestoreOne(worker, std::move(entry.descriptors[0]));
    }
  }
  // The driver may have reported these workers to the former keeper.
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    const SessionPtr session = slots_[slot];
    if (session && driver_process::DeathWatcher::IsMarked(arena_, slot)) OnThreadEnded(session);
  }
  const internal::ShardsSeen seen = driver_.LookAtShards();
  for (const uint32_t slot : seen.fenced_slots()) {
    if (slots_[slot]) (void)Kill(slots_[slot]->id, "it wrote an invalid transaction");
  }
  CloseUnresumedLater();
}

void WorkerSessions::CloseUnresumedLater() {
  After(resumption_timer_, kResumptionTimeout, [this] { CloseUnresumed(); });
}

void WorkerSessions::RestoreOne(const internal::HeldWorker& worker, FileDescriptor pidfd) {
  auto session = std::make_shared<WorkerSession>(loop_);
  session->GoOnFrom(worker, std::move(pidfd));
  session->beat_at_restore = arena::LoadRelaxed(arena_.worker(session->slot).heartbeat);
  session->heartbeat.Look(session->beat_at_restore, /*patience=*/1);  // this is no sign of life
  // The former keeper may have called the worker silent. This one counts anew.
  driver_.ChangeWorker(session->slot, session->id, Change::NOT_STALLED);
  // A native worker whose library cannot resume sessions goes on serving without one.
  session->awaits_resumption =
      worker.attached_with().resumes_session() || !arena::IsNative(arena_.shape());
  last_id_ = std::max(last_id_, session->id);
  slots_[session->slot] = session;
  WatchProcess(session);
}

absl::Status WorkerSessions::ResumeSession(const SessionPtr& session,
                                           const internal::ResumeSession& request) {
  const SessionPtr former = Find(request.worker_id());
  if (!former || !former->awaits_resumption) {
    return absl::NotFoundError(
        absl::StrCat("worker ", request.worker_id(), " has no session to resume: attach anew"));
  }
  if (former->key.empty() || former->key != request.session_key() ||
      former->peer.pid != session->peer.pid || former->peer.uid != session->peer.uid) {
    return absl::PermissionDeniedError(absl::StrCat("the session of worker ", request.worker_id(),
                                                    " is another process's, or has another key"));
  }
  if (former->IsProcessDead()) {
    return absl::FailedPreconditionError(
        absl::StrCat("process ", former->peer.pid, " of worker ", former->id, " is dead"));
  }
  static_cast<SessionFacts&>(*session) = *former;
  session->awaits_resumption = false;
  // Keeps the former pidfd: the process that connected has the worker's number, and the worker
  // lives, so it is the worker.
  session->process.close();
  session->process.assign(former->process.release());
  slots_[session->slot] = session;
  WatchProcess(session);
  return absl::OkStatus();
}

void WorkerSessions::CloseUnresumed() {
  bool later = false;
  for (const SessionPtr& session : std::vector<SessionPtr>(slots_)) {
    if (!session || !session->awaits_resumption) continue;
    const uint64_t beat = arena::LoadRelaxed(arena_.worker(session->slot).heartbeat);
    if (beat - session->beat_at_restore < kBeatsToResume) {
      later = true;
      continue;
    }
    OnClosed(session, absl::UnavailableError(absl::StrCat(
                          "it has not resumed its session with the keeper that followed within ",
                          kResumptionTimeout.count(), " s")));
  }
  if (later) CloseUnresumedLater();
}

void WorkerSessions::WatchProcess(const SessionPtr& session) {
  AwaitReadable(session->process, [this, session] { OnProcessGone(session); });
}

absl::Status WorkerSessions::SetReady(const SessionPtr& session) {
  if (session->state == v1::WORKER_STATE_READY) {
    // The worker may have given a shard back unasked, and wants shards again.
    driver_.ChangeWorker(session->slot, session->id, Change::READY);
    return absl::OkStatus();
  }
  if (session->state != v1::WORKER_STATE_ATTACHED) return absl::OkStatus();
  session->state = v1::WORKER_STATE_READY;
  session->heartbeat.Restart();  // it may have warmed up for long
  driver_.ChangeWorker(session->slot, session->id, Change::READY);
  Hold(*session);
  events_.Add("worker_ready", absl::StrCat("worker ", session->id, " is ready"), session->id);
  if (observer_) observer_->OnReady(session->id);
  return absl::OkStatus();
}

// The worker has released its shards and writes no more: it is as good as dead.
absl::Status WorkerSessions::Detach(const SessionPtr& session) {
  if (!driver_.Detach(session->slot, session->id)) {
    return absl::FailedPreconditionError("the worker was fenced and is being killed");
  }
  session->detached = true;
  LeavePlace(session);
  events_.Add("worker_detached", absl::StrCat("worker ", session->id, " detached"), session->id);
  if (observer_) observer_->OnGone(session->id, session->kill_cause);
  return absl::OkStatus();
}

// A worker that loses its socket without detaching is ending or broken. It still maps the arena, so
// the keeper kills it.
void WorkerSessions::OnClosed(const SessionPtr& session, const absl::Status& why) {
  if (!HasPlace(*session)) return;
  if (!session->process_certain) return Drop(session, MessageOf(why));
  NoteKill(*session, MessageOf(why));
  (void)Signal(*session, SIGKILL);
}

absl::Status WorkerSessions::Signal(WorkerSession& session, int signal) {
  absl::Status status = session.Signal(signal);
  if (status.ok()) return status;
  events_.Add("worker_not_killed",
              absl::StrCat("worker ", session.id, " (pid ", session.peer.pid,
                           ") could not be signalled: ", status.message()),
              session.id);
  return status;
}

// The whole process usually ends with the thread, and the signal changes nothing. Otherwise its
// other threads would go on writing to what a successor owns.
void WorkerSessions::OnThreadEnded(const SessionPtr& session) {
  if (std::exchange(session->thread_ended, true)) return;
  if (session->IsProcessDead()) return;
  if (!session->process_certain) return Drop(session, "the thread that attached has ended");
  if (!Signal(*session, SIGKILL).ok()) return;
  events_.Add(
      "worker_thread_ended",
      absl::StrCat("worker ", session->id, " (pid ", session->peer.pid,
                   "): the thread that attached has ended, and if its process has not, it is "
                   "killed"),
      session->id);
}

void WorkerSessions::OnThreadEnded(uint64_t worker_id) {
  if (const SessionPtr session = Find(worker_id)) OnThreadEnded(session);
}

void WorkerSessions::OnProcessGone(const SessionPtr& session) {
  // The worker may have detached in the same turn of the loop, and another may have its slot.
  if (!HasPlace(*session)) return;
  if (!arena::IsNative(arena_.shape()) || !session->attached) return LeaveDead(session);
  FindLockHolder(session);
}

// The worker counts as alive as long as a process that it forked holds its lock.
void WorkerSessions::FindLockHolder(const SessionPtr& session) {
  std::vector<pid_t> workers;
  for (const SessionPtr& other : slots_) {
    if (other) workers.push_back(other->peer.pid);
  }
  lock_holders_.Find(session->slot, session->peer.uid, workers,
                     [this, session](std::optional<LockHolder> holder) {
                       if (!HasPlace(*session)) return;
                       if (!holder) return LeaveDead(session);
                       FollowLockHolder(session, *std::move(holder));
                     });
}

// Kills the holder, whose end counts as the worker's.
void WorkerSessions::FollowLockHolder(const SessionPtr& session, LockHolder holder) {
  session->process.close();
  session->process.assign(holder.pidfd.Release());
  events_.Add("worker_forked",
              absl::StrCat("worker ", session->id, " (pid ", session->peer.pid,
                           ") is dead, and process ", holder.pid,
                           ", which it must have forked, holds its lock: it is killed "
                           "before anybody follows"),
              session->id);
  (void)Signal(*session, SIGKILL);
  WatchProcess(session);
}

void WorkerSessions::LeaveDead(const SessionPtr& session) {
  Leave(session, "worker_dead",
        absl::StrCat("worker ", session->id, " (pid ", session->peer.pid, ") is dead",
                     session->attached ? "" : ": it had not attached"));
}

// The worker has never had a shard. Its process may live, but its number may be another's by now.
void WorkerSessions::Drop(const SessionPtr& session, std::string_view why) {
  Leave(session, "worker_dropped",
        absl::StrCat("worker ", session->id, " is given up: ", View(why), "; process ",
                     session->peer.pid,
                     " is not known to be the one that connected, and is not killed"));
}

void WorkerSessions::Leave(const SessionPtr& session, const std::string& kind,
                           const std::string& message) {
  if (session->attached) driver_.ChangeWorker(session->slot, session->id, Change::DEAD);
  LeavePlace(session);
  if (const auto socket = session->socket.lock()) socket->Close();
  events_.Add(kind, message, session->id);
  if (observer_) observer_->OnGone(session->id, session->kill_cause);
}

// ---------------------------------------------------------------- what operators ask for

WorkerSessions::SessionPtr WorkerSessions::Find(uint64_t worker_id) const {
  for (const SessionPtr& session : slots_) {
    if (session && session->id == worker_id) return session;
  }
  return nullptr;
}

absl::StatusOr<WorkerSessions::SessionPtr> WorkerSessions::FindAttached(uint64_t worker_id) const {
  if (SessionPtr session = Find(worker_id)) return session;
  return absl::NotFoundError(absl::StrCat("worker ", worker_id, " is not attached"));
}

uint64_t WorkerSessions::IdOf(uint32_t slot) const { return slots_[slot] ? slots_[slot]->id : 0; }

void WorkerSessions::ReadProgram(uint64_t worker_id, WorkerPrograms& programs,
                                 ProgramDone done) const {
  const absl::StatusOr<SessionPtr> found = FindAttached(worker_id);
  if (!found.ok()) return done(found.status());
  const PeerCredentials& peer = (*found)->peer;
  programs.Read(
      peer.pid, peer.uid, peer.gid,
      [session = *found, done = std::move(done)](absl::StatusOr<internal::Program> program) {
        if (program.ok() && session->IsProcessDead()) {
          program = absl::FailedPreconditionError(
              absl::StrCat("process ", session->peer.pid, " of worker ", session->id,
                           " ended while its program was read, which may be another's: try again"));
        }
        done(std::move(program));
      });
}

absl::Status WorkerSessions::Kill(uint64_t worker_id, std::string_view cause) {
  BATON_ASSIGN_OR_RETURN(const SessionPtr session, FindAttached(worker_id));
  if (session->kill_cause.empty()) session->kill_cause = std::string(cause);
  if (!session->process_certain) {
    Drop(session, cause);
    return absl::OkStatus();
  }
  NoteKill(*session, cause);
  // The signal ends the process with all its workers. Each has a session and gets an event of its
  // own.
  for (const SessionPtr& other : slots_) {
    if (!other || other == session || other->peer.pid != session->peer.pid) continue;
    NoteKill(*other, absl::StrCat("so is worker ", worker_id, ", of the same process"));
  }
  return Signal(*session, SIGKILL);
}

// Only the first cause is kept, because what follows from the kill may look like another.
void WorkerSessions::NoteKill(WorkerSession& session, std::string_view cause) {
  if (session.state == v1::WORKER_STATE_DYING) return;
  session.state = v1::WORKER_STATE_DYING;
  events_.Add(
      "worker_killed",
      absl::StrCat("worker ", session.id, " (pid ", session.peer.pid, ") is killed: ", View(cause)),
      session.id);
}

absl::Status WorkerSessions::KillForOperator(uint64_t worker_id) {
  if (const SessionPtr session = Find(worker_id)) {
    driver_.ChangeWorker(session->slot, worker_id, Change::PARDON_DEATH);
  }
  return Kill(worker_id, "asked for by an operator");
}

absl::Status WorkerSessions::KillOverdue(uint64_t worker_id) {
  return Kill(worker_id, absl::StrCat("it was asked to end ", stop_timeout().count(), " ms ago"));
}

absl::Status WorkerSessions::SetControlStream(uint64_t worker_id, bool open,
                                              const void* announcer) {
  const absl::StatusOr<SessionPtr> session = FindAttached(worker_id);
  // The ends of a worker and of its stream may be reported in either order.
  if (!session.ok()) return open ? session.status() : absl::OkStatus();
  if (open) {
    (*session)->control_stream = announcer;
  } else if ((*session)->control_stream == announcer) {
    (*session)->control_stream = nullptr;
  }
  return absl::OkStatus();
}

void WorkerSessions::ForgetControlStreams(const void* announcer) {
  for (const SessionPtr& session : slots_) {
    if (session && session->control_stream == announcer) session->control_stream = nullptr;
  }
}

absl::StatusOr<uint32_t> WorkerSessions::Successor(uint64_t worker_id, uint32_t shard) {
  if (worker_id != 0) {
    BATON_ASSIGN_OR_RETURN(const SessionPtr session, FindAttached(worker_id));
    if (session->state != v1::WORKER_STATE_READY) {
      return absl::FailedPreconditionError(absl::StrCat("worker ", worker_id, " is not ready"));
    }
    return session->slot;
  }
  SessionPtr newest;
  const internal::ShardsSeen seen = driver_.LookAtShards();
  const uint64_t owner = seen.shards(static_cast<int>(shard)).owner_worker_id();
  for (const uint32_t slot : seen.ready_slots()) {
    const SessionPtr& session = slots_[slot];
    if (!session || session->id == owner) continue;
    if (!newest || session->id > newest->id) newest = session;
  }
  if (!newest) {
    return absl::FailedPreconditionError(
        "no other worker is ready to take over: start one and wait until it is ready");
  }
  return newest->slot;
}

std::vector<WorkerInfo> WorkerSessions::List() const {
  std::vector<WorkerInfo> workers;
  for (const SessionPtr& session : slots_) {
    if (session) workers.push_back(session->Info(arena_));
  }
  return workers;
}

void WorkerSessions::MakeFirst(uint64_t worker_id) {
  if (const SessionPtr session = Find(worker_id)) {
    driver_.ChangeWorker(session->slot, worker_id, Change::STANDS_FIRST);
  }
}

void WorkerSessions::AskToStop(uint64_t worker_id) {
  const SessionPtr session = Find(worker_id);
  if (!session) return;
  events_.Add("worker_asked_to_stop", absl::StrCat("worker ", worker_id, " is asked to end"),
              worker_id);
  if (session->attached_with.layout_version() < kStopRequestLayoutVersion) {
    (void)Signal(*session, SIGTERM);
    return;
  }
  driver_.ChangeWorker(session->slot, worker_id, Change::ASK_TO_STOP);
}

bool WorkerSessions::Retire(pid_t pid) {
  std::vector<SessionPtr> sessions;
  for (const SessionPtr& session : slots_) {
    if (session && session->peer.pid == pid) sessions.push_back(session);
  }
  DriverClient::Workers places;
  for (const SessionPtr& session : sessions) places.push_back(session->Place());
  if (!driver_.Retire(places)) return false;
  for (const SessionPtr& session : sessions) {
    if (std::exchange(session->retired, true)) continue;
    Hold(*session);
    AskToStop(session->id);
  }
  return true;
}

std::vector<v1::Worker> WorkerSessions::Describe() const {
  std::vector<v1::Worker> workers;
  for (const SessionPtr& session : slots_) {
    if (session) workers.push_back(session->Describe(arena_));
  }
  return workers;
}

}  // namespace baton::keeper
