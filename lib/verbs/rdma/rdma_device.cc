#include "lib/verbs/rdma/rdma_device.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/process_limits.h"
#include "lib/base/status.h"
#include "lib/verbs/rdma/completion.h"
#include "lib/verbs/rdma/connection.h"
#include "lib/verbs/rdma/device_core.h"
#include "lib/verbs/rdma/objects.h"
#include "lib/verbs/rdma/port.h"
#include "lib/verbs/rdma/provider.h"
#include "lib/verbs/rdma/queue_pair.h"
#include "lib/verbs/rdma/region_handle.h"
#include "lib/verbs/rdma/shared_receive_queue.h"

namespace baton::verbs::rdma {
namespace {

// A look at the channels is a system call, so the device looks once in this many turns, and around
// a sleep.
constexpr uint32_t kTurnsBetweenLooks = 64;

// The most descriptors that one look reports. The next look begins with those that it left out.
constexpr int kChannelsPerLook = 16;

class RdmaRegion final : public MemoryRegion {
 public:
  RdmaRegion(DeviceCore* core, VerbsRegion region) : core_(core), region_(std::move(region)) {}
  ~RdmaRegion() override {
    if (core_->forked) (void)region_.release();
  }
  uint32_t lkey() const override { return region_->lkey; }
  uint32_t rkey() const override { return region_->rkey; }

 private:
  DeviceCore* const core_;
  VerbsRegion region_;
};

// A region that a former opener had registered. Nobody has an object of libibverbs for it.
class FormerRegion final : public MemoryRegion {
 public:
  FormerRegion(int uverbs, uint32_t handle, uint32_t rkey)
      : uverbs_(uverbs), handle_(handle), rkey_(rkey) {}
  ~FormerRegion() override { (void)DestroyRegion(uverbs_, handle_); }
  uint32_t lkey() const override { return rkey_; }
  uint32_t rkey() const override { return rkey_; }

 private:
  const int uverbs_;
  const uint32_t handle_, rkey_;
};

int AccessOf(uint32_t access) {
  return ((access & kLocalWrite) != 0 ? IBV_ACCESS_LOCAL_WRITE : 0) |
         ((access & kRemoteWrite) != 0 ? IBV_ACCESS_REMOTE_WRITE : 0) |
         ((access & kRemoteRead) != 0 ? IBV_ACCESS_REMOTE_READ : 0) |
         ((access & kRemoteAtomic) != 0 ? IBV_ACCESS_REMOTE_ATOMIC : 0);
}

absl::Status CannotRegister(int error, size_t length) {
  if (error == ENOMEM) BATON_RETURN_IF_ERROR(CheckMemlockLimit(length));
  return ErrnoStatus(error, absl::StrCat("ibv_reg_mr of ", length, " bytes"));
}

std::string Label(const Gid& gid) { return absl::StrCat(gid.index, ": ", gid.text); }

absl::StatusOr<Gid> FindGid(ibv_context* context, const RdmaDeviceOptions& options) {
  std::vector<std::string> usable;
  for (const Gid& gid : ReadGids(context, options.port)) {
    const bool good = gid.roce_v2 && !gid.address.empty();
    if (good && gid.index == *options.gid_index) return gid;
    if (good) usable.push_back(Label(gid));
  }
  return absl::NotFoundError(absl::StrCat(
      "gid_index: ", *options.gid_index, " of port ", options.port, " of device ",
      ibv_get_device_name(context->device),
      " is no GID of RoCE v2 that is an address which connections can be made to; there are: ",
      usable.empty() ? "none (give its network interface an IP address)"
                     : absl::StrJoin(usable, ", ")));
}

class RdmaDevice final : public Device {
 public:
  static absl::StatusOr<std::unique_ptr<Device>> Create(VerbsContext context,
                                                        const RdmaDeviceOptions& options);
  static absl::StatusOr<std::unique_ptr<Device>> Inherit(const BatonInheritedDevice& described);
  ~RdmaDevice() override;

  std::string_view name() const override { return ibv_get_device_name(core_.context->device); }
  DeviceLimits limits() const override { return limits_; }
  DeviceInfo info() const override;
  absl::StatusOr<std::unique_ptr<MemoryRegion>> RegisterMemory(void* address, size_t length,
                                                               uint32_t access) override;
  // libibverbs documents all its functions as thread-safe. Registering pins every page.
  bool registers_on_any_thread() const override { return true; }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t entries) override;
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    BATON_RETURN_IF_ERROR(core_.CheckOpener("making a queue pair"));
    return RdmaQueuePair::Create(&core_, options);
  }
  absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
      uint32_t entries, uint32_t max_scatter_gather) override;
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const Address& address, int backlog) override {
    BATON_RETURN_IF_ERROR(core_.CheckOpener("listen"));
    return RdmaListener::Create(&core_, address, backlog);
  }
  absl::StatusOr<std::unique_ptr<ConnectionId>> Connect(
      const Address& address, QueuePair* queue_pair,
      const ConnectionParameters& parameters) override {
    BATON_RETURN_IF_ERROR(core_.CheckOpener("connect"));
    return RdmaConnectionId::Connect(&core_, address, static_cast<RdmaQueuePair*>(queue_pair),
                                     parameters);
  }
  bool NextEvent(CmEvent* event) override;
  bool NextDeviceEvent(DeviceEvent* event) override { return core_.TakeDeviceEvent(event); }
  void Progress() override;
  int event_fd() const override { return core_.epoll.get(); }
  absl::Status CheckForkable() const override;
  absl::Status AfterFork() override;
  std::vector<int> ForkedDescriptors() const override;
  absl::Status Describe(BatonInheritedDevice* described) const override;
  absl::StatusOr<std::unique_ptr<CompletionQueue>> Inherit(
      const BatonInheritedCompletionQueue& described) override {
    return std::make_unique<RdmaCompletionQueue>(&core_, described);
  }
  absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> Inherit(
      const BatonInheritedSharedReceiveQueue& described) override {
    return std::make_unique<RdmaSharedReceiveQueue>(&core_, described);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> Inherit(const BatonInheritedQueuePair& described,
                                                     CompletionQueue* completes,
                                                     SharedReceiveQueue* shared) override {
    QueuePairOptions options;
    options.send_queue = options.receive_queue = completes;
    options.shared_receive_queue = shared;
    options.max_scatter_gather = described.max_scatter_gather;
    return std::make_unique<RdmaQueuePair>(&core_, described, options);
  }
  absl::Status CheckFollowable() const override { return CheckForkable(); }
  absl::Status SetFollowable(bool followable) override {
    return core_.cm.SetFollowable(followable);
  }
  absl::Status BeginTakeOver() override;
  absl::Status TakeOver() override;
  absl::StatusOr<AdoptedId> AdoptId(FormerId former) override {
    return RdmaConnectionId::Adopt(&core_, former);
  }
  absl::StatusOr<std::unique_ptr<MemoryRegion>> AdoptRegion(uint32_t rkey) override;
  absl::Status DestroyUnknownIds() override;

 private:
  absl::Status Open();
  absl::Status WatchAll();
  absl::Status ReadLimits();
  absl::Status CheckLimit(const char* what, uint32_t value, uint32_t most) const;
  void EndUnanswered();
  void TakeAsynchronousEvents();
  void OnAsynchronousEvent(const ibv_async_event& event);
  void WatchRemoval();

  DeviceCore core_;
  std::string gid_;  // of all connections; empty: each has that of its address
  std::unique_ptr<RdmaListener> sentinel_;
  DeviceLimits limits_;
  uint32_t turns_ = 0;
  bool look_for_events_ = true;
};

absl::StatusOr<std::unique_ptr<Device>> RdmaDevice::Create(VerbsContext context,
                                                           const RdmaDeviceOptions& options) {
  auto device = std::make_unique<RdmaDevice>();
  device->core_.context = std::move(context);
  device->core_.port = options.port;
  if (options.gid_index) {
    BATON_ASSIGN_OR_RETURN(const Gid gid, FindGid(device->core_.context.get(), options));
    device->core_.source = gid.address;
    device->gid_ = Label(gid);
  }
  device->core_.resolve_timeout_ms = options.resolve_timeout_ms;
  BATON_RETURN_IF_ERROR(device->core_.unanswered.Open(options.connect_timeout_ms));
  BATON_RETURN_IF_ERROR(device->Open());
  if (options.in_network_namespace && device->core_.provider->first_network_namespace_only) {
    return absl::FailedPreconditionError(
        absl::StrCat("network_namespace: device ", std::string(device->name()),
                     " has connections in the machine's first network namespace alone (Soft-RoCE, "
                     "Linux 6.1): leave it out, or use another device or soft"));
  }
  return device;
}

DeviceInfo RdmaDevice::info() const {
  DeviceInfo info = rdma::Describe(core_.context.get(), core_.port);
  info.gid = gid_;
  return info;
}

absl::Status RdmaDevice::Open() {
  BATON_RETURN_IF_ERROR(ReadLimits());
  core_.domain.reset(ibv_alloc_pd(core_.context.get()));
  if (!core_.domain) return ErrnoStatus(errno, "ibv_alloc_pd");
  BATON_RETURN_IF_ERROR(core_.cm.Open());
  BATON_RETURN_IF_ERROR(core_.processes.Open());
  BATON_RETURN_IF_ERROR(WatchAll());
  WatchRemoval();
  return absl::OkStatus();
}

absl::Status RdmaDevice::WatchAll() {
  BATON_RETURN_IF_ERROR(core_.OpenSignals());
  for (const int fd : {core_.cm->fd(), core_.context->async_fd, core_.unanswered.fd()}) {
    BATON_RETURN_IF_ERROR(core_.Watch(fd));
  }
  return absl::OkStatus();
}

// rdma_cm reports a removal only to processes that have an id at the device, before the kernel
// waits for them. A service without connections that listens at all addresses has none, so this
// makes one.
void RdmaDevice::WatchRemoval() {
  for (const Gid& gid : ReadGids(core_.context.get(), core_.port)) {
    if (gid.address.empty()) continue;
    absl::StatusOr<std::unique_ptr<RdmaListener>> bound =
        RdmaListener::Bind(&core_, {gid.address, 0});
    if (!bound.ok()) continue;  // an interface that is down
    sentinel_ = *std::move(bound);
    return;
  }
}

absl::Status RdmaDevice::ReadLimits() {
  ibv_device_attr device = {};
  ibv_port_attr port = {};
  int error = ibv_query_device(core_.context.get(), &device);
  if (error != 0) return ErrnoStatus(error, "ibv_query_device");
  error = ibv_query_port(core_.context.get(), core_.port, &port);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("ibv_query_port ", core_.port));
  if (core_.context->device->transport_type == IBV_TRANSPORT_IWARP) {
    return absl::FailedPreconditionError(
        absl::StrCat("device ", std::string(name()),
                     " is iWARP: its queue pairs cannot be made before their connections, which "
                     "Baton needs; use an InfiniBand or RoCE device"));
  }
  limits_.max_queue_pairs = static_cast<uint32_t>(device.max_qp);
  limits_.max_completion_queues = static_cast<uint32_t>(device.max_cq);
  limits_.max_completion_queue_entries = static_cast<uint32_t>(device.max_cqe);
  limits_.max_send_requests = static_cast<uint32_t>(device.max_qp_wr);
  limits_.max_receive_requests = static_cast<uint32_t>(device.max_qp_wr);
  limits_.max_scatter_gather = static_cast<uint32_t>(device.max_sge);
  limits_.max_memory_regions = static_cast<uint32_t>(device.max_mr);
  limits_.max_private_data_connect = kMaxConnectData;
  limits_.max_private_data_accept = kMaxAcceptData;
  limits_.max_private_data_reject = kMaxRejectData;
  limits_.max_initiator_depth = static_cast<uint32_t>(device.max_qp_init_rd_atom);
  limits_.max_shared_receive_queues = static_cast<uint32_t>(device.max_srq);
  limits_.max_shared_receive_requests = static_cast<uint32_t>(device.max_srq_wr);
  limits_.max_shared_receive_scatter_gather = static_cast<uint32_t>(device.max_srq_sge);
  limits_.max_message_bytes = port.max_msg_sz;
  limits_.atomics = device.atomic_cap != IBV_ATOMIC_NONE;
  // The flag stands for SEND_WITH_INV, beside fast registrations (ib_verbs.h of the kernel).
  limits_.send_with_invalidate = (device.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS) != 0;
  core_.peer_rights = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  if (limits_.atomics) core_.peer_rights |= IBV_ACCESS_REMOTE_ATOMIC;
  core_.provider = &ProviderOf(device);
  core_.max_responder_resources = static_cast<uint8_t>(std::min(device.max_qp_rd_atom, 255));
  core_.max_initiator_depth = static_cast<uint8_t>(std::min(device.max_qp_init_rd_atom, 255));
  return absl::OkStatus();
}

// ---------------------------------------------------------------- forked processes

// rdma.md, "After a fork", has what a provider must be like, and what was tried.
absl::Status RdmaDevice::CheckForkable() const {
  if (core_.provider->post_send_forked == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("device ", std::string(name()),
                     ": its provider may keep its place in a queue in memory that a forked process "
                     "has a copy of; only Soft-RoCE's is known not to"));
  }
  BATON_RETURN_IF_ERROR(core_.provider->check_forkable(core_.context.get()));
  return CheckMemoryForkable();
}

absl::Status RdmaDevice::AfterFork() {
  core_.forked = true;
  core_.processes->forked.store(1);
  core_.pushed.clear();
  core_.device_events.clear();
  look_for_events_ = false;
  for (RdmaCompletionQueue* const queue : core_.completion_queues) queue->AfterFork();
  BATON_RETURN_IF_ERROR(core_.OpenSignals());
  // Only after OpenSignals(), because the timer and the signal were the opener's.
  for (const auto& [number, queue_pair] : core_.queue_pairs) queue_pair->ForgetLastReceive();
  return absl::OkStatus();
}

absl::Status RdmaDevice::Describe(BatonInheritedDevice* described) const {
  if (!core_.forked) return absl::FailedPreconditionError("no forked process has the device");
  *described = {};
  described->kind = BATON_RDMA_DEVICE;
  described->port = core_.port;
  described->context = core_.context.get();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Device>> RdmaDevice::Inherit(const BatonInheritedDevice& described) {
  auto device = std::make_unique<RdmaDevice>();
  DeviceCore& core = device->core_;
  core.context.reset(static_cast<ibv_context*>(described.context));
  core.port = static_cast<uint8_t>(described.port);
  core.forked = true;
  device->look_for_events_ = false;
  BATON_RETURN_IF_ERROR(device->ReadLimits());
  BATON_RETURN_IF_ERROR(core.processes.Open());
  core.processes->forked.store(1);
  BATON_RETURN_IF_ERROR(core.OpenSignals());
  return device;
}

absl::Status RdmaDevice::BeginTakeOver() {
  BATON_RETURN_IF_ERROR(CheckFollowable());
  return core_.cm.BeginTakeOver();
}

// Asynchronous events come by a file that this process has, too. One that the dead process had read
// is lost: what it said of a queue pair is asked for here.
absl::Status RdmaDevice::TakeOver() {
  core_.followed = true;
  core_.pushed.clear();
  core_.device_events.clear();
  for (CmId& id : core_.kept_ids) id.Release();
  core_.kept_ids.clear();
  core_.cm.TakeOver();
  BATON_RETURN_IF_ERROR(core_.unanswered.Open(core_.unanswered.timeout_ms()));
  BATON_RETURN_IF_ERROR(WatchAll());
  for (RdmaCompletionQueue* const queue : core_.completion_queues) queue->AfterFork();
  for (const auto& [number, queue_pair] : core_.queue_pairs) queue_pair->OnFormer();
  look_for_events_ = core_.look = true;
  return absl::OkStatus();
}

// While the port is down, nothing can be told to peers (DeviceCore::Dispose).
absl::Status RdmaDevice::DestroyUnknownIds() {
  core_.cm.TakeRest();
  if (!core_.IsPortDown()) core_.cm.LetFormerClose();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> RdmaDevice::AdoptRegion(uint32_t rkey) {
  const std::optional<uint32_t> handle = FindRegion(core_.context->cmd_fd, rkey);
  if (!handle) return absl::NotFoundError(absl::StrCat("no region has the rkey ", rkey));
  return std::make_unique<FormerRegion>(core_.context->cmd_fd, *handle, rkey);
}

// Leaves out those of asynchronous events and the connection manager.
std::vector<int> RdmaDevice::ForkedDescriptors() const {
  std::vector<int> descriptors = {core_.context->cmd_fd};
  for (const RdmaCompletionQueue* const queue : core_.completion_queues) {
    descriptors.push_back(queue->channel_fd());
  }
  return descriptors;
}

// A forked process does not destroy what the opener has created.
RdmaDevice::~RdmaDevice() {
  if (!core_.forked) return;
  for (CmId& id : core_.kept_ids) id.Release();
  if (core_.cm) core_.cm.Leave();
  (void)core_.domain.release();
  (void)core_.context.release();
}

// ---------------------------------------------------------------- objects

absl::StatusOr<std::unique_ptr<MemoryRegion>> RdmaDevice::RegisterMemory(void* address,
                                                                         size_t length,
                                                                         uint32_t access) {
  BATON_RETURN_IF_ERROR(core_.CheckOpener("registering memory"));
  VerbsRegion region(ibv_reg_mr(core_.domain.get(), address, length, AccessOf(access)));
  if (!region) return CannotRegister(errno, length);
  return std::make_unique<RdmaRegion>(&core_, std::move(region));
}

absl::Status RdmaDevice::CheckLimit(const char* what, uint32_t value, uint32_t most) const {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": ", value, ", device ", std::string(name()), " has at most ", most));
}

absl::StatusOr<std::unique_ptr<CompletionQueue>> RdmaDevice::CreateCompletionQueue(
    uint32_t entries) {
  BATON_RETURN_IF_ERROR(core_.CheckOpener("making a completion queue"));
  BATON_RETURN_IF_ERROR(CheckLimit("entries", entries, limits_.max_completion_queue_entries));
  return RdmaCompletionQueue::Create(&core_, entries);
}

absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> RdmaDevice::CreateSharedReceiveQueue(
    uint32_t entries, uint32_t max_scatter_gather) {
  BATON_RETURN_IF_ERROR(core_.CheckOpener("making a shared receive queue"));
  BATON_RETURN_IF_ERROR(CheckLimit("entries of a shared receive queue", entries,
                                   limits_.max_shared_receive_requests));
  BATON_RETURN_IF_ERROR(CheckLimit("max_scatter_gather of a shared receive queue",
                                   max_scatter_gather, limits_.max_shared_receive_scatter_gather));
  return RdmaSharedReceiveQueue::Create(&core_, entries, max_scatter_gather);
}

void RdmaDevice::Progress() {
  if (++turns_ % kTurnsBetweenLooks != 0 && !core_.look) return;
  core_.look = false;
  std::array<epoll_event, kChannelsPerLook> readable;
  const int count = epoll_wait(core_.epoll.get(), readable.data(), kChannelsPerLook, 0);
  for (int i = 0; i < count; ++i) {
    if (!core_.forked && readable[i].data.fd == core_.cm->fd()) look_for_events_ = true;
    if (!core_.forked && readable[i].data.fd == core_.context->async_fd) TakeAsynchronousEvents();
    if (readable[i].data.fd == core_.awaiting_last_receive.fd()) core_.EndWaitsForLastReceives();
    if (readable[i].data.fd == core_.unanswered.fd()) EndUnanswered();
  }
}

void RdmaDevice::EndUnanswered() {
  while (RdmaConnectionId* const connection = core_.unanswered.TakeExpired()) {
    CmEvent event;
    if (connection->OnNoAnswer(&event)) core_.PushEvent(std::move(event));
  }
}

void RdmaDevice::TakeAsynchronousEvents() {
  ibv_async_event event = {};
  while (core_.HasRoomForDeviceEvents()) {
    errno = 0;
    if (ibv_get_async_event(core_.context.get(), &event) != 0) {
      // EIO: the kernel has taken the device away (ib_uverbs_event_read).
      if (errno == EIO) core_.Lose("it was removed from the machine");
      return;
    }
    OnAsynchronousEvent(event);
    // The event's object cannot be destroyed before this (ibv_get_async_event(3)).
    ibv_ack_async_event(&event);
  }
  core_.look = true;  // there may be more
}

void RdmaDevice::OnAsynchronousEvent(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      (void)static_cast<RdmaQueuePair*>(event.element.qp->qp_context)->SetError();
      break;
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      static_cast<RdmaQueuePair*>(event.element.qp->qp_context)
          ->OnLastReceive(ibv_event_type_str(event.event_type));
      break;
    case IBV_EVENT_COMM_EST:
      if (auto* const link = static_cast<RdmaQueuePair*>(event.element.qp->qp_context)->link()) {
        link->PeerIsReady();
      }
      break;
    case IBV_EVENT_CQ_ERR:
      static_cast<RdmaCompletionQueue*>(event.element.cq->cq_context)->SetUnusable();
      break;
    case IBV_EVENT_DEVICE_FATAL:
      // The kernel also reports a removal like this, if the device's driver can finish it without
      // this process.
      core_.Lose(ibv_event_type_str(event.event_type));
      break;
    case IBV_EVENT_PORT_ACTIVE:
      if (event.element.port_num == core_.port) core_.OnPortUp();
      break;
    default:
      break;
  }
  if (std::optional<DeviceEvent> told = ToDeviceEvent(event)) {
    if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED || event.event_type == IBV_EVENT_SRQ_ERR) {
      told->shared_receive_queue =
          static_cast<RdmaSharedReceiveQueue*>(event.element.srq->srq_context);
    }
    core_.PushDeviceEvent(*std::move(told));
  }
}

bool RdmaDevice::NextEvent(CmEvent* event) {
  if (core_.TakePushed(event)) return true;
  return look_for_events_ && (look_for_events_ = core_.cm.NextEvent(event));
}

}  // namespace

std::vector<std::string> ListRdmaDevices() {
  std::vector<std::string> names;
  int count = 0;
  const DeviceList devices(ibv_get_device_list(&count));
  for (int i = 0; i < count; ++i) names.emplace_back(ibv_get_device_name(devices.get()[i]));
  return names;
}

absl::StatusOr<std::unique_ptr<Device>> InheritRdmaDevice(const BatonInheritedDevice& described) {
  return RdmaDevice::Inherit(described);
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
  const DeviceList devices(ibv_get_device_list(&count));
  for (int i = 0; i < count; ++i) {
    if (wanted != ibv_get_device_name(devices.get()[i])) continue;
    VerbsContext context(ibv_open_device(devices.get()[i]));
    if (context) return RdmaDevice::Create(std::move(context), options);
    return ErrnoStatus(errno, absl::StrCat("device ", wanted,
                                           " cannot be opened: is /dev/infiniband/uverbs* there "
                                           "and accessible (module ib_uverbs, group rdma)?"));
  }
  return absl::NotFoundError(
      absl::StrCat("device: no ", wanted, " here, there are ", absl::StrJoin(names, ", ")));
}

}  // namespace baton::verbs::rdma
