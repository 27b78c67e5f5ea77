// What workers ask of their keeper, at their sockets: to attach, to listen, to connect, for memory,
// for shards of others, to hold descriptors.
#ifndef SUPERVISOR_KEEPER_SESSIONS_WORKER_REQUESTS_H_
#define SUPERVISOR_KEEPER_SESSIONS_WORKER_REQUESTS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/closer.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/framed_socket.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/sessions/hang_watch.h"
#include "supervisor/keeper/sessions/worker_ends.h"
#include "supervisor/keeper/sessions/worker_places.h"
#include "supervisor/keeper/sessions/worker_session.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread. A worker's request blocks that thread for a turn
// of the engine, but not while memory is registered or deregistered.
class WorkerRequests {
 public:
  // `ends` and `hang_watch` outlive it.
  WorkerRequests(const SessionParts& parts, WorkerEnds& ends, const HangWatch& hang_watch)
      : parts_(parts), ends_(ends), hang_watch_(hang_watch) {}

  // See WorkerSessions.
  void Accept(FileDescriptor socket);
  void AcceptChild(FileDescriptor socket, const PeerCredentials& peer, FileDescriptor pidfd,
                   const internal::WorkerPlace& place);

  // Decides about the wish of an attached worker. Calls `begun` once, now or from the loop.
  using OnTakeOver = std::function<void(uint64_t worker_id, const internal::TakeOver& request,
                                        std::function<void(const absl::Status&)> begun)>;
  // Sets who decides. Call it before workers can attach.
  void SetOnTakeOver(OnTakeOver on_take_over) { on_take_over_ = std::move(on_take_over); }

 private:
  std::shared_ptr<FramedSocket> Start(const SessionPtr& session, FileDescriptor socket);
  absl::StatusOr<bool> OnFrame(const SessionPtr& session);
  // `passed` came with the request.
  void Serve(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
             const internal::WorkerRequest& request, PassedDescriptor& passed);
  // Sends the last reply to a request. From then on a certain worker may pass a descriptor.
  static void Send(const WorkerSession& session, FramedSocket& socket, internal::WorkerReply reply,
                   const std::vector<int>& descriptors = {});
  internal::WorkerReply Handle(const SessionPtr& session, const internal::WorkerRequest& request,
                               std::vector<int>* descriptors, FileDescriptor* keep);
  // Handles a request about descriptors that the driver holds. `taken` receives one for the worker.
  internal::WorkerReply HandleHeld(const WorkerSession& session,
                                   const internal::WorkerRequest& request, PassedDescriptor& passed,
                                   FileDescriptor* taken);
  SessionPtr FindUnanswered(const WorkerSession& session,
                            const internal::AttachArena& attach) const;
  absl::Status Attach(const SessionPtr& session, const internal::AttachArena& attach,
                      internal::Attached* attached, std::vector<int>* descriptors,
                      FileDescriptor* keep);
  void Introduce(const WorkerSession& session, bool is_child, internal::Attached* attached);
  // Continues a former keeper's session with the worker that `session` is connected to.
  absl::Status Resume(const SessionPtr& session, const internal::ResumeSession& request);
  absl::Status SetReady(const SessionPtr& session);
  absl::Status Listen(const DriverClient::Asker& asker, const internal::ListenRequest& request,
                      internal::Listening* listening);
  absl::Status Connect(const DriverClient::Asker& asker, const internal::ConnectRequest& request,
                       internal::Connecting* connecting);
  // Both answer when the memory is registered or deregistered. The session's other requests wait
  // until then.
  void Grant(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
             const internal::WorkerRequest& request);
  void Revoke(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
              const internal::WorkerRequest& request);
  // Answers when the take-over has begun or is refused. The session's other requests wait likewise.
  void TakeOver(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
                const internal::WorkerRequest& request);
  void Answer(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
              const absl::Status& status, internal::WorkerReply reply);

  const SessionParts parts_;
  WorkerEnds& ends_;
  const HangWatch& hang_watch_;
  OnTakeOver on_take_over_;
  std::deque<std::weak_ptr<WorkerSession>> strangers_;  // not attached yet, oldest first
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_WORKER_REQUESTS_H_
