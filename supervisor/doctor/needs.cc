#include "supervisor/doctor/needs.h"

#include "lib/arena/layout.h"
#include "supervisor/config/config.h"

namespace baton::doctor {
namespace {

// mlx5's sizes of an entry with arena::kMaxSges pieces: 128 bytes a send, 64 a receive, 64 a
// completion (mlx5dv.h).
constexpr uint64_t kSendEntryBytes = 128;
constexpr uint64_t kReceiveEntryBytes = 64;
constexpr uint64_t kCompletionEntryBytes = 64;

// Of a keeper, at most: sockets of a connection and of a worker, and what it has by itself.
constexpr uint64_t kDescriptorsPerConnection = 2;
constexpr uint64_t kDescriptorsPerWorker = 8;
constexpr uint64_t kDescriptorsOfAKeeper = 64;

void Add(ServiceNeeds& needs, uint32_t shards, uint32_t send_depth, uint32_t receive_depth) {
  needs.send_requests = send_depth + arena::kMarkers;
  needs.receive_requests = receive_depth + arena::kMarkers;
  needs.completion_queue_entries = uint64_t{needs.connections} * (send_depth + receive_depth) +
                                   arena::kShardMarkers + arena::kSpares;
  needs.pinned_bytes = needs.buffer_bytes + uint64_t{arena::kSpares} * arena::kSpareBytes;
  needs.queue_bytes = uint64_t{needs.connections} * (needs.send_requests * kSendEntryBytes +
                                                     needs.receive_requests * kReceiveEntryBytes) +
                      shards * needs.completion_queue_entries * kCompletionEntryBytes;
  needs.descriptors = needs.connections * kDescriptorsPerConnection +
                      needs.workers * kDescriptorsPerWorker + kDescriptorsOfAKeeper;
}

}  // namespace

ServiceNeeds NeedsOf(const v1::ServiceConfig& service) {
  ServiceNeeds needs;
  needs.name = service.name();
  if (service.device().has_rdma()) {
    needs.rdma = true;
    needs.device = service.device().rdma().device();
    needs.port = service.device().rdma().port();
  }
  for (const v1::ListenerConfig& listener : service.listeners()) {
    needs.listeners.push_back(listener.host());
  }
  needs.connections = service.max_connections();
  needs.workers = service.max_workers();
  needs.buffer_bytes = service.buffer_bytes();
  Add(needs, service.shards(), service.send_queue_depth(), service.receive_queue_depth());
  return needs;
}

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
