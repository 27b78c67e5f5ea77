// A broker: a process, forked from `baton-driver`, that drives the queues of a brokered service.
// There are two. One drives, and the other one, its twin, waits for its death to go on.
#ifndef SUPERVISOR_DRIVER_BROKER_BROKER_PROCESS_H_
#define SUPERVISOR_DRIVER_BROKER_BROKER_PROCESS_H_

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/arena/arena.h"
#include "lib/driver/device_objects.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/native_device.h"
#include "lib/native/queue_pair_pool.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/broker/broker_board.h"
#include "supervisor/driver/engine/broker.h"
#include "supervisor/driver/engine/death_watcher.h"
#include "supervisor/driver/engine/engine.h"
#include "supervisor/driver/engine/engine_listener.h"
#include "supervisor/driver/engine/turn_loop.h"
#include "supervisor/driver/engine/worker_wakes.h"

namespace baton::driver_process {

struct WatchedWorker {
  uint64_t id = 0;  // 0: none
  pid_t process = 0;
};

// The objects and settings that a broker inherits from `baton-driver`. The pointers are to the
// broker's own copies.
struct BrokerInheritance {
  arena::Arena* arena = nullptr;
  verbs::Device* device = nullptr;
  native::QueuePairPool* pool = nullptr;
  std::shared_ptr<driver::DeviceObjects> objects;
  BrokerBoard* board = nullptr;
  WorkerWakes* wakes = nullptr;        // of the workers at the fork
  std::vector<WatchedWorker> watched;  // by slot, at the fork
  int messages = -1;                   // see BrokerMessage
  int wake = -1;                       // eventfd: there is something new on the board
  int host_wake = -1;                  // eventfd: there are orders, or something new on the board
  int news = -1;                       // see NewsLine
  int lifeline = -1;                   // reading end (lifeline.h); in the broker, its own one
  pid_t self = 0;                      // of the broker
  uint32_t place = 0;                  // on the board
  bool watch_deaths = true;            // false: the broker's creator calls NoteDeath()
  // Ends the process, which is between two turns (BrokerBoard::leaves).
  std::function<void()> leave = [] { _exit(0); };
  EngineOptions options;
};

// Thread-compatible: the broker's main thread. One thread of its own waits for deaths of workers.
class BrokerProcess final : private driver::DriverObserver, private EngineListener {
 public:
  explicit BrokerProcess(BrokerInheritance inheritance);
  ~BrokerProcess() override;

  // Waits until no other broker drives, and then drives. Returns only with an error.
  absl::Status Run();

  // ---- The rest is for Run(). A simulation drives a broker with these instead.

  // No other broker drives. One that is killed in this call is followed by another one, which
  // repeats it.
  absl::Status TakeOver();
  // The threads of the worker in the slot have ended. Any thread.
  void NoteDeath(uint32_t slot, uint64_t worker_id);

  // See TurnLoop.

  bool Turn();
  bool TurnShards();
  bool HasPosted() const {
    return board().told.load(std::memory_order_relaxed) != seen_ ||
           has_dead_.load(std::memory_order_relaxed);
  }
  int LongestSleepMs() { return broker_.LongestSleepMs(); }
  uint32_t shard_count() const { return arena().shape().shards; }
  bool BeginSleep();
  // Waits for a signal. Returns false if none came within `timeout_ms` (-1: waits for ever).
  bool AwaitSignal(int timeout_ms);
  void EndSleep();

 private:
  void StartWatcher();
  void Watch(uint32_t slot, const WatchedWorker& worker);
  bool LookAtBoard();
  void ReadMessages();
  void EndIfUnknown() const;
  void NoteSettings();
  bool TakeFromDead();
  bool HandleNotices();
  bool HandleNotices(uint32_t most);
  void ContinueLoss();
  void TellChanges();
  void WakeHost() const;
  void Tell(std::string_view kind, std::string_view message, uint64_t worker_id = 0, int shard = -1,
            int connection = -1) const;

  void OnConnectionState(uint32_t connection, std::string_view what) override;
  void OnRefusedConnection(std::string_view why) override;
  void OnSlotFree(uint32_t connection) override;
  void OnSettled(uint32_t connection, bool receive, uint64_t end) override;

  void OnEvent(std::string_view kind, const std::string& message, uint64_t worker_id, int shard,
               int connection) override {
    Tell(kind, message, worker_id, shard, connection);
  }
  void OnFenced(uint64_t) override {}                 // `baton-driver` sees it in the arena
  void OnDeviceLost(const absl::Status&) override {}  // the board says so

  arena::Arena& arena() const { return *inheritance_.arena; }
  BrokerBoard& board() const { return *inheritance_.board; }
  WorkerWakes& wakes() const { return *inheritance_.wakes; }

  BrokerInheritance inheritance_;
  std::unique_ptr<native::NativeDevice> device_;
  std::unique_ptr<driver::QueueDriver> driver_;
  Broker broker_;
  uint64_t seen_ = ~uint64_t{0};  // value of BrokerBoard::told of which all is carried out
  std::pair<uint32_t, uint32_t> post_rates_;  // in force: of the service, of a worker
  bool drives_ = false;
  bool noticed_ = true;  // the driver may have notices
  bool slept_ = true;    // the device's descriptors may be readable
  const std::atomic<bool> never_{false};
  // The watcher's thread stores them: by slot, the worker that is dead; 0: none.
  std::array<std::atomic<uint64_t>, arena::kMaxWorkers> dead_ = {};
  std::atomic<bool> has_dead_{false};
  std::optional<DeathWatcher> watcher_;  // last: its thread uses the others
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_BROKER_BROKER_PROCESS_H_
