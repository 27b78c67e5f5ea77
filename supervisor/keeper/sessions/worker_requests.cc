#include "supervisor/keeper/sessions/worker_requests.h"

#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/base/clock.h"
#include "lib/base/closer.h"
#include "lib/base/holdable.h"
#include "lib/base/random_bytes.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "lib/channel/carried_status.h"
#include "lib/text/text.h"
#include "lib/verbs/verbs.h"
#include "supervisor/config/state_files.h"
#include "supervisor/keeper/fingerprint.h"
#include "supervisor/keeper/sessions/attach_check.h"

namespace baton::keeper {
namespace {

constexpr FramedSocket::Limits kSocketLimits = {.frame_bytes = 64 << 10,
                                                .text_bytes = 16 << 10,
                                                .queued_bytes = 256 << 10,
                                                .refuses_descriptors = true};
// The most clients of the socket that have not attached. Anybody may connect.
constexpr size_t kMaxStrangers = 64;
constexpr size_t kMaxReleaseBytes = 32;
constexpr size_t kSessionKeyBytes = 16;

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

// Returns words for a request that are the same when it is sent again to the next keeper. A program
// that attaches is not the same process each time, so its number is left out.
std::string NameOf(const WorkerSession& session, const internal::WorkerRequest& request) {
  if (request.has_attach()) {
    internal::AttachArena attach = request.attach();
    attach.clear_attempt();
    return absl::StrCat("the attaching of ", OneLine(attach.name(), kMaxReleaseBytes), " of user ",
                        session.peer.uid, " (", FingerprintOf(attach), ")");
  }
  if (request.has_resume()) {
    return absl::StrCat("the resumption of worker ", request.resume().worker_id(), " by process ",
                        session.peer.pid);
  }
  const auto* what = internal::WorkerRequest::descriptor()->FindFieldByNumber(
      static_cast<int>(request.request_case()));
  return absl::StrCat("request ", request.number(), " of worker ", session.id, " (",
                      what == nullptr ? "nothing" : what->name(), ")");
}

bool IsAboutHeld(const internal::WorkerRequest& request) {
  return request.has_hold_descriptor() || request.has_take_descriptor() ||
         request.has_drop_descriptor() || request.has_list_descriptors();
}

}  // namespace

void WorkerRequests::Accept(FileDescriptor socket) {
  const auto peer = GetPeerCredentials(socket.get());
  if (!peer.ok()) return CloseConnection(std::move(socket));
  auto connector = GetPeerProcess(socket.get());
  if (!connector.ok()) return CloseConnection(std::move(socket));
  auto session = std::make_shared<WorkerSession>(parts_.loop);
  session->peer = *peer;
  session->process.assign(connector->pidfd.Release());
  session->process_certain = connector->certain;
  session->distrusted = parts_.config.distrust_contained_root() && IsPeerContained(socket.get());
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

void WorkerRequests::AcceptChild(FileDescriptor socket, const PeerCredentials& peer,
                                 FileDescriptor pidfd, const internal::WorkerPlace& place) {
  auto session = std::make_shared<WorkerSession>(parts_.loop);
  parts_.places.Reserve(place);
  session->peer = peer;
  session->id = place.id();
  session->slot = place.slot();
  session->process.assign(pidfd.Release());
  session->process_certain = true;
  ends_.Watch(session);
  Start(session, std::move(socket));
}

std::shared_ptr<FramedSocket> WorkerRequests::Start(const SessionPtr& session,
                                                    FileDescriptor socket) {
  auto framed = std::make_shared<FramedSocket>(parts_.loop, std::move(socket), kSocketLimits);
  session->socket = framed;
  framed->Start([this, session] { return OnFrame(session); },
                [this, session](const absl::Status& why) { ends_.OnClosed(session, why); });
  return framed;
}

absl::StatusOr<bool> WorkerRequests::OnFrame(const SessionPtr& session) {
  const std::shared_ptr<FramedSocket> socket = session->socket.lock();
  if (!socket) return false;
  internal::WorkerRequest request;
  PassedDescriptor passed;
  BATON_ASSIGN_OR_RETURN(const bool whole, socket->channel().NextFrameWithOne(&request, &passed));
  if (!whole) return false;
  if (passed && !request.has_hold_descriptor()) {
    return absl::InvalidArgumentError("a descriptor came with a request that takes none");
  }
  if (!session->process_certain && socket->channel().sender_seen() && !session->IsProcessDead()) {
    session->process_certain = true;
    if (session->attached) parts_.places.Hold(*session);
  }
  const absl::Status dealt = parts_.driver.DealWith(
      NameOf(*session, request), [&] { Serve(session, socket, request, passed); });
  if (!dealt.ok()) {
    internal::WorkerReply reply;
    SetStatus(dealt, &reply);
    Send(*session, *socket, std::move(reply));
  }
  if (session->detached) return absl::UnavailableError("detached");
  return true;
}

void WorkerRequests::Serve(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
                           const internal::WorkerRequest& request, PassedDescriptor& passed) {
  const bool served = session->attached && session->process_certain;
  if (served && request.has_grant()) return Grant(session, socket, request);
  if (served && request.has_revoke()) return Revoke(session, socket, request);
  if (served && request.has_take_over() && on_take_over_) {
    return TakeOver(session, socket, request);
  }
  std::vector<int> descriptors;
  FileDescriptor keep;  // open until the frame, which carries a duplicate, is queued
  if (served && IsAboutHeld(request)) {
    internal::WorkerReply reply = HandleHeld(*session, request, passed, &keep);
    if (keep) descriptors = {keep.get()};
    return Send(*session, *socket, std::move(reply), descriptors);
  }
  internal::WorkerReply reply = Handle(session, request, &descriptors, &keep);
  Send(*session, *socket, std::move(reply), descriptors);
}

void WorkerRequests::Send(const WorkerSession& session, FramedSocket& socket,
                          internal::WorkerReply reply, const std::vector<int>& descriptors) {
  if (session.attached && session.process_certain) {
    socket.channel().TakeOneDescriptor();
    reply.set_takes_descriptors(true);
  }
  socket.Send(reply, descriptors);
}

internal::WorkerReply WorkerRequests::HandleHeld(const WorkerSession& session,
                                                 const internal::WorkerRequest& request,
                                                 PassedDescriptor& passed, FileDescriptor* taken) {
  internal::WorkerReply reply;
  const auto execute = [&]() -> absl::Status {
    if (request.has_drop_descriptor()) {
      return parts_.driver.DropDescriptor(request.drop_descriptor().number());
    }
    if (request.has_take_descriptor()) {
      BATON_ASSIGN_OR_RETURN(*taken,
                             parts_.driver.TakeDescriptor(request.take_descriptor().number()));
      // The reply needs another one. Without it the session would be closed.
      if (CopyOf(taken->get())) return absl::OkStatus();
      const int error = errno;
      taken->Reset();
      return ErrnoStatus(error,
                         "a held descriptor for the worker (see the keeper's RLIMIT_NOFILE)");
    }
    if (request.has_list_descriptors()) {
      BATON_ASSIGN_OR_RETURN(*reply.mutable_all_held(),
                             parts_.driver.ListDescriptors(request.list_descriptors().tag()));
      return absl::OkStatus();
    }
    if (!passed) return absl::InvalidArgumentError("descriptor: none came with the request");
    BATON_RETURN_IF_ERROR(CheckHoldable(passed.get(), session.peer.pid));
    const absl::StatusOr<uint64_t> number = parts_.driver.HoldDescriptorFor(
        {session.id, request.number()}, request.hold_descriptor().tag(), passed.get());
    CloseFileLater(passed.Release());
    if (number.ok()) reply.mutable_held()->set_number(*number);
    return number.status();
  };
  SetStatus(execute(), &reply);
  return reply;
}

internal::WorkerReply WorkerRequests::Handle(const SessionPtr& session,
                                             const internal::WorkerRequest& request,
                                             std::vector<int>* descriptors, FileDescriptor* keep) {
  using internal::WorkerRequest;
  internal::WorkerReply reply;
  const auto execute = [&]() -> absl::Status {
    const bool begins = request.has_attach() || request.has_resume();
    if (session->attached == begins) {
      return absl::FailedPreconditionError("attach comes first, and once");
    }
    if (session->attached && !session->process_certain && !request.has_detach()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "process ", session->peer.pid,
          ", which connected, has to send this itself, after the reply to its attaching: "
          "attach anew"));
    }
    const DriverClient::Asker asker = {session->id, request.number()};
    switch (request.request_case()) {
      case WorkerRequest::kAttach:
        return Attach(session, request.attach(), reply.mutable_attached(), descriptors, keep);
      case WorkerRequest::kResume:
        return Resume(session, request.resume());
      case WorkerRequest::kSetReady:
        return SetReady(session);
      case WorkerRequest::kListen:
        return Listen(asker, request.listen(), reply.mutable_listening());
      case WorkerRequest::kConnect:
        return Connect(asker, request.connect(), reply.mutable_connecting());
      case WorkerRequest::kNewToken:
        reply.mutable_token()->set_token(parts_.places.tokens().New(session->id));
        return absl::OkStatus();
      case WorkerRequest::kDetach:
        return ends_.Detach(session);
      default:
        return absl::UnimplementedError("a request this keeper does not know");
    }
  };
  const absl::Status status = execute();
  if (!status.ok()) {
    reply.Clear();
    descriptors->clear();
  }
  SetStatus(status, &reply);
  return reply;
}

// ---------------------------------------------------------------- attaching

// Returns the session of a worker whose keeper died between holding the session and answering.
SessionPtr WorkerRequests::FindUnanswered(const WorkerSession& session,
                                          const internal::AttachArena& attach) const {
  if (attach.attempt().empty()) return nullptr;
  for (const SessionPtr& other : parts_.places.slots()) {
    if (other && other->awaits_resumption && other->peer.pid == session.peer.pid &&
        other->peer.uid == session.peer.uid && other->attached_with.attempt() == attach.attempt()) {
      return other;
    }
  }
  return nullptr;
}

absl::Status WorkerRequests::Attach(const SessionPtr& session, const internal::AttachArena& attach,
                                    internal::Attached* attached, std::vector<int>* descriptors,
                                    FileDescriptor* keep) {
  const bool is_child = session->id != 0;
  BATON_RETURN_IF_ERROR(CheckAttach(parts_.config.service(),
                                    parts_.driver.arena().header().oldest_reader,
                                    {session->peer, is_child, session->distrusted}, attach));
  const SessionPtr unanswered = FindUnanswered(*session, attach);
  if (unanswered) {
    session->slot = unanswered->slot;
  } else if (!is_child) {
    BATON_ASSIGN_OR_RETURN(session->slot, parts_.places.FreeSlot());
  }
  // A dead process cannot be watched or killed, though another may hold its socket.
  if (session->IsProcessDead()) {
    return absl::FailedPreconditionError(
        absl::StrCat("process ", session->peer.pid, ", which connected, is dead"));
  }
  BATON_ASSIGN_OR_RETURN(SocketPair wake, MakeSocketPair(SOCK_STREAM | SOCK_NONBLOCK));
  if (!is_child) {
    session->id = unanswered ? unanswered->id : parts_.places.NewId();
    ends_.Watch(session);
  }
  session->attached = true;
  session->attached_with = attach;
  session->attached_with.set_library_release(OneLine(attach.library_release(), kMaxReleaseBytes));
  session->attached_ns = MonotonicNanoseconds();
  session->heartbeat.Restart();
  parts_.places.Put(session);
  // Holds the session first, in case this keeper dies. Otherwise a worker that only the driver
  // knows would keep its slot for ever, and one that an upgrade counts would seem to have left.
  session->key = RandomBytes(kSessionKeyBytes);
  parts_.places.Hold(*session);
  WorkerObserver* const observer = parts_.places.observer();
  const Standing standing =
      observer ? observer->OnAttached(session->id, session->peer.pid) : Standing::kFirst;
  const absl::Status added =
      parts_.driver.AddWorker(EntryOf(*session, standing), std::move(wake.ours));
  if (!added.ok()) {
    ends_.Refuse(session, MessageOf(added));
    return added;
  }
  Introduce(*session, is_child, attached);
  *descriptors = {parts_.driver.arena().worker_log_fd(), parts_.driver.arena().driver_log_fd(),
                  parts_.driver.arena().buffers_fd(), wake.theirs.get()};
  *keep = std::move(wake.theirs);
  parts_.events.Add("worker_attached",
                    absl::StrCat("worker ", session->id, " (", attach.name(), " ", attach.version(),
                                 ", pid ", session->peer.pid, ") attached"),
                    session->id);
  return absl::OkStatus();
}

// Tells an attached worker who it is, and what it has to know of this keeper.
void WorkerRequests::Introduce(const WorkerSession& session, bool is_child,
                               internal::Attached* attached) {
  attached->set_worker_id(session.id);
  attached->set_worker_slot(session.slot);
  attached->set_token(parts_.places.tokens().New(session.id));
  attached->set_session_key(session.key);
  attached->set_control_socket(parts_.config.control_socket());
  if (is_child) {
    attached->set_worker_socket(
        WorkerSocketPath(parts_.config.state_dir(), parts_.config.service().name()));
  }
  attached->set_layout_version(arena::kLayoutVersion);
  attached->set_protocol_version(kProtocolVersion);
  attached->set_heartbeat_ms(hang_watch_.heartbeat_ms());
  attached->set_outside_effects(parts_.config.service().outside_effects());
  *attached->mutable_placement() = parts_.config.service().placement();
  attached->set_yield_microseconds(parts_.config.service().yield_microseconds());
}

absl::Status WorkerRequests::Resume(const SessionPtr& session,
                                    const internal::ResumeSession& request) {
  const SessionPtr former = parts_.places.Find(request.worker_id());
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
  parts_.places.Put(session);
  ends_.Watch(session);
  return absl::OkStatus();
}

absl::Status WorkerRequests::SetReady(const SessionPtr& session) {
  if (session->state == v1::WORKER_STATE_READY) {
    // The worker may have given a shard back unasked, and wants shards again.
    parts_.driver.ChangeWorker(session->slot, session->id, Change::READY);
    return absl::OkStatus();
  }
  if (session->state != v1::WORKER_STATE_ATTACHED) return absl::OkStatus();
  session->state = v1::WORKER_STATE_READY;
  session->heartbeat.Restart();  // it may have warmed up for long
  parts_.driver.ChangeWorker(session->slot, session->id, Change::READY);
  parts_.places.Hold(*session);
  parts_.events.Add("worker_ready", absl::StrCat("worker ", session->id, " is ready"), session->id);
  if (parts_.places.observer()) parts_.places.observer()->OnReady(session->id);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- listeners, connections, grants

absl::Status WorkerRequests::Listen(const DriverClient::Asker& asker,
                                    const internal::ListenRequest& request,
                                    internal::Listening* listening) {
  if (request.port() > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("port: ", request.port(), ", at most 65535"));
  }
  const verbs::Address asked = {request.host(), static_cast<uint16_t>(request.port())};
  BATON_ASSIGN_OR_RETURN(
      *listening, parts_.driver.ListenFor(asker, asked, parts_.config.service().max_listeners()));
  return absl::OkStatus();
}

absl::Status WorkerRequests::Connect(const DriverClient::Asker& asker,
                                     const internal::ConnectRequest& request,
                                     internal::Connecting* connecting) {
  if (request.shard() >= parts_.driver.arena().shape().shards || request.port() > 65535) {
    return absl::InvalidArgumentError("shard, port: out of range");
  }
  BATON_ASSIGN_OR_RETURN(*connecting, parts_.driver.ConnectFor(asker, request));
  return absl::OkStatus();
}

void WorkerRequests::Grant(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
                           const internal::WorkerRequest& request) {
  socket->Pause();
  const auto done = [this, session, socket](const absl::StatusOr<internal::Granted>& granted) {
    // Revokes the grant of a worker that is gone, because nobody else could.
    if (granted.ok() && !parts_.places.Has(*session)) {
      internal::RevokeRequest revoke;
      revoke.set_grant(granted->grant());
      revoke.set_region(granted->region());
      return parts_.driver.Revoke({}, revoke, [](const absl::Status&) {});
    }
    internal::WorkerReply reply;
    if (granted.ok()) *reply.mutable_granted() = *granted;
    Answer(session, socket, granted.status(), std::move(reply));
  };
  const absl::Status asked =
      parts_.driver.GrantFor({session->id, request.number()}, request.grant(), done);
  if (!asked.ok()) boost::asio::post(parts_.loop, [asked, done] { done(asked); });
}

void WorkerRequests::Revoke(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
                            const internal::WorkerRequest& request) {
  socket->Pause();
  parts_.driver.Revoke({session->id, request.number()}, request.revoke(),
                       [this, session, socket](const absl::Status& revoked) {
                         Answer(session, socket, revoked, internal::WorkerReply());
                       });
}

void WorkerRequests::TakeOver(const SessionPtr& session,
                              const std::shared_ptr<FramedSocket>& socket,
                              const internal::WorkerRequest& request) {
  socket->Pause();
  on_take_over_(session->id, request.take_over(),
                [this, session, socket](const absl::Status& begun) {
                  boost::asio::post(parts_.loop, [this, session, socket, begun] {
                    Answer(session, socket, begun, internal::WorkerReply());
                  });
                });
}

void WorkerRequests::Answer(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
                            const absl::Status& status, internal::WorkerReply reply) {
  if (!parts_.places.Has(*session)) return;
  SetStatus(status, &reply);
  Send(*session, *socket, std::move(reply));
  socket->Resume();
}

}  // namespace baton::keeper
