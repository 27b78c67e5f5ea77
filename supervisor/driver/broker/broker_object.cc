// A broker's side of broker_object.h: makes objects of its own for the queues of the service.
#include "supervisor/driver/broker/broker_object.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "lib/verbs/rdma/rdma_device.h"
#include "lib/verbs/soft/soft_device.h"
#include "supervisor/driver/broker/broker_process.h"

namespace baton::driver_process {
namespace {

// Memory that `baton-driver` has registered, and deregisters.
class InheritedRegion final : public verbs::MemoryRegion {
 public:
  explicit InheritedRegion(uint32_t key) : key_(key) {}
  uint32_t lkey() const override { return key_; }
  uint32_t rkey() const override { return key_; }

 private:
  const uint32_t key_;
};

absl::StatusOr<std::unique_ptr<verbs::Device>> InheritDevice(
    const BatonInheritedDevice& described) {
  switch (described.kind) {
    case BATON_SOFT_DEVICE:
      return verbs::soft::InheritSoftDevice(described);
    case BATON_RDMA_DEVICE:
      return verbs::rdma::InheritRdmaDevice(described);
    default:
      return absl::UnimplementedError(absl::StrCat("devices of kind ", described.kind));
  }
}

absl::Status InheritShard(const BatonBrokerShard& shard, uint32_t number, verbs::Device* device,
                          driver::DeviceObjects* objects, native::QueuePairPool* pool) {
  BATON_ASSIGN_OR_RETURN(auto queue, device->Inherit(shard.queue));
  verbs::SharedReceiveQueue* shared = nullptr;
  if (shard.shared_receives.queue != nullptr) {
    BATON_ASSIGN_OR_RETURN(auto receives, device->Inherit(shard.shared_receives));
    shared = receives.get();
    objects->shared_receive_queues.push_back(std::move(receives));
  }
  for (uint64_t i = 0; i < shard.queue_pair_count; ++i) {
    BATON_ASSIGN_OR_RETURN(auto queue_pair,
                           device->Inherit(shard.queue_pairs[i], queue.get(), shared));
    pool->Add(number, std::move(queue_pair));
  }
  objects->completion_queues.push_back(std::move(queue));
  return absl::OkStatus();
}

// All that it makes lives as long as the process.
absl::StatusOr<BrokerInheritance> Inherit(const BatonBrokerHost& host) {
  arena::Arena::Bases bases;
  std::transform(std::begin(host.memories), std::end(host.memories), bases.begin(),
                 [](void* memory) { return static_cast<uint8_t*>(memory); });
  BATON_ASSIGN_OR_RETURN(arena::Arena inherited, arena::Arena::Inherit(bases));
  auto* const arena = new arena::Arena(std::move(inherited));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device, InheritDevice(host.device));
  auto* const pool = new native::QueuePairPool(host.shard_count);
  auto objects = std::make_shared<driver::DeviceObjects>();
  objects->has_forked_drivers = true;
  objects->connections.resize(arena->shape().connections);
  objects->buffers = std::make_unique<InheritedRegion>(host.buffers_lkey);
  objects->spares = std::make_unique<InheritedRegion>(host.spares_lkey);
  for (uint32_t i = 0; i < host.shard_count; ++i) {
    BATON_RETURN_IF_ERROR(InheritShard(host.shards[i], i, device.get(), objects.get(), pool));
  }
  auto* const wakes = new WorkerWakes(arena);
  BrokerInheritance inheritance;
  inheritance.watched.resize(host.worker_count);
  for (uint32_t slot = 0; slot < host.worker_count; ++slot) {
    const BatonBrokerWorker& worker = host.workers[slot];
    if (worker.wake >= 0) wakes->Add(slot, FileDescriptor(worker.wake));
    inheritance.watched[slot] = {worker.watched, worker.process};
  }
  inheritance.arena = arena;
  inheritance.device = device.release();
  inheritance.pool = pool;
  inheritance.objects = std::move(objects);
  inheritance.wakes = wakes;
  return inheritance;
}

void TakeSettings(const BatonBrokerHost& host, BrokerInheritance* inheritance) {
  inheritance->board = static_cast<BrokerBoard*>(host.board);
  inheritance->messages = host.messages;
  inheritance->wake = host.wake;
  inheritance->host_wake = host.host_wake;
  inheritance->news = host.news;
  inheritance->lifeline = host.lifeline;
  inheritance->self = getpid();
  inheritance->place = host.place;
  EngineOptions& options = inheritance->options;
  options.outside_effects = host.outside_effects != 0;
  options.realtime_priority = static_cast<int>(host.realtime_priority);
  options.poison_deaths = host.poison_deaths;
  options.yield_microseconds = host.yield_microseconds;
  options.break_recovery = host.break_recovery != 0;
  options.releasers = &inheritance->board->releasers;
}

absl::Status Drive(const BatonBrokerHost& host) {
  if (host.version != BATON_BROKER_VERSION || host.bytes < sizeof(host) ||
      host.board_bytes != sizeof(BrokerBoard)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this broker (release ", kRelease, ") has version ", BATON_BROKER_VERSION,
        " of what brokers and baton-driver have between them, and this baton-driver (release ",
        host.baton_release, ") has ", host.version,
        ": it comes into use with the service's next start"));
  }
  BATON_ASSIGN_OR_RETURN(BrokerInheritance inheritance, Inherit(host));
  TakeSettings(host, &inheritance);
  // Lives as long as the process.
  return (new BrokerProcess(std::move(inheritance)))->Run();
}

const char* Run(const BatonBrokerHost* host) {
  return (new std::string(MessageOf(Drive(*host))))->c_str();
}

}  // namespace
}  // namespace baton::driver_process

extern "C" __attribute__((visibility("default"))) const BatonBrokerObject baton_broker_object = {
    BATON_BROKER_VERSION, sizeof(BatonBrokerObject), baton::kRelease, baton::driver_process::Run};
