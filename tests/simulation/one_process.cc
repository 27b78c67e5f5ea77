#include <memory>
#include <utility>

#include "tests/simulation/killed_queue_driver.h"
#include "tests/simulation/service_drivers.h"

namespace baton::simulation {
namespace {

using driver_process::Engine;

class EngineProcess final : public ServiceDrivers {
 public:
  explicit EngineProcess(const ServiceParts& parts) : parts_(parts) {
    driver_process::EngineOptions options = parts.options;
    options.wrap_driver = [this](native::LocalDriver* local) {
      auto mortal = std::make_unique<KilledQueueDriver>(local, parts_.context, parts_.device,
                                                        parts_.arena, parts_.mortality);
      driver_ = mortal.get();
      local->Follow(std::move(mortal));
    };
    options.outlive = [this](const auto& work, const auto& go_on) {
      driver_->Outlive(work, go_on);
    };
    engine_ = Engine::Create(parts.arena, parts.device, parts.listener, options).value();
  }

  driver_process::ServiceEngine& engine() override { return *engine_; }
  void Post(std::function<void()> work) override { engine_->Post(std::move(work)); }
  bool is_busy() const override { return busy_; }

  void Run() override {
    if (busy_) return;
    busy_ = true;
    TurnOrSleep(parts_.context, parts_.device->signalled(), engine_.get(), &asleep_);
    busy_ = false;
  }

  absl::StatusOr<uint32_t> Connect(uint32_t shard, std::string_view private_data,
                                   uint64_t tag) override {
    busy_ = true;  // it does nothing else meanwhile
    auto connection = engine_->Connect(shard, {"10.0.0.2", 1}, private_data, tag);
    busy_ = false;
    return connection;
  }
  absl::Status CheckPlace(uint32_t slot) override { return engine_->CheckPlace(slot); }
  void OnHostPoint(std::string_view) override {}
  bool NoteDeath(uint32_t, uint64_t) override { return false; }

  void Immortal() override { driver_->Immortal(); }
  uint64_t deaths() const override { return driver_->deaths(); }
  driver::RecoveryCounters recovered() const override { return driver_->recovered(); }

 private:
  const ServiceParts parts_;
  KilledQueueDriver* driver_ = nullptr;
  std::unique_ptr<Engine> engine_;
  bool busy_ = false, asleep_ = false;
};

}  // namespace

std::unique_ptr<ServiceDrivers> OneProcess(const ServiceParts& parts) {
  return std::make_unique<EngineProcess>(parts);
}

}  // namespace baton::simulation
