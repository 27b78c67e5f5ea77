// The only driver of a service, in the process of its connection manager: that of a brokered
// service. It can be followed by another one, as a native driver can.
//
// Thread-compatible: the driver's thread.
#ifndef LIB_NATIVE_LOCAL_DRIVER_H_
#define LIB_NATIVE_LOCAL_DRIVER_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/connection_manager.h"
#include "lib/native/native_device.h"
#include "lib/verbs/verbs.h"

namespace baton::native {

// Is not told of free slots.
class LocalObserver : public driver::DriverObserver {
 public:
  // See ConnectionObserver.
  virtual void OnDeviceEvent(const verbs::DeviceEvent& /*event*/, uint32_t /*connection*/) {}
};

class LocalDriver final : private driver::DriverObserver, private ConnectionObserver {
 public:
  // Registers the buffers, creates a completion queue per shard, and operates all shards. The
  // caller keeps all of it alive longer than the driver.
  static absl::StatusOr<std::unique_ptr<LocalDriver>> Create(arena::Arena* arena,
                                                             verbs::Device* device,
                                                             LocalObserver* observer);
  ~LocalDriver() override;

  driver::QueueDriver& driver() { return *driver_; }
  const driver::QueueDriver& driver() const { return *driver_; }
  ConnectionManager& manager() { return *manager_; }
  const ConnectionManager& manager() const { return *manager_; }
  driver::DeviceObjects* objects() const { return manager_->objects().get(); }

  // Has the connection manager handle the device's events. Returns whether there were any. The
  // driver's orders are carried out when it gives them.
  bool TurnManager() {
    if (noticed_) device_->ServeAnotherFirst();
    return manager_->Turn(/*ordered=*/false);
  }
  // Returns true while the driver's order is carried out. A driver that is killed for a test does
  // not die in here, because the manager would be in another process.
  bool is_carrying_out() const { return carrying_out_; }
  // Handles one notice of the connection manager. Returns false if there is none. Sets `*shard` to
  // the shard whose completion log got an entry, or kNoShard.
  bool HandleNotice(uint32_t* shard) {
    if (!noticed_) return false;
    noticed_ = driver_->HandleEvent(shard) || driver_->HandleDeviceEvent(shard);
    return noticed_;
  }

  // Returns a successor of the driver, which is dead. It has adopted all shards. Follow() puts it
  // in the driver's place. It may be killed in this call; then this is called again.
  absl::StatusOr<std::unique_ptr<driver::QueueDriver>> MakeSuccessor();
  void Follow(std::unique_ptr<driver::QueueDriver> successor) { driver_ = std::move(successor); }

 private:
  LocalDriver(arena::Arena* arena, verbs::Device* device, LocalObserver* observer)
      : arena_(arena), real_device_(device), observer_(observer) {}

  void OnConnectionState(uint32_t connection, std::string_view what) override {
    observer_->OnConnectionState(connection, what);
  }
  void OnRefusedConnection(std::string_view why) override { observer_->OnRefusedConnection(why); }
  void OnSlotFree(uint32_t connection) override;
  template <typename Work>
  void CarryOut(const Work& work);
  void OnSettled(uint32_t connection, bool receive, uint64_t end) override {
    observer_->OnSettled(connection, receive, end);
  }
  void OnFree(uint32_t /*connection*/) override {}
  void OnDeviceEvent(const verbs::DeviceEvent& event, uint32_t connection) override {
    observer_->OnDeviceEvent(event, connection);
  }

  arena::Arena* const arena_;
  verbs::Device* const real_device_;
  LocalObserver* const observer_;
  std::unique_ptr<ConnectionManager> manager_;
  std::unique_ptr<NativeDevice> device_;  // the driver's
  std::unique_ptr<driver::QueueDriver> driver_;
  bool noticed_ = true;  // the driver may have notices
  bool carrying_out_ = false;
};

}  // namespace baton::native

#endif  // LIB_NATIVE_LOCAL_DRIVER_H_
