// Serves the requests that control sends on a keeper's management socket.
#ifndef SUPERVISOR_KEEPER_MANAGEMENT_H_
#define SUPERVISOR_KEEPER_MANAGEMENT_H_

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/loop/framed_session.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/event_log.h"
#include "supervisor/keeper/policy/limit_watch.h"
#include "supervisor/keeper/policy/live_config.h"
#include "supervisor/keeper/policy/policies.h"
#include "supervisor/keeper/policy/service_drain.h"
#include "supervisor/keeper/service_driver.h"
#include "supervisor/keeper/sessions/worker_sessions.h"
#include "supervisor/keeper/upgrades/handoffs.h"
#include "supervisor/keeper/upgrades/upgrades.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class Management {
 public:
  // All references outlive it. `end`: ends the keeper, after the present handler.
  Management(boost::asio::io_context& loop, const internal::KeeperConfig& config,
             ServiceDriver& driver, EventLog& events, WorkerSessions& workers, Upgrades& upgrades,
             Policies& policies, LimitWatch& limits, ServiceDrain& drain, LiveConfig& live,
             std::function<void()> end);

  // A client of the management socket.
  void Accept(FileDescriptor socket);

  // To every client that has subscribed.
  void Publish(const v1::Event& event);

 private:
  using SessionPtr = std::shared_ptr<FramedSession>;

  // `is_batonds`: the other side is of batond's user.
  absl::StatusOr<bool> OnFrame(const SessionPtr& session, bool is_batonds);
  void Handle(const SessionPtr& session, const internal::ManagementRequest& request);
  void Answer(const SessionPtr& session, const internal::ManagementRequest& request);
  void ChangeProgram(const SessionPtr& session, const internal::ManagementRequest& request);
  absl::Status Drain(const internal::DrainService& request, internal::ManagementReply* reply);
  absl::Status ListShardMoves(const internal::ListShardMoves& request,
                              internal::ManagementReply* reply) const;
  void Describe(internal::Description* description);
  absl::Status ListConnections(const internal::ListConnections& request,
                               internal::Connections* connections);
  void Handoff(const SessionPtr& session, const internal::ManagementRequest& request);
  absl::StatusOr<std::vector<ShardMove>> PlanHandoff(const internal::Handoff& request);
  absl::Status SetPolicy(const internal::SetPolicy& request, v1::Policy* in_force);
  void Subscribe(const SessionPtr& session, uint64_t after);

  boost::asio::io_context& loop_;
  const internal::KeeperConfig& config_;
  ServiceDriver& driver_;
  EventLog& events_;
  WorkerSessions& workers_;
  Upgrades& upgrades_;
  Policies& policies_;
  LimitWatch& limits_;
  ServiceDrain& drain_;
  const std::function<void()> end_;
  LiveConfig& live_;
  const uint64_t started_ns_;
  std::set<SessionPtr> subscribers_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_MANAGEMENT_H_
