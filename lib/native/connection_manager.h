// The keeper's part of a native service: what only the process that opened the device can do, for
// drivers in processes that were forked from it. It makes the device's objects, gives connections
// their slots and shards, and speaks to the connection manager in the name of their drivers.
//
// Thread-compatible: the keeper's thread.
#ifndef LIB_NATIVE_CONNECTION_MANAGER_H_
#define LIB_NATIVE_CONNECTION_MANAGER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/connection_gate.h"
#include "lib/driver/device_objects.h"
#include "lib/native/queue_pair_pool.h"
#include "lib/verbs/verbs.h"

namespace baton::native {

// Told what operators should know.
class ConnectionObserver {
 public:
  virtual ~ConnectionObserver() = default;
  // The connection has ended, and its slot is about to serve another one. Its record is whole.
  virtual void OnFree(uint32_t connection) = 0;
  virtual void OnRefusedConnection(std::string_view why) = 0;
  virtual void OnDeviceEvent(const verbs::DeviceEvent& event) = 0;
};

class ConnectionManager {
 public:
  // `arena`, of a native service, and `device` outlive it. `wake_driver` is called when there is a
  // notice for the shard.
  static absl::StatusOr<std::unique_ptr<ConnectionManager>> Create(
      arena::Arena* arena, verbs::Device* device, ConnectionObserver* observer,
      std::function<void(uint32_t shard)> wake_driver);
  ~ConnectionManager();

  // What drivers inherit.
  const std::shared_ptr<driver::DeviceObjects>& objects() const { return objects_; }
  const QueuePairPool& pool() const { return pool_; }

  absl::StatusOr<verbs::Address> Listen(const verbs::Address& address) {
    return driver::ListenOnce(device_, objects_.get(), address);
  }
  // Starts connecting, in a new slot of `shard`, with a queue pair of the shard's pool. Returns the
  // slot, which the shard's driver has been told of. kResourceExhausted names the limit;
  // kUnavailable: there is no room to tell the driver.
  absl::StatusOr<uint32_t> Connect(uint32_t shard, const verbs::Address& address,
                                   std::string_view private_data, uint64_t tag);
  // As QueueDriver's.
  uint32_t DisconnectAll(std::string_view why);

  uint32_t connection_count() const {
    return static_cast<uint32_t>(connections_.size() - free_.size());
  }
  uint32_t connections_of(uint32_t shard) const { return used_[shard]; }
  // As QueueDriver's.
  void SetGate(driver::ConnectionGate* gate) { gate_ = gate; }
  // The queue pairs are those of the pool.
  driver::ObjectCounts Count() const;

  // Everything that the device and the drivers have to say; returns whether there was something.
  // Bounded: more waits for the next call. Call it when the device's event_fd is readable, and when
  // a driver has woken us.
  bool Turn();

 private:
  // kAccepted: by us, or by a peer that we connect to.
  enum class Phase : uint8_t { kNone, kRequested, kConnecting, kAccepted, kEnded };
  struct Connection {
    Phase phase = Phase::kNone;
    uint32_t generation = 0;
    uint32_t shard = 0;
    uint32_t first_shard = 0;                                         // where it was requested
    verbs::CompletionStatus end = verbs::CompletionStatus::kSuccess;  // of kEnded, when it was told
    int pooled = -1;  // place of its queue pair in the pool of `pooled_shard`, once it has one
    uint32_t pooled_shard = 0;
    std::unique_ptr<verbs::ConnectionId> id;
  };
  // A slot whose request takes room in the log of another shard than its last.
  struct Held {
    uint32_t connection;
    uint32_t shard;
    uint64_t acknowledged;  // it serves again when so much is, there
  };
  // Of a connection whose slot serves again.
  struct Spent {
    uint32_t shard;
    uint32_t place;
    uint64_t not_before_ns;  // MonotonicNanoseconds()
  };

  ConnectionManager(arena::Arena* arena, verbs::Device* device, ConnectionObserver* observer,
                    std::function<void(uint32_t shard)> wake_driver);
  absl::Status FillPool();

  bool HandleEvent();
  void OnRequest(verbs::CmEvent& event);
  uint32_t GiveSlot(uint32_t shard, Phase phase, arena::ConnectionRecord fresh,
                    std::unique_ptr<verbs::ConnectionId> id);
  absl::Status CheckHears(uint32_t shard) const;
  absl::Status CheckCanConnect(uint32_t shard);
  void OnEvent(uint32_t connection, const verbs::CmEvent& event);
  void OnEstablished(uint32_t connection, const verbs::CmEvent& event);
  verbs::QueuePair* QueuePairOf(const Connection& connection) const;
  int Occupy(uint32_t shard, uint32_t number);
  bool HandleDeviceEvent();
  uint32_t SharingShard(const verbs::DeviceEvent& event) const;
  void OnSharedReceiveQueueFailed(uint32_t shard, std::string_view why);
  void ArmLimits();
  bool HandleOrder(uint32_t shard);
  void FollowMove(uint32_t connection, uint32_t shard);
  void Accept(uint32_t connection);
  void Reject(uint32_t connection);
  void Disconnect(uint32_t connection);
  void Free(uint32_t connection);
  void SpendNeverConnected(uint32_t connection);
  bool IsClaimedByAnother(uint32_t connection, uint32_t number) const;
  void SpendForgotten();
  void StoreState(const Spent& spent, arena::PooledState state);
  bool RenewQueuePairs();
  bool GiveHeldSlots();

  void Tell(uint32_t connection, arena::NoticeKind kind,
            verbs::CompletionStatus status = verbs::CompletionStatus::kSuccess,
            std::string_view reason = {});
  bool SendWaiting(uint32_t shard);
  void DropWaiting(uint32_t shard);
  std::string AnswerOf(uint32_t connection) const;
  uint32_t LeastUsedShard() const;
  uint32_t FindQueuePair(uint32_t number) const;

  arena::Arena* arena_;
  verbs::Device* device_;
  ConnectionObserver* observer_;
  driver::ConnectionGate* gate_ = nullptr;
  const std::function<void(uint32_t)> wake_driver_;
  std::shared_ptr<driver::DeviceObjects> objects_;
  QueuePairPool pool_;
  // By shard and place: a connection has it, or had it and it is not new yet. What the arena says
  // of queue pairs, workers can write.
  std::vector<std::vector<bool>> occupied_;
  std::vector<Connection> connections_;
  std::vector<uint32_t> used_;  // connections, by shard
  std::deque<uint32_t> free_;   // connections
  std::vector<Held> held_;
  std::deque<Spent> spent_;  // oldest first
  bool freed_ = false;       // connections, in this turn
  // When operators were told that a shard's shared receives are low, and the limit is to be armed
  // again; MonotonicNanoseconds(), 0: it is the driver's to arm, or armed.
  std::vector<uint64_t> low_ns_;
  // Notices that the ring had no room for, by shard: at most kMostWaiting for each connection.
  std::vector<std::deque<arena::MailEntry>> waiting_;
};

}  // namespace baton::native

#endif  // LIB_NATIVE_CONNECTION_MANAGER_H_
