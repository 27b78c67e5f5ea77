// `baton-driver`'s part of a service's connections. Only the process that opened the device can
// create objects and use the connection manager, so `baton-driver` does both for the shards'
// drivers, which are forked processes, or for a device that forks cannot use in the same process
// (LocalDriver). It also assigns slots and shards to connections.
//
// Thread-compatible: `baton-driver`'s thread.
#ifndef LIB_NATIVE_CONNECTION_MANAGER_H_
#define LIB_NATIVE_CONNECTION_MANAGER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/device_objects.h"
#include "lib/native/connection_table.h"
#include "lib/native/queue_pair_pool.h"
#include "lib/verbs/verbs.h"

namespace baton::native {

// Receives events for operators.
class ConnectionObserver {
 public:
  virtual ~ConnectionObserver() = default;
  // The connection has ended, and its slot is about to be reused. Its record is still complete.
  virtual void OnFree(uint32_t connection) = 0;
  virtual void OnRefusedConnection(std::string_view why) = 0;
  // `connection`: the one that the event is about, or DriverObserver::kNoConnection.
  virtual void OnDeviceEvent(const verbs::DeviceEvent& event, uint32_t connection) = 0;
};

// When queue pairs are made: a forked process cannot use one that was made after the fork.
enum class Pools { kOnDemand, kInAdvance };

class ConnectionManager {
 public:
  // The caller keeps `arena` and `device` alive longer than the manager, which calls `wake_driver`
  // when it has put a notice for the shard.
  static absl::StatusOr<std::unique_ptr<ConnectionManager>> Create(
      arena::Arena* arena, verbs::Device* device, ConnectionObserver* observer, Pools pools,
      std::function<void(uint32_t shard)> wake_driver);
  ~ConnectionManager();

  // The objects that drivers inherit.
  const std::shared_ptr<driver::DeviceObjects>& objects() const { return objects_; }
  QueuePairPool& pool() { return pool_; }
  const QueuePairPool& pool() const { return pool_; }

  // Starts connecting in a new slot of `shard`, with a queue pair of the shard's pool, and notifies
  // the shard's driver. Returns the slot. kResourceExhausted names the limit. kUnavailable: there
  // is no room for the notice.
  absl::StatusOr<uint32_t> Connect(uint32_t shard, const verbs::Address& address,
                                   std::string_view private_data, uint64_t tag);
  // The next Connect() is for this request. Returns the connection that was begun for it, if there
  // is one: who follows a dead `baton-driver` may get the request again.
  std::optional<uint32_t> BeginFor(const Asker& asker);
  // See QueueDriver::DisconnectAll.
  uint32_t DisconnectAll(std::string_view why);

  // The table, for SetInherited().
  ConnectionTable& table() { return table_; }
  // Called in a process that shares the table, was forked from the one that had the manager, and
  // goes on in its place after its death. Device::TakeOver() has been called. Repeats what was
  // begun, and ends what only the dead process knew.
  absl::Status TakeOver();

  uint32_t connection_count() const {
    return static_cast<uint32_t>(connections_.size() - free_.size());
  }
  uint32_t connections_of(uint32_t shard) const { return used_[shard]; }
  // MonotonicNanoseconds() when the connection in the slot was established; 0: it was not.
  uint64_t established_ns(uint32_t connection) const {
    return connections_[connection].established_ns;
  }
  // See QueueDriver::SetGate.
  void SetGate(driver::ConnectionGate* gate) { gate_ = gate; }
  // Counts the pool's queue pairs, but for those of brokers that wait for a connection.
  driver::ObjectCounts Count() const;

  // Handles events of the device and orders of the drivers. Returns whether there were any.
  // Bounded: the rest waits for the next call. The caller calls it when the device's event_fd is
  // readable, and when a driver has woken it. `ordered`: a driver may have put an order.
  bool Turn(bool ordered = true);
  // Carries out the drivers' orders at once. Called by a driver's device in the same process.
  void CarryOutOrders();
  // Destroys a queue pair that was made on demand, and the connection's id, if it has one.
  void DestroyQueuePair(uint32_t shard, uint32_t number);

 private:
  static constexpr uint32_t kOutOfUse = ~0u;
  using Connection = ManagedSlot;
  // A slot that is not free yet: its request is still in the log of another shard than its last.
  struct Unfreed {
    uint32_t connection;
    uint32_t shard;
    uint64_t acknowledged;  // the slot is free once that shard has acknowledged so much
  };
  // The queue pair of a connection whose slot is free again.
  struct Spent {
    uint32_t shard;
    uint32_t place;
    uint64_t not_before_ns;  // MonotonicNanoseconds()
  };

  ConnectionManager(arena::Arena* arena, verbs::Device* device, ConnectionObserver* observer,
                    std::function<void(uint32_t shard)> wake_driver, ConnectionTable table);
  absl::Status FillPool(Pools pools);

  bool TurnShards();
  void OnEvent(verbs::CmEvent event);
  void OnRequest(verbs::CmEvent& event);
  uint32_t GiveSlot(uint32_t shard, Phase phase, arena::ConnectionRecord fresh,
                    std::unique_ptr<verbs::ConnectionId> id);
  bool IsUsed(uint32_t connection) const {
    const Phase phase = connections_[connection].phase();
    return phase != Phase::kNone && phase != Phase::kUnfreed;
  }
  absl::Status CheckHears(uint32_t shard) const;
  absl::Status CheckReceives(uint32_t shard) const;
  absl::Status CheckCanConnect(uint32_t shard);
  void OnEvent(uint32_t connection, const verbs::CmEvent& event);
  void OnEstablished(uint32_t connection, const verbs::CmEvent& event);
  verbs::QueuePair* QueuePairOf(const Connection& connection) const;
  int Occupy(uint32_t connection, uint32_t shard, uint32_t number);
  void OnDeviceEvent(verbs::DeviceEvent event);
  void OnSharedReceiveQueueFailed(uint32_t shard, std::string_view why);
  void ArmLimits();
  bool HandleOrder(uint32_t shard);
  void FollowMove(uint32_t connection, uint32_t shard);
  void Accept(uint32_t connection);
  void Reject(uint32_t connection);
  void Disconnect(uint32_t connection);
  void Free(uint32_t connection);
  void DestroyId(uint32_t connection);
  void GiveBack(uint32_t shard, uint32_t place);
  void Spend(uint32_t shard, uint32_t place, bool rests);
  void SpendNeverConnected(uint32_t connection, bool rests);
  void SpendForgotten();
  void StoreState(const Spent& spent, arena::PooledState state);
  uint64_t& RestedNs(uint32_t shard, uint32_t place) const {
    return table_.rested_ns[size_t{shard} * arena::PooledQueuePairs(arena_->shape()) + place];
  }
  bool RenewQueuePairs();
  bool Renew(const Spent& spent);
  bool FreeSlots();

  void Tell(uint32_t connection, arena::NoticeKind kind,
            verbs::CompletionStatus status = verbs::CompletionStatus::kSuccess,
            std::string_view reason = {});
  void Owe(uint32_t connection, arena::NoticeKind kind,
           verbs::CompletionStatus status = verbs::CompletionStatus::kSuccess,
           std::string_view reason = {});
  bool SendWaiting(uint32_t shard);
  void DropWaiting(uint32_t shard);
  std::string AnswerOf(uint32_t connection) const;
  uint32_t LeastUsedShard() const;
  uint32_t FindQueuePair(uint32_t number) const;
  uint32_t FindNaming(uint32_t number, uint32_t except) const;

  // Parts of TakeOver().
  void ForgetFormer();
  absl::Status TakeOverSlot(uint32_t connection);
  absl::Status AdoptId(uint32_t connection);
  void TellOwed(uint32_t connection);
  void TakeOverPool(uint32_t shard);

  arena::Arena* arena_;
  verbs::Device* device_;
  ConnectionObserver* observer_;
  driver::ConnectionGate* gate_ = nullptr;
  const std::function<void(uint32_t)> wake_driver_;
  std::shared_ptr<driver::DeviceObjects> objects_;
  QueuePairPool pool_;
  // By shard and place: the connection + 1 that has the queue pair, or had it and it is not reset
  // yet; 0: none; kOutOfUse: it is not reset yet, whoever had it. The arena's word is not trusted,
  // because workers can write it.
  std::vector<std::vector<uint32_t>> occupied_;
  ConnectionTable table_;
  SharedArray<ManagedSlot>& connections_ = table_.slots;
  std::vector<std::unique_ptr<verbs::ConnectionId>> ids_;  // by connection
  Asker asker_;                                            // of the next Connect()
  std::vector<uint32_t> used_;                             // connections, by shard
  std::deque<uint32_t> free_;                              // connections
  std::vector<Unfreed> unfreed_;
  std::deque<Spent> spent_;        // in the order in which they are made new
  std::vector<uint32_t> resting_;  // queue pairs in spent_ or out of use, by shard
  verbs::CmEvent event_;           // empty; here, because to make one in each turn would take time
  verbs::DeviceEvent device_event_;  // likewise
  bool freed_ = false;               // connections, in this turn
  // There may be something to do that comes neither from the device nor from a driver.
  bool pending_ = true;
  // MonotonicNanoseconds() when low shared receives of a shard were reported and the limit has to
  // be armed again; 0: it is armed, or the driver arms it.
  std::vector<uint64_t> low_ns_;
  // Notices that found the ring full, by shard: at most kMostWaiting for each connection.
  std::vector<std::deque<arena::MailEntry>> waiting_;
};

}  // namespace baton::native

#endif  // LIB_NATIVE_CONNECTION_MANAGER_H_
