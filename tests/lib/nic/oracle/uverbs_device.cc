// Sources: include/uapi/rdma of Linux 6.1 for the commands, rdma-core 44 for what libmlx5 asks.
#include "tests/lib/nic/oracle/uverbs_device.h"

#include <endian.h>
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "lib/base/check.h"
#include "lib/verbs/mlx5/doorbell.h"
#include "lib/verbs/mlx5/format.h"
#include "tests/harness/temp_directory.h"

namespace baton::nic::oracle {
namespace {

constexpr char kPath[] = "/dev/infiniband/uverbs0";
constexpr size_t kPage = 4096;
constexpr uint32_t kUarPages = 64;
// Doorbells in a page (mlx5dv.h has no names for them): for sends at 0x800, in two or more places.
constexpr size_t kFirstRing = 0x800;
constexpr size_t kRingBytes = 0x100;
constexpr size_t kRingPlaces = 4;

UverbsDevice* current = nullptr;

// Writes where libibverbs looks for devices, instead of /sys. It looks there once in a process.
void WriteSysfs() {
  static const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  if (const char* path = getenv("SYSFS_PATH"); path != nullptr && path == directory.path()) return;
  const std::pair<const char*, const char*> files[] = {
      {"class/infiniband_verbs/abi_version", "6"},
      {"class/infiniband_verbs/uverbs0/abi_version", "1"},
      {"class/infiniband_verbs/uverbs0/dev", "231:192"},
      {"class/infiniband_verbs/uverbs0/ibdev", "mlx5_0"},
      {"class/infiniband/mlx5_0/node_type", "1: CA"},
      {"class/infiniband/mlx5_0/node_guid", "0c42:a103:0065:aaaa"},
      {"class/infiniband/mlx5_0/fw_ver", "16.35.2000"},
      {"class/infiniband/mlx5_0/ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:7f00:0001"},
      {"class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "RoCE v2"},
      {"class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "lo"},
      {"class/infiniband/mlx5_0/device/modalias",
       "pci:v000015B3d00001017sv000015B3sd00000008bc02sc00i00"},
  };
  for (const auto& [name, text] : files) {
    const std::filesystem::path path = directory.File(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  BATON_CHECK(setenv("SYSFS_PATH", directory.path().c_str(), 1) == 0);
}

int ErrnoOf(const absl::Status& status) { return status.ok() ? 0 : EINVAL; }

}  // namespace

// The attributes of an ioctl.
class UverbsDevice::Attributes {
 public:
  explicit Attributes(ib_uverbs_ioctl_hdr* header) : header_(header) {}

  ib_uverbs_attr* Find(uint16_t id) const {
    for (uint16_t i = 0; i < header_->num_attrs; ++i) {
      if (header_->attrs[i].attr_id == id) return &header_->attrs[i];
    }
    return nullptr;
  }
  // Zeros where it is shorter, or not there.
  template <typename Value>
  Value In(uint16_t id) const {
    Value value = {};
    const ib_uverbs_attr* const attribute = Find(id);
    if (attribute == nullptr) return value;
    // Eight bytes or fewer lie in the attribute.
    const void* const from = attribute->len <= sizeof(attribute->data)
                                 ? static_cast<const void*>(&attribute->data)
                                 : reinterpret_cast<const void*>(attribute->data);
    std::memcpy(&value, from, std::min<size_t>(sizeof(value), attribute->len));
    return value;
  }
  template <typename Value>
  void Out(uint16_t id, const Value& value) const {
    ib_uverbs_attr* const attribute = Find(id);
    if (attribute == nullptr) return;
    std::memcpy(reinterpret_cast<void*>(attribute->data), &value,
                std::min<size_t>(sizeof(value), attribute->len));
    attribute->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
  }

  template <typename Value>
  Value Command() const {
    return In<Value>(UVERBS_ATTR_CORE_IN);
  }
  template <typename Value>
  Value DriverCommand() const {
    return In<Value>(UVERBS_ATTR_UHW_IN);
  }
  template <typename Value>
  void Reply(const Value& value) const {
    Out(UVERBS_ATTR_CORE_OUT, value);
  }
  template <typename Value>
  void DriverReply(const Value& value) const {
    Out(UVERBS_ATTR_UHW_OUT, value);
  }

 private:
  ib_uverbs_ioctl_hdr* const header_;
};

UverbsDevice::UverbsDevice(Client* client, SharedFile* arena)
    : client_(client), arena_(arena), uar_pages_(memfd_create("uar", MFD_CLOEXEC)) {
  BATON_CHECK(current == nullptr);
  BATON_CHECK(uar_pages_ && ftruncate(uar_pages_.get(), kUarPages * kPage) == 0);
  void* const pages =
      mmap(nullptr, kUarPages * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, uar_pages_.get(), 0);
  BATON_CHECK(pages != MAP_FAILED);
  uar_ = static_cast<uint8_t*>(pages);
  AddMemory(arena->fd(), arena->begin(), arena->bytes());
  reg_ = client->AddRegister({memories_[0].file, 0, 0}).value();
  WriteSysfs();
  current = this;
}

UverbsDevice::~UverbsDevice() {
  current = nullptr;
  munmap(uar_, kUarPages * kPage);
}

void UverbsDevice::AddMemory(int memfd, const uint8_t* begin, size_t bytes) {
  memories_.push_back({reinterpret_cast<uintptr_t>(begin), bytes, client_->AddFile(memfd).value()});
}

ibv_context* UverbsDevice::Open() {
  int count = 0;
  ibv_device** const devices = ibv_get_device_list(&count);
  BATON_CHECK(devices != nullptr && count == 1);
  BATON_CHECK(mlx5dv_is_supported(devices[0]));
  ibv_context* const context = ibv_open_device(devices[0]);
  BATON_CHECK(context != nullptr);
  ibv_free_device_list(devices);
  return context;
}

verbs::mlx5::DoorbellPage* UverbsDevice::page() const {
  return reinterpret_cast<verbs::mlx5::DoorbellPage*>(arena_->begin());
}

void UverbsDevice::Scan() const {
  std::atomic_ref(page()->attention).fetch_or(verbs::mlx5::kOverflow);
}

void UverbsDevice::ScanAtMost(uint64_t scans) const {
  for (; scans > 0; --scans) {
    Scan();
    if (std::atomic_ref(page()->sleeping).load() != 0) (void)eventfd_write(wake(), 1);
    usleep(50);
  }
}

std::optional<uint64_t> UverbsDevice::TakeRing() {
  std::optional<uint64_t> found;
  for (uint32_t page = 0; page < uar_count_; ++page) {
    for (size_t place = 0; place < kRingPlaces; ++place) {
      auto& word =
          *reinterpret_cast<uint64_t*>(uar_ + page * kPage + kFirstRing + place * kRingBytes);
      if (const uint64_t value = std::atomic_ref(word).exchange(0); value != 0) found = value;
    }
  }
  return found;
}

// ---------------------------------------------------------------- system calls

bool UverbsDevice::IsPath(const char* path) {
  return current != nullptr && path != nullptr && std::strcmp(path, kPath) == 0;
}

UverbsDevice* UverbsDevice::OfDescriptor(int fd) {
  return fd >= 0 && current != nullptr && current->descriptor_ == fd ? current : nullptr;
}

UverbsDevice* UverbsDevice::Current() { return current; }

// libmlx5 maps its doorbells from it, at the offsets that AllocateRegister names.
int UverbsDevice::OpenDescriptor() {
  descriptor_ = fcntl(uar_pages_.get(), F_DUPFD_CLOEXEC, 0);
  return descriptor_;
}

int UverbsDevice::Control(unsigned long request, void* argument) {
  int error = EPROTONOSUPPORT;  // libibverbs goes on with the command of the same meaning
  if (request == RDMA_VERBS_IOCTL) {
    auto* const header = static_cast<ib_uverbs_ioctl_hdr*>(argument);
    Attributes attributes(header);
    if (header->object_id == UVERBS_OBJECT_DEVICE &&
        header->method_id == UVERBS_METHOD_INVOKE_WRITE) {
      error = InvokeWrite(&attributes);
    } else if (header->object_id == MLX5_IB_OBJECT_UAR) {
      error = header->method_id == MLX5_IB_METHOD_UAR_OBJ_ALLOC ? AllocateRegister(&attributes) : 0;
    }
  }
  errno = error;
  return error == 0 ? 0 : -1;
}

int UverbsDevice::InvokeWrite(Attributes* attributes) {
  const bool asked = attributes->Find(UVERBS_ATTR_CORE_IN) != nullptr ||
                     attributes->Find(UVERBS_ATTR_CORE_OUT) != nullptr;
  if (!asked) return ENOSPC;  // libibverbs asks whether there is this method
  const auto command = static_cast<uint32_t>(attributes->Find(UVERBS_ATTR_WRITE_CMD)->data);
  return Command(command & 0xff, (command & IB_USER_VERBS_CMD_FLAG_EXTENDED) != 0, attributes);
}

int UverbsDevice::Command(uint32_t number, bool extended, Attributes* attributes) {
  switch (number) {
    case IB_USER_VERBS_CMD_GET_CONTEXT:
      return GetContext(attributes);
    case IB_USER_VERBS_CMD_QUERY_DEVICE:
      return QueryDevice(extended, attributes);
    case IB_USER_VERBS_CMD_QUERY_PORT:
      return QueryPort(attributes);
    case IB_USER_VERBS_CMD_ALLOC_PD: {
      ib_uverbs_alloc_pd_resp reply = {};
      reply.pd_handle = ++domains_;
      attributes->Reply(reply);
      attributes->DriverReply(mlx5_ib_alloc_pd_resp{domains_});
      return 0;
    }
    case IB_USER_VERBS_CMD_DEALLOC_PD:
      return 0;
    case IB_USER_VERBS_CMD_REG_MR:
      return RegisterMemory(attributes);
    case IB_USER_VERBS_CMD_DEREG_MR:
      return Destroy(control::Kind::kRegion, attributes->Command<ib_uverbs_dereg_mr>().mr_handle);
    case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
      return CreateCompletionChannel(attributes);
    case IB_USER_VERBS_CMD_CREATE_CQ:
      return CreateCompletionQueue(extended, attributes);
    case IB_USER_VERBS_CMD_DESTROY_CQ:
      return DestroyCompletionQueue(attributes);
    case IB_USER_VERBS_CMD_CREATE_QP:
      return CreateQueuePair(extended, attributes);
    case IB_USER_VERBS_CMD_MODIFY_QP:
      return ModifyQueuePair(attributes);
    case IB_USER_VERBS_CMD_QUERY_QP:
      return QueryQueuePair(attributes);
    case IB_USER_VERBS_CMD_DESTROY_QP: {
      const uint32_t handle = attributes->Command<ib_uverbs_destroy_qp>().qp_handle;
      attributes->Reply(ib_uverbs_destroy_qp_resp{});
      queue_pairs_.erase(handle);
      return Destroy(control::Kind::kQueuePair, handle);
    }
    default:
      return EOPNOTSUPP;
  }
}

// Registers of a context that has none of its own are allocated one by one, each in its page.
int UverbsDevice::AllocateRegister(Attributes* attributes) {
  if (uar_count_ == kUarPages) return ENOMEM;
  const uint32_t page = uar_count_++;
  attributes->Find(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE)->data = page;
  attributes->Out(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, uint64_t{page} * kPage);
  attributes->Out(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, uint32_t{kPage});
  attributes->Out(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, page);
  return 0;
}

int UverbsDevice::GetContext(Attributes* attributes) {
  ib_uverbs_get_context_resp reply = {};
  reply.async_fd = static_cast<uint32_t>(eventfd(0, EFD_CLOEXEC));  // libibverbs closes it
  reply.num_comp_vectors = 1;
  mlx5_ib_alloc_ucontext_resp driver = {};
  driver.qp_tab_size = verbs::mlx5::kNumberMask + 1;
  driver.bf_reg_size = 512;
  driver.tot_bfregs = 0;  // so that each is allocated
  driver.num_dyn_bfregs = 512;
  driver.num_uars_per_page = 1;
  driver.log_uar_size = 12;
  driver.cache_line_size = 64;
  driver.max_sq_desc_sz = 1024;
  driver.max_rq_desc_sz = 512;
  driver.max_send_wqebb = verbs::mlx5::kMaxSlots;
  driver.max_recv_wr = verbs::mlx5::kMaxSlots;
  driver.num_ports = 1;
  driver.response_length = sizeof(driver);
  driver.cqe_version = 0;  // completions name a queue pair by its number
  driver.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH;
  attributes->Reply(reply);
  attributes->DriverReply(driver);
  return 0;
}

int UverbsDevice::QueryDevice(bool extended, Attributes* attributes) {
  ib_uverbs_ex_query_device_resp reply = {};
  reply.response_length = sizeof(reply);
  ib_uverbs_query_device_resp& base = reply.base;
  base.fw_ver = 16ull << 32;
  base.max_mr_size = ~0ull;
  base.page_size_cap = 0xfffff000;
  base.vendor_id = 0x15b3;
  base.vendor_part_id = 4119;
  base.max_qp = 1 << 17;
  base.max_qp_wr = verbs::mlx5::kMaxSlots;
  base.max_sge = base.max_sge_rd = 30;
  base.max_cq = 1 << 16;
  base.max_cqe = 1 << 18;
  base.max_mr = 1 << 16;
  base.max_pd = 1 << 16;
  base.max_qp_rd_atom = base.max_qp_init_rd_atom = 16;
  base.max_res_rd_atom = 1 << 20;
  base.atomic_cap = IBV_ATOMIC_HCA;
  base.max_pkeys = 1;
  base.phys_port_cnt = 1;
  if (!extended) {
    attributes->Reply(base);
    return 0;
  }
  mlx5_ib_query_device_resp driver = {};
  driver.response_length = sizeof(driver);
  attributes->Reply(reply);
  attributes->DriverReply(driver);
  return 0;
}

int UverbsDevice::QueryPort(Attributes* attributes) {
  ib_uverbs_query_port_resp reply = {};
  reply.max_msg_sz = 1u << 30;
  reply.gid_tbl_len = reply.pkey_tbl_len = 1;
  reply.state = IBV_PORT_ACTIVE;
  reply.max_mtu = reply.active_mtu = IBV_MTU_4096;
  reply.active_width = 2;
  reply.active_speed = 32;
  reply.phys_state = 5;
  reply.link_layer = IBV_LINK_LAYER_ETHERNET;
  attributes->Reply(reply);
  return 0;
}

// The NIC refuses a place that is in no file of its client's.
control::Place UverbsDevice::PlaceOf(uint64_t address) const {
  for (const Memory& memory : memories_) {
    if (address - memory.begin < memory.bytes) return {memory.file, 0, address - memory.begin};
  }
  return {};
}

int UverbsDevice::RegisterMemory(Attributes* attributes) {
  const auto command = attributes->Command<ib_uverbs_reg_mr>();
  static_assert(IBV_ACCESS_LOCAL_WRITE == static_cast<int>(verbs::kLocalWrite) &&
                IBV_ACCESS_REMOTE_WRITE == static_cast<int>(verbs::kRemoteWrite) &&
                IBV_ACCESS_REMOTE_READ == static_cast<int>(verbs::kRemoteRead) &&
                IBV_ACCESS_REMOTE_ATOMIC == static_cast<int>(verbs::kRemoteAtomic));
  const auto key = client_->AddRegion(PlaceOf(command.start), command.length, command.hca_va,
                                      command.access_flags, command.pd_handle);
  if (!key.ok()) return ErrnoOf(key.status());
  ib_uverbs_reg_mr_resp reply = {};
  reply.mr_handle = reply.lkey = reply.rkey = *key;
  attributes->Reply(reply);
  return 0;
}

int UverbsDevice::CreateCompletionChannel(Attributes* attributes) {
  auto made = client_->AddChannel();
  if (!made.ok()) return ErrnoOf(made.status());
  const int fd = made->descriptor.Release();  // libibverbs closes it
  channels_[fd].number = made->number;
  ib_uverbs_create_comp_channel_resp reply = {};
  reply.fd = static_cast<uint32_t>(fd);
  attributes->Reply(reply);
  return 0;
}

// The NIC sends a byte for each.
ssize_t UverbsDevice::ReadEvent(int fd, void* event, size_t size) {
  CompletionChannel& channel = channels_.at(fd);
  char byte;
  if (recv(fd, &byte, sizeof(byte), MSG_DONTWAIT) != 1) return -1;
  ++channel.reported;
  ib_uverbs_comp_event_desc told = {};
  told.cq_handle = channel.user_handle;
  BATON_CHECK(size == sizeof(told));
  std::memcpy(event, &told, sizeof(told));
  return sizeof(told);
}

int UverbsDevice::CreateCompletionQueue(bool extended, Attributes* attributes) {
  // The extended command begins with the same members as the other one has behind its `response`.
  uint64_t user_handle = 0;
  uint32_t cqe = 0;
  int channel_fd = -1;
  if (extended) {
    const auto command = attributes->Command<ib_uverbs_ex_create_cq>();
    user_handle = command.user_handle;
    cqe = command.cqe;
    channel_fd = command.comp_channel;
  } else {
    const auto command = attributes->Command<ib_uverbs_create_cq>();
    user_handle = command.user_handle;
    cqe = command.cqe;
    channel_fd = command.comp_channel;
  }
  const auto driver = attributes->DriverCommand<mlx5_ib_create_cq>();
  CompletionChannel* const channel = channel_fd >= 0 ? &channels_.at(channel_fd) : nullptr;
  control::CompletionQueue message;
  message.entries = PlaceOf(driver.buf_addr);
  message.records = PlaceOf(driver.db_addr);
  message.entry_count = std::bit_ceil(cqe + 1);
  message.entry_bytes = driver.cqe_size;
  message.reg = reg_.number;
  message.channel = channel != nullptr ? channel->number : 0;
  const auto number = client_->Add(message);
  if (!number.ok()) return ErrnoOf(number.status());
  if (channel != nullptr) {
    channel->queue = *number;
    channel->user_handle = user_handle;
  }
  ib_uverbs_ex_create_cq_resp reply = {};
  reply.base.cq_handle = *number;
  reply.base.cqe = cqe;
  reply.response_length = sizeof(reply);
  if (extended) {
    attributes->Reply(reply);
  } else {
    attributes->Reply(reply.base);
  }
  attributes->DriverReply(mlx5_ib_create_cq_resp{*number, 0});
  return 0;
}

// libibverbs waits until its user has acknowledged all events that were reported.
int UverbsDevice::DestroyCompletionQueue(Attributes* attributes) {
  const uint32_t number = attributes->Command<ib_uverbs_destroy_cq>().cq_handle;
  ib_uverbs_destroy_cq_resp reply = {};
  const auto found = std::find_if(channels_.begin(), channels_.end(), [number](const auto& entry) {
    return entry.second.queue == number;
  });
  if (found != channels_.end()) {
    reply.comp_events_reported = found->second.reported;
    channels_.erase(found);
  }
  attributes->Reply(reply);
  return Destroy(control::Kind::kCompletionQueue, number);
}

int UverbsDevice::CreateQueuePair(bool extended, Attributes* attributes) {
  ib_uverbs_ex_create_qp_resp reply = {};
  reply.response_length = sizeof(reply);
  control::QueuePair message;
  const auto take = [&](const auto& command) {
    message.domain = command.pd_handle;
    message.send_queue = command.send_cq_handle;
    message.receive_queue = command.recv_cq_handle;
    reply.base.max_send_wr = command.max_send_wr;
    reply.base.max_recv_wr = command.max_recv_wr;
    reply.base.max_send_sge = command.max_send_sge;
    reply.base.max_recv_sge = command.max_recv_sge;
    reply.base.max_inline_data = command.max_inline_data;
  };
  if (extended) {
    take(attributes->Command<ib_uverbs_ex_create_qp>());
  } else {
    take(attributes->Command<ib_uverbs_create_qp>());
  }
  // The receives lie first, then the sends.
  const auto driver = attributes->DriverCommand<mlx5_ib_create_qp>();
  message.receives = PlaceOf(driver.buf_addr);
  message.receive_slots = driver.rq_wqe_count;
  message.receive_bytes = 1u << driver.rq_wqe_shift;
  message.sends = message.receives;
  message.sends.offset += uint64_t{message.receive_slots} * message.receive_bytes;
  message.send_slots = driver.sq_wqe_count;
  message.records = PlaceOf(driver.db_addr);
  message.reg = reg_.number;
  const auto number = client_->Add(message);
  if (!number.ok()) return ErrnoOf(number.status());
  queue_pairs_[*number] = {};
  reply.base.qp_handle = reply.base.qpn = *number;
  if (extended) {
    attributes->Reply(reply);
  } else {
    attributes->Reply(reply.base);
  }
  attributes->DriverReply(mlx5_ib_create_qp_resp{});
  return 0;
}

int UverbsDevice::ModifyQueuePair(Attributes* attributes) {
  const auto command = attributes->Command<ib_uverbs_modify_qp>();
  QueuePairState& state = queue_pairs_[command.qp_handle];
  if ((command.attr_mask & IBV_QP_DEST_QPN) != 0) state.peer = command.dest_qp_num;
  if ((command.attr_mask & IBV_QP_STATE) == 0) return 0;
  switch (command.qp_state) {
    case IBV_QPS_RESET:
      state.fresh = false;
      return ErrnoOf(client_->Modify(command.qp_handle, verbs::QueuePairState::kReset));
    case IBV_QPS_INIT:
      if (std::exchange(state.fresh, false)) return 0;
      return ErrnoOf(client_->Modify(command.qp_handle, verbs::QueuePairState::kInit));
    case IBV_QPS_RTR:
      return 0;
    case IBV_QPS_RTS:
      return ErrnoOf(ConnectQueuePair(client_, command.qp_handle, state.peer, command.rnr_retry));
    case IBV_QPS_ERR:
      return ErrnoOf(client_->Modify(command.qp_handle, verbs::QueuePairState::kError));
    default:
      return EINVAL;
  }
}

int UverbsDevice::QueryQueuePair(Attributes* attributes) {
  const auto state = client_->Query(attributes->Command<ib_uverbs_query_qp>().qp_handle);
  if (!state.ok()) return ErrnoOf(state.status());
  ib_uverbs_query_qp_resp reply = {};
  switch (*state) {
    case verbs::QueuePairState::kReadyToSend:
      reply.qp_state = IBV_QPS_RTS;
      break;
    case verbs::QueuePairState::kError:
      reply.qp_state = IBV_QPS_ERR;
      break;
    default:
      reply.qp_state = IBV_QPS_INIT;
      break;
  }
  attributes->Reply(reply);
  return 0;
}

int UverbsDevice::Destroy(control::Kind kind, uint32_t number) {
  return ErrnoOf(client_->Destroy(kind, number));
}

}  // namespace baton::nic::oracle
