// A service's device for the driver of some of its shards, or of all: queues that the driver's
// process inherited, or has, and a connection manager that `baton-driver` operates for it.
//
// Used with QueueDriver. Thread-compatible: the driver's thread.
#ifndef LIB_NATIVE_NATIVE_DEVICE_H_
#define LIB_NATIVE_NATIVE_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/driver/device_objects.h"
#include "lib/native/queue_pair_pool.h"
#include "lib/verbs/verbs.h"

namespace baton::native {

class NativeConnectionId;
class NativeQueuePair;

class NativeDevice final : public verbs::Device {
 public:
  // The caller keeps all of it alive longer than the device.
  struct Context {
    const arena::Arena* arena = nullptr;
    verbs::Device* device = nullptr;
    QueuePairPool* pool = nullptr;
    // Has the inherited completion queues and regions, made by `device`. NativeDevice fills its
    // connections.
    driver::DeviceObjects* objects = nullptr;
    std::function<void()> wake_driver;           // called after an order was put
    std::function<void(std::string_view)> tell;  // called with messages for operators
    // In the process of the ConnectionManager, which takes the device's events: called in the place
    // of SetError when a connection's queue pair is dropped for good. Null in another process.
    std::function<void(uint32_t shard, uint32_t queue_pair)> destroy = nullptr;
  };
  explicit NativeDevice(Context context);
  ~NativeDevice() override;

  // Called before the driver adopts these shards: restores the device objects of their connections.
  // `connections` includes all that are in these shards.
  void Restore(absl::Span<const uint32_t> shards, absl::Span<const uint32_t> connections);
  // Called after the driver has left the shard.
  void Forget(uint32_t shard);
  // Called when the driver is done with the connection (DriverObserver::OnSlotFree): lets
  // `baton-driver` reuse its slot. Error: the slot stays unused until the shard has another driver.
  absl::Status FreeSlot(uint32_t connection);

  std::string_view name() const override { return device_->name(); }
  verbs::DeviceLimits limits() const override { return device_->limits(); }
  verbs::DeviceInfo info() const override { return device_->info(); }
  // Takes a queue pair from the pool of the shard of `options.send_queue`. The device confirms that
  // it is in INIT. kResourceExhausted: none is free.
  absl::StatusOr<std::unique_ptr<verbs::QueuePair>> CreateQueuePair(
      const verbs::QueuePairOptions& options) override;
  // Returns whether there may be an event of either kind.
  bool HasNotice() const;
  // Returns events of one shard after the other, those restored last first. Passes an event only
  // when the next one is asked for, so the successor of a driver that dies before sees it again.
  bool NextEvent(verbs::CmEvent* event) override;
  // Begins with another shard from now on. Called by who does not take all events, so that the
  // peers of one shard do not hold up the others.
  void ServeAnotherFirst();
  bool NextDeviceEvent(verbs::DeviceEvent* event) override;
  // Waits for the shared receives of ending connections: until the device reports the last
  // one, or their time is over.
  void Progress() override {
    if (awaiting_last_receive_ != 0 && destroy_ == nullptr) device_->Progress();
  }
  // There may be an event of the device that no notice tells of.
  bool awaits_last_receive() const { return awaiting_last_receive_ != 0; }
  int event_fd() const override { return -1; }  // completions use the inherited channels

 private:
  friend class NativeConnectionId;
  friend class NativeQueuePair;

  const arena::ConnectionRecord& record(uint32_t connection) const {
    return arena_->connection(connection);
  }
  absl::Status Order(uint32_t shard, uint32_t connection, uint32_t generation,
                     arena::OrderKind kind);
  bool HoldsOrder(uint32_t shard, uint32_t connection, uint32_t generation,
                  arena::OrderKind kind) const;
  void RestoreConnection(uint32_t shard, uint32_t connection);
  bool IsGivenBack(uint32_t connection) const;
  void Drop(uint32_t connection);
  void DropFormer(uint32_t connection);
  void RestorePool(uint32_t shard, absl::Span<const uint32_t> connections);
  std::unique_ptr<verbs::QueuePair> Hand(uint32_t shard, verbs::QueuePair* inherited);
  void LendQueuePair(uint32_t shard, uint32_t connection);
  void Pass();
  const arena::MailEntry* NextNotice(uint32_t* shard);
  bool ToEvent(uint32_t shard, const arena::MailEntry& entry, verbs::CmEvent* event);
  void SetEnd(const arena::MailEntry& notice, verbs::CmEvent* event) const;
  bool NextToldEvent(verbs::DeviceEvent* event);

  const arena::Arena* arena_;
  verbs::Device* device_;
  QueuePairPool* pool_;
  driver::DeviceObjects* objects_;
  const std::function<void()> wake_driver_;
  const std::function<void(std::string_view)> tell_;
  const std::function<void(uint32_t, uint32_t)> destroy_;
  std::vector<uint32_t> shards_;          // that the driver operates
  std::vector<NativeConnectionId*> ids_;  // by connection; nullptr: it has none
  // By connection with objects here: its shard, as notified. Its record is not trusted, because
  // workers can write it.
  std::vector<uint32_t> shard_of_;
  // By shard: the end of its ring of orders when it was restored. Only before it can an order be
  // that this driver is about to repeat.
  std::vector<uint64_t> orders_inherited_;
  absl::flat_hash_set<NativeQueuePair*> queue_pairs_;
  uint32_t awaiting_last_receive_ = 0;  // of them
  arena::MailEntry notice_ = {};
  int given_from_ = -1;  // shard whose notice was returned and is not passed; -1: none
};

}  // namespace baton::native

#endif  // LIB_NATIVE_NATIVE_DEVICE_H_
