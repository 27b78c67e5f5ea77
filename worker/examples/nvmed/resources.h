// The buffers, the subsystems and the controllers that all commands are executed with.
#ifndef WORKER_EXAMPLES_NVMED_RESOURCES_H_
#define WORKER_EXAMPLES_NVMED_RESOURCES_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/examples/nvmed/buffer_plan.h"
#include "worker/examples/nvmed/capsule.h"
#include "worker/examples/nvmed/controller.h"
#include "worker/examples/nvmed/queue.h"
#include "worker/examples/nvmed/registry.h"
#include "worker/examples/nvmed/target.h"
#include "worker/examples/nvmed/target_config.pb.h"
#include "worker/worker.h"

namespace baton::nvmed {

// A fault that the service commits once, in builds with test hooks, so that tests can show that
// they find it.
struct Fault {
  std::string kind;
  uint64_t at = 0;  // occasion, from 1 on
#ifdef BATON_TEST_HOOKS
  bool IsTimeTo(std::string_view fault) { return fault == kind && ++occasions == at; }
  uint64_t occasions = 0;  // of the fault's kind
#else
  static constexpr bool IsTimeTo(std::string_view) { return false; }
#endif
};

// The parts of the service share them. Thread-compatible.
struct Resources {
  // An error names what in the configuration or in the service's capacity does not suffice, and
  // what would.
  static absl::StatusOr<Resources> Make(const TargetConfig& config, const std::string& firmware,
                                        Worker& worker);

  // ---- buffers
  absl::Span<uint8_t> BytesAt(uint64_t offset, uint64_t length) const {
    return buffers.subspan(offset, length);
  }
  CapsuleLimits LimitsOf(const Queue& queue) const {
    CapsuleLimits limits;
    limits.admin_queue = queue.state.id == 0;
    limits.in_capsule_bytes = limits.admin_queue ? 0 : plan.in_capsule_bytes();
    limits.max_transfer_bytes = plan.chunk_bytes();
    return limits;
  }
  // `bytes`: as many were received. Fails as ParseCapsule does.
  absl::StatusOr<Capsule> Parse(const Queue& queue, uint16_t slot, uint32_t bytes) const {
    const Buffer buffer = plan.Capsule(*queue.connection, slot);
    return ParseCapsule(BytesAt(buffer.offset, std::min(bytes, buffer.length)), LimitsOf(queue));
  }
  // Returns the data of a command whose data are in its capsule.
  absl::Span<uint8_t> InCapsuleData(const Step& step) const {
    const Buffer buffer = plan.Capsule(*step.queue.connection, step.slot);
    return BytesAt(buffer.offset + step.capsule.data.offset, step.length);
  }

  // ---- subsystems and controllers
  ControllerState* ControllerOf(const Queue& queue) {
    return registry.Find(queue.state.controller);
  }
  // Notes a sign of life of the queue's host.
  void Hear(const Queue& queue) {
    const ControllerState* controller = ControllerOf(queue);
    if (controller == nullptr) return;
    deadlines.Hear(*controller, static_cast<size_t>(controller - registry.controllers().data()));
  }
  Controller View(ControllerState& state) { return Controller(state, options, target, registry); }
  Subsystem* SubsystemOf(const Queue& queue) {
    ControllerState* controller = ControllerOf(queue);
    return controller == nullptr ? nullptr : View(*controller).subsystem();
  }
  Namespace* NamespaceOf(const Step& step) {
    Subsystem* subsystem = SubsystemOf(step.queue);
    return subsystem == nullptr ? nullptr : subsystem->Find(step.capsule.command.nsid);
  }

  BufferPlan plan;
  absl::Span<uint8_t> buffers;
  ChunkPool chunks;
  Target target;
  Registry registry;
  Deadlines deadlines;
  ControllerOptions options;
  Fault fault;
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_RESOURCES_H_
