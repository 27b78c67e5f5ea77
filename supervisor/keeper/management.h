// Serves the requests that control sends on a keeper's management socket.
#ifndef SUPERVISOR_KEEPER_MANAGEMENT_H_
#define SUPERVISOR_KEEPER_MANAGEMENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/channel/framed_socket.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/keeper_parts.h"
#include "supervisor/keeper/policy/limit_watch.h"
#include "supervisor/keeper/policy/live_config.h"
#include "supervisor/keeper/policy/service_drain.h"
#include "supervisor/keeper/upgrades/handoffs.h"
#include "supervisor/keeper/upgrades/upgrades.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class Management {
 public:
  // The parts that only requests use.
  struct Managed {
    Upgrades& upgrades;
    LimitWatch& limits;
    ServiceDrain& drain;
    LiveConfig& live;
  };
  // All references outlive it. `end`: ends the keeper, after the present handler.
  Management(const KeeperParts& parts, const Managed& managed, std::function<void()> end);

  // Takes a client of the management socket.
  void Accept(FileDescriptor socket);

  // Sends the event to every client that has subscribed.
  void Publish(const v1::Event& event);

 private:
  using SocketPtr = std::shared_ptr<FramedSocket>;

  // `is_batonds`: the other side runs as batond's user, or as root.
  absl::StatusOr<bool> OnFrame(const SocketPtr& socket, bool is_batonds);
  void Handle(const SocketPtr& socket, const internal::ManagementRequest& request);
  void Answer(const SocketPtr& socket, const internal::ManagementRequest& request);
  // Executes a request that is answered at once. `socket`: where it came from.
  absl::Status Execute(const FramedSocket& socket, const internal::ManagementRequest& request,
                       internal::ManagementReply* reply);
  absl::Status CheckShard(int64_t shard) const;
  void Describe(internal::Description* description);
  void Handoff(const SocketPtr& socket, const internal::ManagementRequest& request);
  absl::StatusOr<std::vector<ShardMove>> PlanHandoff(const internal::Handoff& request);
  absl::Status SetPolicy(const internal::SetPolicy& request, v1::Policy* in_force);
  void Subscribe(const SocketPtr& socket, uint64_t after);

  const KeeperParts parts_;
  const Managed managed_;
  const std::function<void()> end_;
  const uint64_t started_ns_;
  std::set<SocketPtr> subscribers_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_MANAGEMENT_H_
