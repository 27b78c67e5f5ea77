// A driver's side of driver_code.h: makes objects of its own for the queues of the service. All
// that it makes lives as long as the process.
#include "supervisor/driver/code/driver_code.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "lib/native/host.h"
#include "lib/verbs/rdma/rdma_device.h"
#include "lib/verbs/soft/soft_device.h"
#include "supervisor/driver/broker/broker_process.h"
#include "supervisor/driver/native/native_driver.h"

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

struct InheritedQueues {
  arena::Arena* arena = nullptr;
  verbs::Device* device = nullptr;
  native::QueuePairPool* pool = nullptr;
  std::shared_ptr<driver::DeviceObjects> objects;
};

absl::Status CheckVersion(const BatonInheritedQueues& queues, bool fits) {
  if (queues.version == BATON_DRIVER_CODE_VERSION && queues.bytes >= sizeof(queues) &&
      queues.inherited_version == BATON_INHERITED_VERSION && fits) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "this code of drivers (release ", kRelease, ") has version ", BATON_DRIVER_CODE_VERSION,
      " of what drivers and baton-driver have between them, and this baton-driver (release ",
      queues.baton_release, ") has ", queues.version,
      ", or what belongs to it has another version: it comes into use with the service's next "
      "start"));
}

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

absl::Status InheritShard(const BatonInheritedShard& shard, uint32_t number,
                          const InheritedQueues& all) {
  BATON_ASSIGN_OR_RETURN(auto queue, all.device->Inherit(shard.queue));
  verbs::SharedReceiveQueue* shared = nullptr;
  if (shard.shared_receives.queue != nullptr) {
    BATON_ASSIGN_OR_RETURN(auto receives, all.device->Inherit(shard.shared_receives));
    shared = receives.get();
    all.objects->shared_receive_queues.push_back(std::move(receives));
  }
  for (uint64_t i = 0; i < shard.queue_pair_count; ++i) {
    BATON_ASSIGN_OR_RETURN(auto queue_pair,
                           all.device->Inherit(shard.queue_pairs[i], queue.get(), shared));
    all.pool->Add(number, std::move(queue_pair));
  }
  all.objects->completion_queues.push_back(std::move(queue));
  return absl::OkStatus();
}

absl::StatusOr<InheritedQueues> Inherit(const BatonInheritedQueues& described) {
  InheritedQueues all;
  arena::Arena::Bases bases = {};
  std::transform(std::begin(described.memories), std::end(described.memories), bases.begin(),
                 [](void* memory) { return static_cast<uint8_t*>(memory); });
  BATON_ASSIGN_OR_RETURN(arena::Arena arena, arena::Arena::Inherit(bases));
  if (arena.shape().shards != described.shard_count) {
    return absl::DataLossError("the arena says that it has another number of shards");
  }
  all.arena = new arena::Arena(std::move(arena));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device, InheritDevice(described.device));
  all.device = device.release();
  all.pool = new native::QueuePairPool(described.shard_count);
  all.objects = std::make_shared<driver::DeviceObjects>();
  all.objects->has_forked_drivers = true;
  all.objects->connections.resize(all.arena->shape().connections);
  all.objects->buffers = std::make_unique<InheritedRegion>(described.buffers_lkey);
  all.objects->spares = std::make_unique<InheritedRegion>(described.spares_lkey);
  for (uint32_t i = 0; i < described.shard_count; ++i) {
    BATON_RETURN_IF_ERROR(InheritShard(described.shards[i], i, all));
  }
  return all;
}

// ---------------------------------------------------------------- brokers

void TakeSettings(const BatonBrokerHost& host, BrokerInheritance* inheritance) {
  inheritance->board = static_cast<BrokerBoard*>(host.board);
  inheritance->messages = host.messages;
  inheritance->wake = host.wake;
  inheritance->host_wake = host.queues.host_wake;
  inheritance->news = host.queues.news;
  inheritance->lifeline = host.queues.lifeline;
  inheritance->self = getpid();
  inheritance->place = host.place;
  EngineOptions& options = inheritance->options;
  options.outside_effects = host.queues.outside_effects != 0;
  options.realtime_priority = static_cast<int>(host.queues.realtime_priority);
  options.poison_deaths = host.queues.poison_deaths;
  options.yield_microseconds = host.yield_microseconds;
  options.break_recovery = host.break_recovery != 0;
  options.releasers = &inheritance->board->releasers;
}

absl::Status Drive(const BatonBrokerHost& host) {
  BATON_RETURN_IF_ERROR(CheckVersion(host.queues, host.board_bytes == sizeof(BrokerBoard)));
  BATON_ASSIGN_OR_RETURN(InheritedQueues queues, Inherit(host.queues));
  auto* const wakes = new WorkerWakes(queues.arena);
  BrokerInheritance inheritance;
  inheritance.watched.resize(host.worker_count);
  for (uint32_t slot = 0; slot < host.worker_count; ++slot) {
    const BatonBrokerWorker& worker = host.workers[slot];
    if (worker.wake >= 0) wakes->Add(slot, FileDescriptor(worker.wake));
    inheritance.watched[slot] = {worker.watched, worker.process};
  }
  inheritance.arena = queues.arena;
  inheritance.device = queues.device;
  inheritance.pool = queues.pool;
  inheritance.objects = std::move(queues.objects);
  inheritance.wakes = wakes;
  TakeSettings(host, &inheritance);
  return (new BrokerProcess(std::move(inheritance)))->Run();
}

const char* AsText(const absl::Status& status) {
  return (new std::string(MessageOf(status)))->c_str();
}

const char* RunBroker(const BatonBrokerHost* host) { return AsText(Drive(*host)); }

// ---------------------------------------------------------------- native workers

NativeDriver* g_driver = nullptr;

absl::Status MakeDriver(const BatonOwnerHost& host) {
  BATON_RETURN_IF_ERROR(CheckVersion(host.queues, host.native_version == BATON_NATIVE_VERSION));
  BATON_ASSIGN_OR_RETURN(InheritedQueues queues, Inherit(host.queues));
  NativeInheritance inheritance;
  inheritance.arena = queues.arena;
  inheritance.device = queues.device;
  inheritance.pool = queues.pool;
  inheritance.objects = std::move(queues.objects);
  inheritance.slot = host.slot;
  inheritance.worker_id = host.worker_id;
  inheritance.session = host.session;
  inheritance.driver_wake = host.queues.host_wake;
  inheritance.wakes.assign(host.wakes, host.wakes + host.worker_count);
  inheritance.news = host.queues.news;
  inheritance.lifeline = host.queues.lifeline;
  inheritance.presence = host.presence;
  inheritance.realtime_priority = static_cast<int>(host.queues.realtime_priority);
  inheritance.outside_effects = host.queues.outside_effects != 0;
  inheritance.poison_deaths = host.queues.poison_deaths;
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<NativeDriver> driver,
                         NativeDriver::Create(std::move(inheritance)));
  g_driver = driver.release();
  return absl::OkStatus();
}

const char* BeginOwner(const BatonOwnerHost* host) {
  const absl::Status made = MakeDriver(*host);
  return made.ok() ? nullptr : AsText(made);
}

BatonNativeHost* NativeHost() { return g_driver == nullptr ? nullptr : g_driver->host(); }

}  // namespace
}  // namespace baton::driver_process

extern "C" __attribute__((visibility("default")))
const BatonDriverCode baton_driver_code = {BATON_DRIVER_CODE_VERSION,
                                           sizeof(BatonDriverCode),
                                           baton::kRelease,
                                           baton::driver_process::RunBroker,
                                           baton::driver_process::BeginOwner,
                                           baton::driver_process::NativeHost};
