#include "lib/verbs/soft/soft_device.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/status.h"
#include "lib/nic/call_socket.h"
#include "lib/nic/client.h"
#include "lib/nic/control_socket.h"
#include "lib/nic/frame_stream.h"
#include "lib/nic/limits.h"
#include "lib/nic/nic.h"
#include "lib/nic/wire.h"
#include "lib/verbs/soft/connections.h"
#include "lib/verbs/soft/queue_memory.h"
#include "lib/verbs/soft/queues.h"

namespace baton::verbs::soft {
namespace {

constexpr uint32_t kMaxRequests = 16'384;
constexpr uint32_t kMaxCompletionEntries = 4u << 20;
constexpr uint32_t kMaxInlineData = 512;  // as Soft-RoCE's

absl::Status CheckLimit(absl::string_view what, uint64_t value, uint64_t limit) {
  if (value >= 1 && value <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value, "; it must be from 1 to ", limit));
}

// A descriptor that is readable while there is something to take.
class Flag {
 public:
  Flag() = default;  // has none
  static Flag Make() {
    Flag flag;
    flag.fd_.Reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    return flag;
  }
  int fd() const { return fd_.get(); }
  void Set(bool raised) {
    if (raised == raised_) return;
    raised_ = raised;
    uint64_t count = 1;
    BATON_CHECK((raised ? write(fd_.get(), &count, sizeof(count))
                        : read(fd_.get(), &count, sizeof(count))) == sizeof(count));
  }

 private:
  FileDescriptor fd_;
  bool raised_ = false;
};

class SoftMemoryRegion final : public MemoryRegion {
 public:
  SoftMemoryRegion(nic::Client* client, uint32_t key) : client_(client), key_(key) {}
  ~SoftMemoryRegion() override { (void)client_->Destroy(nic::control::Kind::kRegion, key_); }
  uint32_t lkey() const override { return key_; }
  uint32_t rkey() const override { return key_; }

 private:
  nic::Client* const client_;
  const uint32_t key_;
};

class SoftDevice final : public Device {
 public:
  // `nic`: null if it is another process. `forks`: forked processes use the device.
  SoftDevice(std::unique_ptr<nic::Nic> nic, bool forks) : nic_(std::move(nic)), forks_(forks) {}

  // One of these must be called first. The NIC has the sockets' other ends.
  absl::Status Open(FileDescriptor objects, FileDescriptor ids);
  absl::Status OpenInherited(const BatonInheritedDevice& described);

  std::string_view name() const override { return "soft"; }
  DeviceLimits limits() const override;
  DeviceInfo info() const override;
  absl::Status NameMemory(void* address, size_t length, int memfd) override;
  void ForgetMemory(void* address) override;
  absl::StatusOr<std::unique_ptr<MemoryRegion>> RegisterMemory(void* address, size_t length,
                                                               uint32_t access) override;
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t entries) override;
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override;
  absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
      uint32_t entries, uint32_t max_scatter_gather) override;
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const Address& address, int backlog) override {
    BATON_RETURN_IF_ERROR(CheckOpener("listen"));
    return connections_->Listen(address, backlog);
  }
  absl::StatusOr<std::unique_ptr<ConnectionId>> Connect(
      const Address& address, QueuePair* queue_pair,
      const ConnectionParameters& parameters) override {
    BATON_RETURN_IF_ERROR(CheckOpener("connect"));
    return connections_->Connect(address, queue_pair, parameters);
  }
  // A connection's packets end with its wire.
  bool has_time_wait() const override { return false; }
  bool NextEvent(CmEvent* event) override;
  bool NextDeviceEvent(DeviceEvent* event) override;
  void Progress() override;
  int event_fd() const override { return epoll_.get(); }
  absl::Status CheckForkable() const override;
  absl::Status AfterFork() override;
  std::vector<int> ForkedDescriptors() const override;
  absl::Status Describe(BatonInheritedDevice* described) const override;
  absl::StatusOr<std::unique_ptr<CompletionQueue>> Inherit(
      const BatonInheritedCompletionQueue& described) override {
    return std::make_unique<SoftCompletionQueue>(&host_, described);
  }
  absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> Inherit(
      const BatonInheritedSharedReceiveQueue& described) override {
    return std::make_unique<SoftSharedReceiveQueue>(&host_, described);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> Inherit(const BatonInheritedQueuePair& described,
                                                     CompletionQueue* completes,
                                                     SharedReceiveQueue* shared) override {
    return std::make_unique<SoftQueuePair>(&host_, described,
                                           static_cast<SoftCompletionQueue*>(completes),
                                           static_cast<SoftSharedReceiveQueue*>(shared));
  }
  absl::Status CheckFollowable() const override { return CheckForkable(); }
  absl::Status BeginTakeOver() override;
  absl::Status TakeOver() override;
  absl::StatusOr<AdoptedId> AdoptId(FormerId former) override {
    return connections_->AdoptId(std::move(former));
  }
  absl::StatusOr<std::unique_ptr<MemoryRegion>> AdoptRegion(uint32_t rkey) override {
    return std::make_unique<SoftMemoryRegion>(client_.get(), rkey);
  }
  absl::Status DestroyUnknownIds() override { return connections_->DestroyUnknown(); }

 private:
  // Memory that was named to a NIC in another process.
  struct Named {
    uint64_t begin = 0;
    uint64_t length = 0;
    uint32_t file = 0;
  };

  bool forked() const { return client_->calls().forked(); }
  absl::Status CheckOpener(absl::string_view call) const;
  absl::StatusOr<nic::control::Place> PlaceOf(uint64_t address, uint64_t length) const;
  bool Translate(const nic::CallSocket::Answer& answer, DeviceEvent* event) const;
  absl::Status WatchSockets();
  void Look();
  bool IsSilent() const {
    return client_->calls().lost() || (connections_ && connections_->calls().lost());
  }
  void LookForLoss();
  void SetLost();
  void UpdateFlag() { flag_.Set(cm_events_ || device_events_); }

  const std::unique_ptr<nic::Nic> nic_;
  const bool forks_;
  FileDescriptor epoll_{epoll_create1(EPOLL_CLOEXEC)};
  Flag flag_;                 // raised while an event was not taken
  uint64_t seen_events_ = 0;  // nic_->events() when the channels were read last
  bool cm_events_ = false;
  bool device_events_ = false;
  bool device_event_given_ = false;  // and handled by the next call
  bool lost_ = false;                // the NIC of another process is gone
  bool loss_told_ = false;
  FileDescriptor event_channel_;
  std::unique_ptr<nic::Client> client_;
  std::unique_ptr<QueueMemory> memory_;
  std::unique_ptr<SoftConnections> connections_;  // null: inherited
  std::vector<Named> named_;
  SoftHost host_;
};

absl::Status SoftDevice::Open(FileDescriptor objects, FileDescriptor ids) {
  flag_ = Flag::Make();
  if (!epoll_ || flag_.fd() < 0) return ErrnoStatus(errno, "epoll, eventfd (see RLIMIT_NOFILE)");
  std::function<void()> turn;
  if (nic_ != nullptr) turn = [this] { nic_->Serve(); };
  BATON_ASSIGN_OR_RETURN(client_, nic::Client::Open(std::move(objects), turn));
  BATON_ASSIGN_OR_RETURN(event_channel_, client_->AddEventChannel());
  BATON_ASSIGN_OR_RETURN(nic::CallSocket calls,
                         nic::CallSocket::Open(std::move(ids), nic::control::Op::kOpenIds, turn));
  BATON_ASSIGN_OR_RETURN(connections_, SoftConnections::Make(std::move(calls)));
  memory_ = std::make_unique<QueueMemory>(client_.get(), /*inherited=*/forks_);
  host_.client = client_.get();
  host_.memory = memory_.get();
  if (nic_ != nullptr) host_.rung = [this] { nic_->TakeRings(); };
  return WatchSockets();
}

absl::Status SoftDevice::WatchSockets() {
  host_.epoll_fd = epoll_.get();
  const int of_nic = nic_ != nullptr ? nic_->engine_fd() : client_->file();
  for (const int fd : {event_channel_.get(), connections_->event_fd(), flag_.fd(), of_nic}) {
    BATON_RETURN_IF_ERROR(AddToEpoll(epoll_.get(), fd, {EPOLLIN, {}}));
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- forked processes

absl::Status SoftDevice::CheckForkable() const {
  return forks_ ? absl::OkStatus() : Device::CheckForkable();
}

absl::Status SoftDevice::AfterFork() {
  BATON_RETURN_IF_ERROR(CheckForkable());
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return ErrnoStatus(errno, "epoll_create1 (see RLIMIT_NOFILE)");
  host_.epoll_fd = epoll_.get();
  memory_->KeepFromChildren();
  for (SoftCompletionQueue* const queue : host_.completion_queues) queue->AfterFork();
  connections_->calls().GiveUp();
  return client_->AfterFork();
}

absl::Status SoftDevice::Describe(BatonInheritedDevice* described) const {
  const nic::CallSocket& calls = client_->calls();
  if (!calls.forked()) return absl::FailedPreconditionError("no forked process has the device");
  *described = {};
  described->kind = BATON_SOFT_DEVICE;
  described->file = calls.file();
  described->calls = calls.calls();
  described->last_tag = calls.last_tag();
  described->nic_version = nic::control::kControlVersion;
  return absl::OkStatus();
}

absl::Status SoftDevice::OpenInherited(const BatonInheritedDevice& described) {
  if (!epoll_) return ErrnoStatus(errno, "epoll_create1 (see RLIMIT_NOFILE)");
  if (described.nic_version != nic::control::kControlVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the service's baton-nic speaks version ", described.nic_version,
                     " of its protocol, and this code ", nic::control::kControlVersion,
                     ": it comes into use with the service's next start"));
  }
  client_ = nic::Client::Inherit(nic::CallSocket::Inherit(
      FileDescriptor(described.file), FileDescriptor(described.calls), described.last_tag));
  host_.client = client_.get();
  host_.epoll_fd = epoll_.get();
  return absl::OkStatus();
}

absl::Status SoftDevice::BeginTakeOver() {
  BATON_RETURN_IF_ERROR(CheckFollowable());
  BATON_RETURN_IF_ERROR(client_->calls().BeginTakeOver());
  return connections_->BeginTakeOver();
}

// The former opener shares the epoll set and the flag, and its copies of the queues are of no use.
absl::Status SoftDevice::TakeOver() {
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  flag_ = Flag::Make();
  if (!epoll_ || flag_.fd() < 0) return ErrnoStatus(errno, "epoll, eventfd (see RLIMIT_NOFILE)");
  for (SoftCompletionQueue* const queue : host_.completion_queues) queue->AfterFork();
  BATON_RETURN_IF_ERROR(WatchSockets());
  BATON_RETURN_IF_ERROR(client_->calls().TakeOver());
  BATON_RETURN_IF_ERROR(connections_->TakeOver());
  cm_events_ = device_events_ = true;
  device_event_given_ = false;
  UpdateFlag();
  return absl::OkStatus();
}

// Leaves out the file of ids, which only the opener uses.
std::vector<int> SoftDevice::ForkedDescriptors() const {
  std::vector<int> descriptors = {client_->file(), client_->calls().calls()};
  for (const SoftCompletionQueue* const queue : host_.completion_queues) {
    descriptors.push_back(queue->channel_fd());
    descriptors.push_back(queue->reg().wake_fd());
  }
  return descriptors;
}

absl::Status SoftDevice::CheckOpener(absl::string_view call) const {
  if (!forked()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(call,
                   ": only the process that opened device soft does that, and this one was "
                   "forked from it"));
}

// ---------------------------------------------------------------- objects

// A NIC process gives half of its objects to the first file (Context::CheckShare).
DeviceLimits SoftDevice::limits() const {
  DeviceLimits limits;
  limits.max_queue_pairs =
      nic_ == nullptr ? SoftDeviceOptions().max_queue_pairs / 2 : nic_->options().max_queue_pairs;
  limits.max_completion_queues = nic::kMaxCompletionQueues / 2;
  limits.max_completion_queue_entries = kMaxCompletionEntries;
  limits.max_send_requests = kMaxRequests;
  limits.max_receive_requests = kMaxRequests;
  limits.max_scatter_gather = kMaxScatterGather;
  limits.max_memory_regions = nic::kMaxRegions / 2;
  limits.max_private_data_connect = kMaxConnectPrivateData;
  limits.max_private_data_accept = kMaxAcceptPrivateData;
  limits.max_private_data_reject = kMaxRejectPrivateData;
  limits.max_initiator_depth = 128;
  limits.max_shared_receive_queues = nic::kMaxSharedReceiveQueues / 2;
  limits.max_shared_receive_requests = kMaxRequests;
  limits.max_shared_receive_scatter_gather = kMaxScatterGather;
  limits.max_message_bytes = kMaxMessage;
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

absl::Status SoftDevice::NameMemory(void* address, size_t length, int memfd) {
  if (nic_ != nullptr) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(CheckOpener("naming memory"));
  BATON_ASSIGN_OR_RETURN(const uint32_t file, client_->AddFile(memfd));
  named_.push_back({reinterpret_cast<uintptr_t>(address), length, file});
  return absl::OkStatus();
}

// A file may be mapped and named several times. It has one number.
void SoftDevice::ForgetMemory(void* address) {
  if (nic_ != nullptr || forked()) return;
  const auto begins_here = [begin = reinterpret_cast<uintptr_t>(address)](const Named& named) {
    return named.begin == begin;
  };
  const auto found = std::find_if(named_.begin(), named_.end(), begins_here);
  if (found == named_.end()) return;
  const uint32_t file = found->file;
  named_.erase(found);
  const bool is_used = std::any_of(named_.begin(), named_.end(),
                                   [file](const Named& named) { return named.file == file; });
  if (!is_used) (void)client_->Destroy(nic::control::Kind::kFile, file);
}

absl::StatusOr<nic::control::Place> SoftDevice::PlaceOf(uint64_t address, uint64_t length) const {
  if (nic_ != nullptr) return nic::control::Place();  // an embedded NIC reaches the address itself
  for (const Named& named : named_) {
    const uint64_t offset = address - named.begin;
    if (offset < named.length && length <= named.length - offset) {
      return nic::control::Place{named.file, 0, offset};
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cannot register ", length, " bytes at ", address,
                   ": they are of no file that was named to the NIC, which is another process"));
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> SoftDevice::RegisterMemory(void* address,
                                                                         size_t length,
                                                                         uint32_t access) {
  BATON_RETURN_IF_ERROR(CheckOpener("registering memory"));
  const uint64_t start = reinterpret_cast<uintptr_t>(address);
  if (address == nullptr || length == 0 || start + length < start) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot register ", length, " bytes at ", start, ": no such range"));
  }
  BATON_ASSIGN_OR_RETURN(const nic::control::Place place, PlaceOf(start, length));
  BATON_ASSIGN_OR_RETURN(const uint32_t key, client_->AddRegion(place, length, start, access));
  return std::make_unique<SoftMemoryRegion>(client_.get(), key);
}

absl::StatusOr<std::unique_ptr<CompletionQueue>> SoftDevice::CreateCompletionQueue(
    uint32_t entries) {
  BATON_RETURN_IF_ERROR(CheckOpener("making a completion queue"));
  BATON_RETURN_IF_ERROR(CheckLimit("completion queue entries", entries, kMaxCompletionEntries));
  return SoftCompletionQueue::Make(&host_, entries);
}

absl::StatusOr<std::unique_ptr<QueuePair>> SoftDevice::CreateQueuePair(
    const QueuePairOptions& options) {
  BATON_RETURN_IF_ERROR(CheckOpener("making a queue pair"));
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
  return SoftQueuePair::Make(&host_, options);
}

absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> SoftDevice::CreateSharedReceiveQueue(
    uint32_t entries, uint32_t max_scatter_gather) {
  BATON_RETURN_IF_ERROR(CheckOpener("making a shared receive queue"));
  BATON_RETURN_IF_ERROR(CheckLimit("entries", entries, kMaxRequests));
  BATON_RETURN_IF_ERROR(CheckLimit("max_scatter_gather", max_scatter_gather, kMaxScatterGather));
  return SoftSharedReceiveQueue::Make(&host_, entries, max_scatter_gather);
}

// ---------------------------------------------------------------- turns and events

void SoftDevice::Progress() {
  if (nic_ != nullptr) nic_->Execute();
  Look();
}

void SoftDevice::Look() {
  if (nic_ == nullptr) {
    // Asks about all sockets with one system call, because most turns find nothing.
    epoll_event event;
    if (!forked() && !IsSilent() && epoll_wait(epoll_.get(), &event, 1, 0) == 0) return;
    LookForLoss();
    if (forked()) return;
  } else if (std::exchange(seen_events_, nic_->events()) == nic_->events()) {
    return;
  }
  cm_events_ = connections_->LookForEvents();
  uint8_t bytes[64];
  if (recv(event_channel_.get(), bytes, sizeof(bytes), MSG_DONTWAIT) > 0) device_events_ = true;
  UpdateFlag();
}

void SoftDevice::LookForLoss() {
  if (lost_) return;
  if (IsSilent() || nic::HasEnded(client_->file())) SetLost();
}

// Stops watching the NIC's sockets, which would be readable for ever.
void SoftDevice::SetLost() {
  lost_ = true;
  for (SoftCompletionQueue* const queue : host_.completion_queues) queue->SetLost();
  if (forked()) return;
  for (const int fd : {event_channel_.get(), connections_->event_fd(), client_->file()}) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
  device_events_ = true;
  UpdateFlag();
}

bool SoftDevice::NextEvent(CmEvent* event) {
  if (forked()) return false;
  Look();
  if (!cm_events_) return false;
  const bool taken = connections_->NextEvent(event);
  cm_events_ = connections_->LookForEvents();
  UpdateFlag();
  return taken;
}

bool SoftDevice::Translate(const nic::CallSocket::Answer& answer, DeviceEvent* event) const {
  *event = {};
  event->type = static_cast<DeviceEventType>(answer.value - 1);
  switch (event->type) {
    case DeviceEventType::kCompletionQueueFailed:
      event->text = "completion queue overrun";
      return true;
    case DeviceEventType::kLastWorkRequestReached:
      event->qp_number = answer.more;
      event->text = "last receive flushed";
      return true;
    case DeviceEventType::kSharedReceiveQueueLow:
    case DeviceEventType::kSharedReceiveQueueFailed: {
      const auto found = host_.shared_receive_queues.find(answer.more);
      if (found == host_.shared_receive_queues.end()) return false;
      event->shared_receive_queue = found->second;
      event->text = event->type == DeviceEventType::kSharedReceiveQueueLow
                        ? "limit of a shared receive queue reached"
                        : "the list of a shared receive queue is broken";
      return true;
    }
    case DeviceEventType::kDeviceLost:
      event->text = "the fault plan says so";
      return true;
    default:
      return false;
  }
}

bool SoftDevice::NextDeviceEvent(DeviceEvent* event) {
  if (forked()) return false;
  Look();
  if (lost_) {
    device_events_ = false;
    UpdateFlag();
    *event = {.type = DeviceEventType::kDeviceLost,
              .text = "the process that is its NIC has ended, or replies no more"};
    return !std::exchange(loss_told_, true);
  }
  while (device_events_) {
    const absl::StatusOr<nic::CallSocket::Answer> answer = client_->calls().Call(
        nic::control::NextDeviceEvent{.handled = device_event_given_ ? 1u : 0u});
    device_event_given_ = device_events_ = answer.ok() && answer->value != 0;
    UpdateFlag();
    if (device_events_ && Translate(*answer, event)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateSoftDevice(const SoftDeviceOptions& options) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<nic::Nic> nic,
                         nic::Nic::Make(options, {}, /*own_addresses=*/true));
  FileDescriptor ours[2];
  for (FileDescriptor& end : ours) {
    BATON_ASSIGN_OR_RETURN(SocketPair pair, MakeSocketPair(SOCK_SEQPACKET));
    end = std::move(pair.ours);
    BATON_RETURN_IF_ERROR(nic->Add(std::move(pair.theirs)));
  }
  auto device = std::make_unique<SoftDevice>(std::move(nic), /*forks=*/false);
  BATON_RETURN_IF_ERROR(device->Open(std::move(ours[0]), std::move(ours[1])));
  return device;
}

absl::StatusOr<std::unique_ptr<Device>> OpenSoftDevice(FileDescriptor objects, FileDescriptor ids,
                                                       bool forks) {
  auto device = std::make_unique<SoftDevice>(nullptr, forks);
  BATON_RETURN_IF_ERROR(device->Open(std::move(objects), std::move(ids)));
  return device;
}

absl::StatusOr<std::unique_ptr<Device>> InheritSoftDevice(const BatonInheritedDevice& described) {
  auto device = std::make_unique<SoftDevice>(nullptr, /*forks=*/true);
  BATON_RETURN_IF_ERROR(device->OpenInherited(described));
  return device;
}

}  // namespace baton::verbs::soft
