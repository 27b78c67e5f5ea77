#include "lib/verbs/soft/soft_device.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/verbs/soft/completion_queue.h"
#include "lib/verbs/soft/connection.h"
#include "lib/verbs/soft/device_core.h"
#include "lib/verbs/soft/listener.h"
#include "lib/verbs/soft/queue_pair.h"
#include "lib/verbs/soft/shared_receive_queue.h"

namespace baton::verbs::soft {

ConnectionCore::~ConnectionCore() = default;

DeviceCore::~DeviceCore() {
  half_open.clear();
  events.clear();
}

void DeviceCore::ForgetEventsOf(const SoftConnection* id) {
  engine->RemovePending(static_cast<int>(
      std::erase_if(events, [id](const CmEvent& event) { return event.id == id; })));
}

// Their ids reject them.
void DeviceCore::ForgetEventsOf(const Listener* listener) {
  engine->RemovePending(static_cast<int>(std::erase_if(
      events, [listener](const CmEvent& event) { return event.listener == listener; })));
}

namespace {

constexpr uint32_t kMaxRequests = 16'384;
constexpr uint32_t kMaxCompletionEntries = 4u << 20;
constexpr uint32_t kMaxInlineData = 512;  // as Soft-RoCE's

absl::Status CheckLimit(absl::string_view what, uint64_t value, uint64_t limit) {
  if (value >= 1 && value <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value, "; it must be from 1 to ", limit));
}

class SoftDevice final : public Device {
 public:
  SoftDevice(const SoftDeviceOptions& options, uint64_t seed, std::unique_ptr<Engine> engine)
      : options_(options),
        core_(&options_, seed, std::move(engine)),
        numbers_(seed ^ 0x5deece66d) {}

  std::string_view name() const override { return "soft"; }
  DeviceLimits limits() const override;
  DeviceInfo info() const override;
  absl::StatusOr<std::unique_ptr<MemoryRegion>> RegisterMemory(void* address, size_t length,
                                                               uint32_t access) override {
    return core_.memory.Register(address, length, access);
  }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t entries) override;
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override;
  absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
      uint32_t entries, uint32_t max_scatter_gather) override;
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const Address& address, int backlog) override {
    return SoftListener::Create(&core_, address, backlog);
  }
  absl::StatusOr<std::unique_ptr<ConnectionId>> Connect(
      const Address& address, QueuePair* queue_pair,
      const ConnectionParameters& parameters) override;
  bool NextEvent(CmEvent* event) override;
  bool NextDeviceEvent(DeviceEvent* event) override { return core_.engine->TakeDeviceEvent(event); }
  void Progress() override { core_.engine->Progress(); }
  int event_fd() const override { return core_.engine->event_fd(); }

 private:
  uint32_t NewQueuePairNumber();

  const SoftDeviceOptions options_;
  DeviceCore core_;
  std::mt19937_64 numbers_;
};

DeviceLimits SoftDevice::limits() const {
  DeviceLimits limits;
  limits.max_queue_pairs = core_.options.max_queue_pairs;
  limits.max_completion_queues = UINT32_MAX;  // as memory regions: of the process's own memory
  limits.max_completion_queue_entries = kMaxCompletionEntries;
  limits.max_send_requests = kMaxRequests;
  limits.max_receive_requests = kMaxRequests;
  limits.max_scatter_gather = kMaxScatterGather;
  limits.max_memory_regions = UINT32_MAX;
  limits.max_private_data_connect = kMaxConnectPrivateData;
  limits.max_private_data_accept = kMaxAcceptPrivateData;
  limits.max_private_data_reject = kMaxRejectPrivateData;
  limits.max_initiator_depth = 128;
  limits.max_shared_receive_queues = UINT32_MAX;
  limits.max_shared_receive_requests = kMaxRequests;
  limits.max_shared_receive_scatter_gather = kMaxScatterGather;
  limits.max_message_bytes = 1ull << 30;
  limits.atomics = limits.send_with_invalidate = true;
  return limits;
}

DeviceInfo SoftDevice::info() const {
  DeviceInfo info;
  info.name = std::string(name());
  info.transport = "TCP";
  info.port_state = PortState::kActive;
  return info;
}

absl::StatusOr<std::unique_ptr<CompletionQueue>> SoftDevice::CreateCompletionQueue(
    uint32_t entries) {
  BATON_RETURN_IF_ERROR(CheckLimit("completion queue entries", entries, kMaxCompletionEntries));
  return std::make_unique<SoftCompletionQueue>(core_.engine, entries);
}

// 24 bits, as on InfiniBand, where 0 and 1 are special.
uint32_t SoftDevice::NewQueuePairNumber() {
  for (;;) {
    const uint32_t number = static_cast<uint32_t>(numbers_() & 0xffffff);
    if (number > 1 && core_.queue_pair_numbers.insert(number).second) return number;
  }
}

absl::StatusOr<std::unique_ptr<QueuePair>> SoftDevice::CreateQueuePair(
    const QueuePairOptions& options) {
  if (options.send_queue == nullptr || options.receive_queue == nullptr) {
    return absl::InvalidArgumentError("a queue pair needs a send and a receive completion queue");
  }
  BATON_RETURN_IF_ERROR(CheckLimit("max_send_requests", options.max_send_requests, kMaxRequests));
  if (options.shared_receive_queue == nullptr) {
    BATON_RETURN_IF_ERROR(
        CheckLimit("max_receive_requests", options.max_receive_requests, kMaxRequests));
  }
  BATON_RETURN_IF_ERROR(
      CheckLimit("max_scatter_gather", options.max_scatter_gather, kMaxScatterGather));
  if (options.max_inline_data > kMaxInlineData) {
    return absl::InvalidArgumentError(absl::StrCat("max_inline_data is ", options.max_inline_data,
                                                   "; it must be at most ", kMaxInlineData));
  }
  if (core_.queue_pair_numbers.size() >= core_.options.max_queue_pairs) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the device's limit of ", core_.options.max_queue_pairs,
                     " queue pairs is reached: raise max_queue_pairs"));
  }
  return std::make_unique<SoftQueuePair>(core_.engine, &core_.memory, NewQueuePairNumber(), options,
                                         &core_.queue_pair_numbers);
}

absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> SoftDevice::CreateSharedReceiveQueue(
    uint32_t entries, uint32_t max_scatter_gather) {
  BATON_RETURN_IF_ERROR(CheckLimit("entries", entries, kMaxRequests));
  BATON_RETURN_IF_ERROR(CheckLimit("max_scatter_gather", max_scatter_gather, kMaxScatterGather));
  return std::make_unique<SoftSharedReceiveQueue>(core_.engine, entries, max_scatter_gather);
}

absl::StatusOr<std::unique_ptr<ConnectionId>> SoftDevice::Connect(
    const Address& address, QueuePair* queue_pair, const ConnectionParameters& parameters) {
  auto connection = std::make_unique<SoftConnection>(&core_);
  BATON_RETURN_IF_ERROR(
      connection->Connect(address, &static_cast<SoftQueuePair*>(queue_pair)->wire(), parameters));
  return connection;
}

bool SoftDevice::NextEvent(CmEvent* event) {
  if (core_.events.empty()) return false;
  *event = std::move(core_.events.front());
  core_.events.pop_front();
  core_.engine->RemovePending(1);
  if (event->id != nullptr) static_cast<SoftConnection*>(event->id)->EventTaken();
  if (event->listener != nullptr) static_cast<SoftListener*>(event->listener)->RequestTaken();
  return true;
}

uint64_t RandomSeed() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 32) | random();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateSoftDevice(const SoftDeviceOptions& options) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Create());
  const uint64_t seed = options.seed != 0 ? options.seed : RandomSeed();
  return std::make_unique<SoftDevice>(options, seed, std::move(engine));
}

}  // namespace baton::verbs::soft
