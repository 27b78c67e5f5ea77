// What all objects of one soft device share.
#ifndef LIB_VERBS_SOFT_DEVICE_CORE_H_
#define LIB_VERBS_SOFT_DEVICE_CORE_H_

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "lib/verbs/soft/engine.h"
#include "lib/verbs/soft/memory_table.h"
#include "lib/verbs/soft/queue_pair.h"
#include "lib/verbs/soft/soft_device.h"

namespace baton::verbs::soft {

class SoftConnection;

struct DeviceCore {
  DeviceCore(const SoftDeviceOptions& device_options, uint64_t seed,
             std::unique_ptr<Engine> device_engine)
      : options(device_options), engine(std::move(device_engine)), memory(seed) {}
  ~DeviceCore();  // out of line, for SoftConnection is incomplete here

  void PushEvent(CmEvent event) {
    events.push_back(std::move(event));
    engine->AddPending(1);
  }

  const SoftDeviceOptions options;
  const std::unique_ptr<Engine> engine;
  MemoryTable memory;
  std::deque<CmEvent> events;
  uint64_t connections = 0;  // ordinal of the next one, for the fault plan
  QueuePairNumbers queue_pair_numbers;
  // Peers that connected and have not asked yet: nobody else holds these.
  absl::flat_hash_map<SoftConnection*, std::unique_ptr<SoftConnection>> half_open;
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_DEVICE_CORE_H_
