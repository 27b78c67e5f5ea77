// An engine that only remembers what it was told: everything is done at once, on the caller's
// thread.
#ifndef TESTS_SUPERVISOR_DRIVER_INLINE_ENGINE_H_
#define TESTS_SUPERVISOR_DRIVER_INLINE_ENGINE_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "supervisor/driver/engine/roster.h"
#include "supervisor/driver/engine/service_engine.h"

namespace baton::driver_process::testing {

// They need more than one look to let go of a worker.
class BusyDrivers final : public ShardDrivers {
 public:
  bool heirs_claim() const override { return true; }
  void OnHeir(uint32_t, uint32_t) override {}
  std::string Give(uint32_t, uint32_t) override { return ""; }
  void OnEnded() override {}
  bool Settle() override { return --looks_left < 0; }
  void OnDead(uint32_t) override {}

  int looks_left = 0;
};

class InlineEngine : public ServiceEngine, public Succession {
 public:
  explicit InlineEngine(arena::Arena* arena)
      : ServiceEngine(arena, nullptr, nullptr),
        Succession(arena, nullptr, false),
        roster(roster_) {}

  // An engine that has stopped executes nothing.
  void Run(const std::function<void()>& work) override {
    if (!has_stopped) work();
  }
  std::string_view device_name() const override { return device_info_.name; }
  Succession& succession() override { return *this; }
  const Succession& succession() const override { return *this; }

  uint64_t established_ns(uint32_t) const override { return 0; }
  void AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                 Standing standing) override {
    roster.Add(slot, id, versions, standing);
    wakes_.Add(slot, std::move(wake));
  }
  void SetStanding(uint32_t slot, uint64_t, Standing standing) override {
    roster[slot].standing = standing;
  }
  void AskToStop(uint32_t slot, uint64_t) override { roster.AskToStop(slot); }
  void SetReady(uint32_t slot) override { roster[slot].ready = true; }
  void SetSilent(uint32_t slot, uint64_t, bool silent) override { roster[slot].silent = silent; }
  bool IsReady(uint32_t slot) const override { return roster[slot].ready; }
  bool IsIdle(uint32_t, uint64_t id) const override { return shard_owner.worker_id != id; }
  void Retire(uint32_t slot, uint64_t, bool retired) override { roster[slot].retired = retired; }
  void WorkerEnded(uint32_t slot, uint64_t, std::string_view) override {
    roster[slot].ended = true;
  }
  void PardonDeath(uint32_t, uint64_t) override {}
  void ExplainDeath(uint32_t, uint64_t, std::string_view cause) override {
    explained.emplace_back(cause);
  }
  void WorkerDead(uint32_t slot, uint64_t id) override {
    dead.push_back(id);
    roster.Remove(slot);
    wakes_.Remove(slot);
  }

  void Handoff(uint32_t shard, uint32_t, HandoffDone done) override {
    if (!hands_over) return done(Unsupported(), 0);
    handing_over[shard] = std::move(done);
  }
  void CancelHandoff(uint32_t shard, const absl::Status& why) override {
    ++cancelled;
    if (auto found = handing_over.extract(shard)) found.mapped()(why, 0);
  }
  absl::StatusOr<verbs::Address> Listen(const verbs::Address& address) override {
    if (!listens) return Unsupported();
    return verbs::Address{address.host, static_cast<uint16_t>(7000 + ++listen_calls)};
  }
  absl::StatusOr<uint32_t> Connect(uint32_t, const verbs::Address&, std::string_view,
                                   uint64_t) override {
    return Unsupported();
  }
  uint32_t DisconnectAll(std::string_view) override { return 0; }
  absl::StatusOr<uint32_t> ReserveGrant(uint64_t, uint64_t, uint32_t) override {
    return grants_reserved++;
  }
  absl::StatusOr<uint32_t> ReserveRegion(const driver::GrantRange& range) override {
    regions_reserved.push_back(range);
    return arena::GrantOfRegion(static_cast<uint32_t>(regions_reserved.size()));
  }
  void RegisterGrant(uint32_t, GrantDone done) override { registering.push_back(std::move(done)); }
  void RevokeGrant(uint32_t grant, GrantDone done) override {
    revoked.push_back(grant);
    revoking.push_back(std::move(done));
  }

  void SetGate(driver::ConnectionGate*) override {}
  void SetPostRates(uint32_t of_service, uint32_t of_worker) override {
    post_rates = {of_service, of_worker};
  }
  void SetPoisonDeaths(uint32_t deaths) override { poison_deaths = deaths; }
  driver::ShardCounters counters(uint32_t) const override { return {}; }
  uint32_t connection_count() const override { return connections; }
  uint32_t connections_of(uint32_t) const override { return connections; }
  driver::ObjectCounts device_objects() const override {
    ++object_counts;
    return counts;
  }
  ShardOwner owner(uint32_t) const override { return shard_owner; }

  void set_device_name(const std::string& name) { device_info_.name = name; }

  Roster& roster;
  std::vector<uint64_t> dead;  // worker ids, in their order
  std::vector<std::string> explained;
  ShardOwner shard_owner;  // of every shard
  uint32_t connections = 0;
  driver::ObjectCounts counts;
  uint32_t grants_reserved = 0;
  std::vector<driver::GrantRange> regions_reserved;
  std::vector<GrantDone> registering, revoking;  // for the test to call
  std::vector<uint32_t> revoked;
  mutable uint32_t object_counts = 0;  // how often they were counted
  std::pair<uint32_t, uint32_t> post_rates = {0, 0};
  uint32_t poison_deaths = 0;
  bool has_stopped = false;
  bool listens = false;  // or refuses to
  uint32_t listen_calls = 0, cancelled = 0;
  bool hands_over = false;
  std::map<uint32_t, HandoffDone> handing_over;  // by shard; while hands_over

 private:
  static absl::Status Unsupported() { return absl::UnimplementedError("it has no queues"); }

  driver::DeviceObjects* objects() const override { return &objects_; }

  mutable driver::DeviceObjects objects_;
};

}  // namespace baton::driver_process::testing

#endif  // TESTS_SUPERVISOR_DRIVER_INLINE_ENGINE_H_
