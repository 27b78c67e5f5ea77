#include "supervisor/doctor/checks.h"

#include "supervisor/config/config.h"
#include "supervisor/config/shape.h"

namespace baton::doctor {
namespace {

// mlx5's sizes of an entry with arena::kMaxSges pieces: 128 bytes a send, 64 a receive, 64 a
// completion (mlx5dv.h).
constexpr uint64_t kSendEntryBytes = 128;
constexpr uint64_t kReceiveEntryBytes = 64;
constexpr uint64_t kCompletionEntryBytes = 64;

// A driver, or its NIC on the soft device, has at most so many descriptors: sockets of a connection
// and of a worker, and those that it has by itself.
constexpr uint64_t kDescriptorsPerConnection = 2;
constexpr uint64_t kDescriptorsPerWorker = 8;
constexpr uint64_t kDescriptorsOfADriver = 64;

uint64_t QueueBytes(const driver::DeviceNeeds& needs) {
  return needs.queue_pairs * (needs.send_requests * (kSendEntryBytes + needs.inline_bytes) +
                              needs.receive_requests * kReceiveEntryBytes) +
         needs.completion_queues * needs.completion_queue_entries * kCompletionEntryBytes +
         needs.shared_receive_queues * needs.shared_receive_requests * kReceiveEntryBytes;
}

ServiceNeeds NeedsOf(const v1::ServiceConfig& service) {
  ServiceNeeds needs;
  needs.config = service;
  needs.shape = ShapeOf(service);
  needs.of_device = driver::NeedsOf(needs.shape);
  needs.queue_bytes = QueueBytes(needs.of_device);
  needs.memory_bytes = arena::WorkerMemoryMap(needs.shape).total +
                       arena::DriverMemoryMap(needs.shape).total +
                       arena::RecoveryMemoryMap(needs.shape).total + needs.shape.buffer_bytes;
  needs.descriptors = needs.shape.connections * kDescriptorsPerConnection +
                      needs.shape.workers * kDescriptorsPerWorker + kDescriptorsOfADriver;
  return needs;
}

}  // namespace

std::vector<ServiceNeeds> NeedsOf(const v1::Config& config) {
  std::vector<ServiceNeeds> all;
  for (const v1::ServiceConfig& service : config.services()) all.push_back(NeedsOf(service));
  return all;
}

ServiceNeeds DefaultNeeds() {
  v1::Config config;
  config.set_state_dir("/run/baton");
  config.add_services()->set_name("default");
  config.mutable_services(0)->mutable_device()->mutable_rdma();
  CompleteConfig(config).IgnoreError();
  return NeedsOf(config.services(0));
}

}  // namespace baton::doctor
