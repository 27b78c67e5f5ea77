// What all objects of one soft device share.
#ifndef LIB_VERBS_SOFT_DEVICE_CORE_H_
#define LIB_VERBS_SOFT_DEVICE_CORE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "lib/verbs/soft/connection_core.h"
#include "lib/verbs/soft/memory_table.h"
#include "lib/verbs/soft/queue_pair.h"

namespace baton::verbs::soft {

struct DeviceCore final : ConnectionCore {
  // `device_options` outlive it.
  DeviceCore(const SoftDeviceOptions* device_options, uint64_t seed,
             std::unique_ptr<Engine> device_engine)
      : ConnectionCore(device_options, device_engine.get()),
        owned_engine(std::move(device_engine)),
        memory(seed) {}
  ~DeviceCore() override;

  void PushEvent(CmEvent event) override {
    events.push_back(std::move(event));
    engine->AddPending(1);
  }
  void ForgetEventsOf(const SoftConnection* id) override;
  void ForgetEventsOf(const Listener* listener) override;

  const std::unique_ptr<Engine> owned_engine;
  MemoryTable memory;
  std::deque<CmEvent> events;
  QueuePairNumbers queue_pair_numbers;
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_DEVICE_CORE_H_
