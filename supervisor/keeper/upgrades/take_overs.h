// Workers that ask for shards which other workers of their service own, because their program was
// started to replace the other one.
//
// A take-over of all shards is an upgrade (upgrade_under_way.h): the former owners stand by for the
// watch window, get the shards back if the worker dies, hangs or turns unhealthy, and are asked to
// end after it. The new side is the whole process of the worker: if it has several workers, the
// upgrade waits until all of them are ready, and each gets shards. (Of a service with hot_standbys,
// as many as there were owners.) A take-over of some shards is a handoff: it is not watched, and
// the former owners stay. It is reported as an event, and to the worker as ownership. If the keeper
// dies meanwhile, the next one does not go on with it.
#ifndef SUPERVISOR_KEEPER_UPGRADES_TAKE_OVERS_H_
#define SUPERVISOR_KEEPER_UPGRADES_TAKE_OVERS_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/keeper_parts.h"
#include "supervisor/keeper/policy/service_drain.h"
#include "supervisor/keeper/sessions/worker_session.h"
#include "supervisor/keeper/upgrades/upgrades.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class TakeOvers {
 public:
  // `upgrades` and `drain` outlive it.
  TakeOvers(const KeeperParts& context, Upgrades& upgrades, const ServiceDrain& drain)
      : context_(context), upgrades_(upgrades), drain_(drain) {}

  // Calls `begun` once, now or from the loop. OK also if there is nothing to do: the worker, or
  // its process, owns the shards, nobody else is ready, or the keeper decides which shards it gets,
  // because it is a new worker of the upgrade under way or the keeper has started its process. The
  // last two are programs that were started again with the arguments of one that takes over.
  //
  // kInvalidArgument: the service does not have such a shard. kPermissionDenied: the policy does
  // not allow it. kFailedPrecondition: the worker is not ready, the service is native or drained,
  // an upgrade is under way, or the formats of the state do not fit.
  using Begun = std::function<void(const absl::Status&)>;
  void Ask(uint64_t worker_id, const internal::TakeOver& request, Begun begun);

 private:
  using Shards = std::set<uint32_t>;

  absl::StatusOr<Shards> ShardsOf(const internal::TakeOver& request) const;
  // `others`: the ready workers that it takes shards from.
  bool HasNothingToTake(const WorkerInfo& worker, const Shards& shards,
                        const std::vector<WorkerInfo>& others) const;
  absl::Status Check(const WorkerInfo& worker, const std::vector<WorkerInfo>& others,
                     bool all) const;
  void Move(const WorkerInfo& worker, const Shards& shards);
  void NoteRefusal(const WorkerInfo& worker, const absl::Status& why);

  const KeeperParts context_;
  Upgrades& upgrades_;
  const ServiceDrain& drain_;
  std::string told_;  // the last refusal, which is not reported again
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_TAKE_OVERS_H_
