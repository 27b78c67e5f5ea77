// Finds workers that hang, and does what the service's policy says of them.
#ifndef SUPERVISOR_KEEPER_SESSIONS_HANG_WATCH_H_
#define SUPERVISOR_KEEPER_SESSIONS_HANG_WATCH_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "proto/baton/internal/driver.pb.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/event_log.h"
#include "supervisor/keeper/policy/policies.h"
#include "supervisor/keeper/service_driver.h"
#include "supervisor/keeper/sessions/worker_session.h"

namespace baton::keeper {

// Returns the number of looks in vain after which a worker counts as hung: at least
// `hang_timeout_ms` of silence, and at least two heartbeats, since a worker that beats in time is
// not killed.
uint32_t LooksUntilHung(uint32_t heartbeat_ms, uint32_t hang_timeout_ms, uint32_t between_looks_ms);

// A worker hangs if it owns shards and has not counted a beat for LooksUntilHung() looks.
//
// Thread-compatible: the management loop's thread.
class HangWatch {
 public:
  using Sessions = std::vector<std::shared_ptr<WorkerSession>>;  // by slot; null: it is free
  using Kill = std::function<void(uint64_t worker_id, std::string_view cause)>;

  // All references outlive it. Looks at `sessions` each heartbeat_ms or more often.
  HangWatch(boost::asio::io_context& loop, const internal::KeeperConfig& config,
            ServiceDriver& driver, Policies& policies, EventLog& events, const Sessions& sessions,
            Kill kill);
  uint32_t heartbeat_ms() const { return heartbeat_ms_; }

 private:
  void LookAt(WorkerSession& session);
  uint32_t looks() const;  // in vain, until a worker counts as hung
  bool OwnsShards(uint64_t worker_id);
  void OnHang(WorkerSession& session);

  const internal::KeeperConfig& config_;
  ServiceDriver& driver_;
  Policies& policies_;
  EventLog& events_;
  const uint32_t heartbeat_ms_, between_looks_ms_;
  boost::asio::steady_timer timer_;
  const Sessions& sessions_;
  const Kill kill_;
  std::optional<internal::ShardsSeen> shards_;  // as the driver saw them in this round of looks
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_HANG_WATCH_H_
