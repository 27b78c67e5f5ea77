// The engine of a brokered service whose queues are driven by brokers, in processes of their own.
//
// Thread-compatible: the driver process's one thread.
#ifndef SUPERVISOR_DRIVER_BROKER_BROKERED_ENGINE_H_
#define SUPERVISOR_DRIVER_BROKER_BROKERED_ENGINE_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/broker/broker_board.h"
#include "supervisor/driver/broker/broker_process.h"
#include "supervisor/driver/broker/brokers.h"
#include "supervisor/driver/engine/engine.h"
#include "supervisor/driver/engine/host_engine.h"
#include "supervisor/driver/engine/shard_drivers.h"

namespace baton::driver_process {

class BrokeredEngine final : public HostEngine, private ShardDrivers {
 public:
  // `arena`, `device` and `listener` outlive it. Makes everything that brokers inherit.
  static absl::StatusOr<std::unique_ptr<BrokeredEngine>> Create(arena::Arena* arena,
                                                                verbs::Device* device,
                                                                EngineListener* listener,
                                                                const EngineOptions& options,
                                                                std::unique_ptr<BrokerForks> forks);
  ~BrokeredEngine() override;

  // Forks the brokers. If that fails, the device is reported as lost.
  void Start() override;
  void Turn() override;
  std::vector<int> descriptors() const override;
  absl::Status TakeOver() override;
  bool TakeForksChanged() override { return brokers_.TakeChanged(); }
  // Kills a broker that hangs, and reports it. The caller calls this every kHeartbeat.
  void Beat();

  absl::StatusOr<uint32_t> Connect(uint32_t shard, const verbs::Address& address,
                                   std::string_view private_data, uint64_t tag) override;

  absl::Status CheckPlace(uint32_t slot) override;
  void AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                 Standing standing) override;
  void WatchWorker(uint32_t slot, uint64_t id, pid_t process) override;
  void ForgetWorker(uint32_t slot) override;

  void SetPostRates(uint32_t of_service, uint32_t of_worker) override;
  void SetPoisonDeaths(uint32_t deaths) override;
  std::optional<EngineLoad> load() override;

  pid_t broker() const override { return brokers_.driver(); }
  pid_t twin() const override { return brokers_.twin(); }
  std::string driver_code_release() const override { return brokers_.release(); }
  std::string driver_code_given_up() const override { return brokers_.code_given_up(); }
  absl::Status ReplaceDriverCode(std::chrono::milliseconds probation) override {
    return brokers_.Replace(probation);
  }

 private:
  BrokeredEngine(arena::Arena* arena, verbs::Device* device, EngineListener* listener,
                 const EngineOptions& options, SharedBoard board,
                 std::unique_ptr<BrokerForks> forks);

  BrokerInheritance InheritanceOfBroker();
  uint64_t Tell();
  bool Settle() override;
  void LookForEnd();

  void WakeDriver(uint32_t /*shard*/) override { Tell(); }
  void OnLost(const absl::Status& why) override;

  // ShardDrivers
  bool heirs_claim() const override { return false; }
  void OnHeir(uint32_t, uint32_t) override {}
  std::string Give(uint32_t shard, uint32_t slot) override;
  void OnEnded() override { (void)Settle(); }
  void OnDead(uint32_t slot) override;

  const EngineOptions options_;
  const SharedBoard board_;
  FileDescriptor broker_wake_;              // eventfd, of all brokers
  std::vector<WatchedWorker> watched_;      // by slot
  uint64_t looked_ = 0;                     // value of BrokerBoard::changes at the last look
  std::optional<uint64_t> waited_in_vain_;  // Settle(), at that value of BrokerBoard::seen
  uint64_t give_up_ns_ = 0;                 // the device is lost, and brokers have time until then
  bool awaits_reason_ = false;              // of the loss, from the device
  bool told_lost_ = false;
  Brokers brokers_;  // last: forks inherit the others
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_BROKER_BROKERED_ENGINE_H_
