// The device of a native service as the driver of some of its shards sees it: queues that the
// driver's process inherited, and a connection manager that the keeper operates for it.
//
// For QueueDriver::Attach. Thread-compatible: the driver's thread.
#ifndef LIB_NATIVE_NATIVE_DEVICE_H_
#define LIB_NATIVE_NATIVE_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
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
  // `objects` has the completion queues and regions that were inherited; its connections are filled
  // here. `device` is the one that made them, `wake_keeper` is called when there is an order,
  // `tell` with what operators should know. All outlive this.
  NativeDevice(const arena::Arena* arena, verbs::Device* device, const QueuePairPool* pool,
               driver::DeviceObjects* objects, std::function<void()> wake_keeper,
               std::function<void(std::string_view)> tell);
  ~NativeDevice() override;

  // Before the driver adopts these shards: what their connections have at the device.
  // `connections`: all that are in these shards, and maybe others.
  void Restore(absl::Span<const uint32_t> shards, absl::Span<const uint32_t> connections);
  // After it has left one.
  void Forget(uint32_t shard);
  // The driver's word that it is done with the connection: the keeper may give its slot to another
  // (DriverObserver::OnSlotFree). An error: it stays out of use until the shard has another driver.
  absl::Status FreeSlot(uint32_t connection);

  std::string_view name() const override { return device_->name(); }
  verbs::DeviceLimits limits() const override { return device_->limits(); }
  verbs::DeviceInfo info() const override { return device_->info(); }
  // One of the pool of the shard that `options.send_queue` belongs to, which the device says is as
  // the pool keeps them. kResourceExhausted: none is free.
  absl::StatusOr<std::unique_ptr<verbs::QueuePair>> CreateQueuePair(
      const verbs::QueuePairOptions& options) override;
  // There may be an event, or one of the device.
  bool HasNotice() const;
  // One of `shards` that Restore was given, in turn. An event is passed when the next is asked for:
  // a driver that dies before leaves it to its successor.
  bool NextEvent(verbs::CmEvent* event) override;
  bool NextDeviceEvent(verbs::DeviceEvent* event) override;
  // Of connections that end, with shared receives: the device's word that it is done with them, or
  // the time until it is.
  void Progress() override {
    if (draining_ != 0) device_->Progress();
  }
  int event_fd() const override { return -1; }  // of completions: the inherited channels

  // The keeper's: kUnimplemented.
  absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> RegisterMemory(void*, size_t,
                                                                      uint32_t) override;
  absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> CreateCompletionQueue(uint32_t) override;
  absl::StatusOr<std::unique_ptr<verbs::Listener>> Listen(const verbs::Address&, int) override;
  absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> Connect(
      const verbs::Address&, verbs::QueuePair*, const verbs::ConnectionParameters&) override;

 private:
  friend class NativeConnectionId;
  friend class NativeQueuePair;

  const arena::ConnectionRecord& record(uint32_t connection) const {
    return arena_->connection(connection);
  }
  absl::Status Order(uint32_t shard, uint32_t connection, uint32_t generation,
                     arena::OrderKind kind);
  void RestoreConnection(uint32_t shard, uint32_t connection);
  bool IsGivenBack(uint32_t connection) const;
  void RestorePool(uint32_t shard, absl::Span<const uint32_t> connections);
  std::unique_ptr<verbs::QueuePair> Hand(uint32_t shard, verbs::QueuePair* inherited);
  void LendQueuePair(uint32_t shard, uint32_t connection);
  void Pass();
  const arena::MailEntry* NextNotice(uint32_t* shard);
  bool ToEvent(uint32_t shard, const arena::MailEntry& entry, verbs::CmEvent* event);
  bool NextToldEvent(verbs::DeviceEvent* event);

  const arena::Arena* arena_;
  verbs::Device* device_;
  const QueuePairPool* pool_;
  driver::DeviceObjects* objects_;
  const std::function<void()> wake_keeper_;
  const std::function<void(std::string_view)> tell_;
  std::vector<uint32_t> shards_;          // that are operated
  std::vector<NativeConnectionId*> ids_;  // by connection; nullptr: it has none
  // By connection: whose it is, as we were told and not as its record says, which workers can
  // write. Of one that we have something of.
  std::vector<uint32_t> shard_of_;
  absl::flat_hash_set<NativeQueuePair*> queue_pairs_;
  uint32_t draining_ = 0;  // of them
  arena::MailEntry notice_ = {};
  int given_from_ = -1;  // shard whose notice was given, and is not passed
};

}  // namespace baton::native

#endif  // LIB_NATIVE_NATIVE_DEVICE_H_
