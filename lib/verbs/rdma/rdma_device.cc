#include "lib/verbs/rdma/rdma_device.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/errno_status.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status_macros.h"
#include "lib/verbs/rdma/connection.h"
#include "lib/verbs/rdma/objects.h"
#include "lib/verbs/rdma/queue_pair.h"

namespace baton::verbs::rdma {
namespace {

// The channels are looked at, which is a system call, once in so many turns, and before a sleep.
constexpr uint32_t kTurnsBetweenLooks = 64;

class RdmaRegion final : public MemoryRegion {
 public:
  explicit RdmaRegion(VerbsRegion region) : region_(std::move(region)) {}
  uint32_t lkey() const override { return region_->lkey; }
  uint32_t rkey() const override { return region_->rkey; }

 private:
  VerbsRegion region_;
};

absl::Status SetNonBlocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return ErrnoStatus(errno, "fcntl");
  return absl::OkStatus();
}

absl::Status Watch(int epoll, int fd) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) return ErrnoStatus(errno, "epoll_ctl");
  return absl::OkStatus();
}

int AccessOf(uint32_t access) {
  return ((access & kLocalWrite) != 0 ? IBV_ACCESS_LOCAL_WRITE : 0) |
         ((access & kRemoteWrite) != 0 ? IBV_ACCESS_REMOTE_WRITE : 0) |
         ((access & kRemoteRead) != 0 ? IBV_ACCESS_REMOTE_READ : 0) |
         ((access & kRemoteAtomic) != 0 ? IBV_ACCESS_REMOTE_ATOMIC : 0);
}

std::string Mebibytes(uint64_t bytes) {
  return absl::StrCat((bytes + (1 << 20) - 1) >> 20, " MiB");
}

absl::Status CannotRegister(int error, size_t length) {
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (error == ENOMEM && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < length) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "RLIMIT_MEMLOCK is ", Mebibytes(limit.rlim_cur), ", ", Mebibytes(length),
        " needed to register memory: set LimitMEMLOCK=infinity in the unit, or ulimit -l"));
  }
  return ErrnoStatus(error, absl::StrCat("ibv_reg_mr of ", length, " bytes"));
}

class RdmaDevice final : public Device {
 public:
  static absl::StatusOr<std::unique_ptr<Device>> Create(ibv_context* context,
                                                        const RdmaDeviceOptions& options);

  std::string_view name() const override { return ibv_get_device_name(context_->device); }
  DeviceLimits limits() const override { return limits_; }
  absl::StatusOr<std::unique_ptr<MemoryRegion>> RegisterMemory(void* address, size_t length,
                                                               uint32_t access) override;
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t entries) override;
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override;
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const Address& address, int backlog) override;
  absl::StatusOr<std::unique_ptr<ConnectionId>> Connect(
      const Address& address, QueuePair* queue_pair,
      const ConnectionParameters& parameters) override;
  bool NextEvent(CmEvent* event) override;
  void Progress() override;
  int event_fd() const override { return epoll_.get(); }

 private:
  RdmaDevice(ibv_context* context, const RdmaDeviceOptions& options)
      : context_(context), options_(options) {}
  absl::Status Open();
  absl::Status ReadLimits();
  void TakeCompletionEvents();

  ibv_context* const context_;  // librdmacm's: one for each device of a process
  const RdmaDeviceOptions options_;
  DeviceLimits limits_;
  ConnectionLimits connection_limits_;
  FileDescriptor epoll_;
  ProtectionDomain domain_;
  CompletionChannel completion_channel_;
  EventChannel event_channel_;
  uint32_t turns_ = 0;
  bool look_for_events_ = true;
};

absl::StatusOr<std::unique_ptr<Device>> RdmaDevice::Create(ibv_context* context,
                                                           const RdmaDeviceOptions& options) {
  std::unique_ptr<RdmaDevice> device(new RdmaDevice(context, options));
  BATON_RETURN_IF_ERROR(device->Open());
  return device;
}

absl::Status RdmaDevice::Open() {
  BATON_RETURN_IF_ERROR(ReadLimits());
  domain_.reset(ibv_alloc_pd(context_));
  if (!domain_) return ErrnoStatus(errno, "ibv_alloc_pd");
  completion_channel_.reset(ibv_create_comp_channel(context_));
  if (!completion_channel_) return ErrnoStatus(errno, "ibv_create_comp_channel");
  event_channel_.reset(rdma_create_event_channel());
  if (!event_channel_) {
    return ErrnoStatus(errno, "rdma_create_event_channel (is the module rdma_ucm loaded?)");
  }
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return ErrnoStatus(errno, "epoll_create1");
  for (const int fd : {completion_channel_->fd, event_channel_->fd}) {
    BATON_RETURN_IF_ERROR(SetNonBlocking(fd));
    BATON_RETURN_IF_ERROR(Watch(epoll_.get(), fd));
  }
  return absl::OkStatus();
}

absl::Status RdmaDevice::ReadLimits() {
  ibv_device_attr device = {};
  ibv_port_attr port = {};
  int error = ibv_query_device(context_, &device);
  if (error != 0) return ErrnoStatus(error, "ibv_query_device");
  error = ibv_query_port(context_, options_.port, &port);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("ibv_query_port ", options_.port));
  if (context_->device->transport_type == IBV_TRANSPORT_IWARP) {
    return absl::FailedPreconditionError(
        absl::StrCat("device ", std::string(name()),
                     " is iWARP: its queue pairs cannot be made before their connections, which "
                     "Baton needs; use an InfiniBand or RoCE device"));
  }
  limits_.max_queue_pairs = static_cast<uint32_t>(device.max_qp);
  limits_.max_completion_queue_entries = static_cast<uint32_t>(device.max_cqe);
  limits_.max_send_requests = static_cast<uint32_t>(device.max_qp_wr);
  limits_.max_receive_requests = static_cast<uint32_t>(device.max_qp_wr);
  limits_.max_scatter_gather = static_cast<uint32_t>(device.max_sge);
  limits_.max_private_data_connect = 56;
  limits_.max_private_data_accept = 196;
  limits_.max_private_data_reject = 148;
  limits_.max_initiator_depth = static_cast<uint32_t>(device.max_qp_init_rd_atom);
  limits_.max_message_bytes = port.max_msg_sz;
  limits_.atomics = device.atomic_cap != IBV_ATOMIC_NONE;
  connection_limits_ = {context_, static_cast<uint8_t>(std::min(device.max_qp_rd_atom, 255)),
                        static_cast<uint8_t>(std::min(device.max_qp_init_rd_atom, 255)),
                        static_cast<int>(options_.resolve_timeout_ms)};
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> RdmaDevice::RegisterMemory(void* address,
                                                                         size_t length,
                                                                         uint32_t access) {
  VerbsRegion region(ibv_reg_mr(domain_.get(), address, length, AccessOf(access)));
  if (!region) return CannotRegister(errno, length);
  return std::make_unique<RdmaRegion>(std::move(region));
}

absl::StatusOr<std::unique_ptr<CompletionQueue>> RdmaDevice::CreateCompletionQueue(
    uint32_t entries) {
  if (entries == 0 || entries > limits_.max_completion_queue_entries) {
    return absl::InvalidArgumentError(absl::StrCat("entries: ", entries, ", device ",
                                                   std::string(name()), " has at most ",
                                                   limits_.max_completion_queue_entries));
  }
  return RdmaCompletionQueue::Create(context_, entries, completion_channel_.get());
}

absl::StatusOr<std::unique_ptr<QueuePair>> RdmaDevice::CreateQueuePair(
    const QueuePairOptions& options) {
  return RdmaQueuePair::Create(domain_.get(), options_.port, options);
}

absl::StatusOr<std::unique_ptr<Listener>> RdmaDevice::Listen(const Address& address, int backlog) {
  return RdmaListener::Create(event_channel_.get(), connection_limits_, address, backlog);
}

absl::StatusOr<std::unique_ptr<ConnectionId>> RdmaDevice::Connect(
    const Address& address, QueuePair* queue_pair, const ConnectionParameters& parameters) {
  return RdmaConnectionId::Connect(event_channel_.get(), connection_limits_, address,
                                   static_cast<RdmaQueuePair*>(queue_pair), parameters);
}

void RdmaDevice::TakeCompletionEvents() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(completion_channel_.get(), &queue, &context) == 0) {
    static_cast<RdmaCompletionQueue*>(context)->NoteEvent();
  }
}

void RdmaDevice::Progress() {
  if (++turns_ % kTurnsBetweenLooks != 0) return;
  look_for_events_ = true;
  TakeCompletionEvents();
}

bool RdmaDevice::NextEvent(CmEvent* event) {
  if (!look_for_events_) return false;
  for (;;) {
    rdma_cm_event* taken = nullptr;
    if (rdma_get_cm_event(event_channel_.get(), &taken) != 0) {
      look_for_events_ = false;
      return false;
    }
    *event = {};
    auto* const endpoint = static_cast<CmEndpoint*>(taken->event == RDMA_CM_EVENT_CONNECT_REQUEST
                                                        ? taken->listen_id->context
                                                        : taken->id->context);
    const bool report = endpoint->OnEvent(*taken, event);
    // An id cannot be destroyed before its events are acknowledged (rdma_ack_cm_event(3)).
    rdma_ack_cm_event(taken);
    if (report) return true;
  }
}

}  // namespace

std::vector<std::string> ListRdmaDevices() {
  std::vector<std::string> names;
  int count = 0;
  ibv_device** const devices = ibv_get_device_list(&count);
  for (int i = 0; i < count; ++i) names.emplace_back(ibv_get_device_name(devices[i]));
  if (devices != nullptr) ibv_free_device_list(devices);
  return names;
}

absl::StatusOr<std::unique_ptr<Device>> CreateRdmaDevice(const RdmaDeviceOptions& options) {
  const std::vector<std::string> names = ListRdmaDevices();
  if (names.empty()) {
    return absl::NotFoundError(
        "this machine has no RDMA device: load its driver, or use the soft device");
  }
  if (options.device.empty() && names.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("device: name one of ", absl::StrJoin(names, ", ")));
  }
  const std::string& wanted = options.device.empty() ? names[0] : options.device;
  int count = 0;
  ibv_context** const contexts = rdma_get_devices(&count);
  ibv_context* found = nullptr;
  for (int i = 0; i < count; ++i) {
    if (wanted == ibv_get_device_name(contexts[i]->device)) found = contexts[i];
  }
  // The contexts live as long as librdmacm.
  if (contexts != nullptr) rdma_free_devices(contexts);
  if (found == nullptr) {
    const bool exists = std::find(names.begin(), names.end(), wanted) != names.end();
    if (!exists) {
      return absl::NotFoundError(
          absl::StrCat("device: no ", wanted, " here, there are ", absl::StrJoin(names, ", ")));
    }
    return absl::PermissionDeniedError(
        absl::StrCat("device ", wanted,
                     " cannot be opened: are /dev/infiniband/uverbs* and rdma_cm accessible "
                     "(group rdma) and the modules ib_uverbs and rdma_ucm loaded?"));
  }
  return RdmaDevice::Create(found, options);
}

}  // namespace baton::verbs::rdma
