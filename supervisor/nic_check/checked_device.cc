#include "supervisor/nic_check/checked_device.h"

#include <netinet/in.h>
#include <sched.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace baton::nic_check {
namespace {

// The kernel routes to a RoCE v2 gid as to its IP address, and a link-local gid need not be an
// address of the machine.
int PreferenceOf(const ibv_gid_entry& entry) {
  if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) return 1;
  in6_addr address = {};
  std::memcpy(&address, entry.gid.raw, sizeof(address));
  if (IN6_IS_ADDR_V4MAPPED(&address)) return 4;
  return IN6_IS_ADDR_LINKLOCAL(&address) ? 2 : 3;
}

std::optional<ibv_gid_entry> FindGid(ibv_context* context, uint8_t port, int count) {
  std::optional<ibv_gid_entry> best;
  for (int index = 0; index < count && index < UINT8_MAX; ++index) {
    ibv_gid_entry entry = {};
    if (ibv_query_gid_ex(context, port, static_cast<uint32_t>(index), &entry, 0) != 0) continue;
    if (!best || PreferenceOf(entry) > PreferenceOf(*best)) best = entry;
  }
  return best;
}

absl::Status Modify(ibv_qp* queue_pair, ibv_qp_attr* attributes, ibv_qp_state state, int mask) {
  attributes->qp_state = state;
  const int error = ibv_modify_qp(queue_pair, attributes, IBV_QP_STATE | mask);
  if (error == 0) return absl::OkStatus();
  return ErrnoStatus(error, absl::StrCat("ibv_modify_qp to state ", static_cast<int>(state)));
}

constexpr unsigned kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr size_t kWordBytes = 64 << 10;
constexpr size_t kPage = 4096;

// With these variables libibverbs would keep registered memory from forked processes, and libmlx5
// would sign requests.
absl::Status CheckEnvironment() {
  if (ibv_is_fork_initialized() == IBV_FORK_ENABLED) {
    return absl::FailedPreconditionError(
        "libibverbs keeps registered memory from forked processes: unset RDMAV_FORK_SAFE and "
        "IBV_FORK_SAFE");
  }
  if (std::getenv("MLX5_QP_SIGNATURE") == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("MLX5_QP_SIGNATURE is set, and Baton signs no requests");
}

// `gid_index` -1: if gids are needed, chooses the best: one of RoCE v2 with an IPv4 address, else
// one of RoCE v2 that is not link-local, else any. kFailedPrecondition: the port is not up.
// kNotFound: there is no such gid.
absl::StatusOr<LoopbackAddress> FindLoopbackAddress(ibv_context* context, uint8_t port,
                                                    int gid_index) {
  ibv_port_attr attributes = {};
  if (const int error = ibv_query_port(context, port, &attributes); error != 0) {
    return ErrnoStatus(error, absl::StrCat("ibv_query_port of port ", port));
  }
  if (attributes.state != IBV_PORT_ACTIVE) {
    return absl::FailedPreconditionError(absl::StrCat("port ", port, " is ",
                                                      ibv_port_state_str(attributes.state),
                                                      ": choose one that is active"));
  }
  LoopbackAddress address;
  address.port = port;
  address.lid = attributes.lid;
  address.mtu = attributes.active_mtu;
  address.global = attributes.link_layer == IBV_LINK_LAYER_ETHERNET ||
                   (attributes.flags & IBV_QPF_GRH_REQUIRED) != 0 || gid_index >= 0;
  if (!address.global) return address;
  std::optional<ibv_gid_entry> found;
  if (gid_index < 0) {
    found = FindGid(context, port, attributes.gid_tbl_len);
  } else if (ibv_gid_entry entry = {};
             ibv_query_gid_ex(context, port, static_cast<uint32_t>(gid_index), &entry, 0) == 0) {
    found = entry;
  }
  if (!found) {
    return absl::NotFoundError(absl::StrCat(
        "port ", port, gid_index < 0 ? " has no gid" : absl::StrCat(" has no gid ", gid_index),
        ": see /sys/class/infiniband/*/ports/", port, "/gids"));
  }
  address.gid_index = static_cast<uint8_t>(found->gid_index);
  address.gid = found->gid;
  return address;
}

// Takes a queue pair from RESET to READY_TO_SEND, as the peer of queue pair `peer` of the same
// port.
absl::Status ConnectTo(const LoopbackAddress& address, uint32_t peer, ibv_qp* queue_pair) {
  ibv_qp_attr init = {};
  init.port_num = address.port;
  init.qp_access_flags = kAllAccess;
  BATON_RETURN_IF_ERROR(Modify(queue_pair, &init, IBV_QPS_INIT,
                               IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  ibv_qp_attr receive = {};
  receive.path_mtu = address.mtu;
  receive.dest_qp_num = peer;
  receive.max_dest_rd_atomic = 4;
  receive.min_rnr_timer = 1;
  receive.ah_attr.port_num = address.port;
  receive.ah_attr.dlid = address.lid;
  receive.ah_attr.is_global = address.global ? 1 : 0;
  receive.ah_attr.grh.dgid = address.gid;
  receive.ah_attr.grh.sgid_index = address.gid_index;
  receive.ah_attr.grh.hop_limit = 1;
  BATON_RETURN_IF_ERROR(Modify(queue_pair, &receive, IBV_QPS_RTR,
                               IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  ibv_qp_attr send = {};
  send.timeout = 14;
  send.retry_cnt = send.rnr_retry = 7;
  send.max_rd_atomic = 4;
  return Modify(queue_pair, &send, IBV_QPS_RTS,
                IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                    IBV_QP_MAX_QP_RD_ATOMIC);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckedDevice>> CheckedDevice::Make(ibv_context* context,
                                                                   const Options& options,
                                                                   SharedMemory* shared) {
  BATON_RETURN_IF_ERROR(CheckEnvironment());
  auto made = std::unique_ptr<CheckedDevice>(new CheckedDevice(context, options, shared));
  BATON_ASSIGN_OR_RETURN(made->address_,
                         FindLoopbackAddress(context, options.port, options.gid_index));
  BATON_ASSIGN_OR_RETURN(made->domain_, made->MakeDomain());
  made->words_ = static_cast<uint64_t*>(shared->Allocate(kWordBytes, kPage));
  if (made->words_ == nullptr) return absl::ResourceExhaustedError("no shared memory is left");
  made->region_ = ibv_reg_mr(made->domain_->for_regions(), made->words_, kWordBytes, kAllAccess);
  if (made->region_ == nullptr) return ErrnoStatus(errno, "ibv_reg_mr (see RLIMIT_MEMLOCK)");
  made->before_ = made->SgeOf(made->words_, sizeof(uint64_t));
  BATON_ASSIGN_OR_RETURN(const Ends ends, made->Connect(*made->domain_));
  CheckedQueues queues(*ends.first);
  BATON_RETURN_IF_ERROR(made->AddOnceMore(&queues, 0, made->NewWord()));
  return made;
}

CheckedDevice::~CheckedDevice() {
  if (region_ != nullptr) ibv_dereg_mr(region_);
}

absl::StatusOr<std::unique_ptr<verbs::mlx5::LibraryDomain>> CheckedDevice::MakeDomain() {
  return verbs::mlx5::LibraryDomain::Make(context_, [this](size_t bytes, size_t alignment) {
    return shared_->Allocate(bytes, alignment);
  });
}

absl::StatusOr<Ends> CheckedDevice::Connect(const verbs::mlx5::LibraryDomain& domain,
                                            ibv_comp_channel* channel) {
  using verbs::mlx5::LibraryQueuePair;
  verbs::mlx5::LibraryQueuePairOptions options;
  options.send_requests = options.receive_requests = kRequests;
  options.limits = kLimits;
  options.entries = kEntries;
  Ends ends;
  BATON_ASSIGN_OR_RETURN(ends.second, LibraryQueuePair::Make(domain, options));
  options.channel = channel;
  BATON_ASSIGN_OR_RETURN(ends.first, LibraryQueuePair::Make(domain, options));
  BATON_RETURN_IF_ERROR(Connect(ends));
  return ends;
}

absl::Status CheckedDevice::Connect(const Ends& ends) {
  BATON_RETURN_IF_ERROR(ConnectTo(address_, ends.second->number(), ends.first->get()));
  return ConnectTo(address_, ends.first->number(), ends.second->get());
}

// The region belongs to domain()'s protection domain. Queue pairs of other domains cannot use it.
verbs::SendRequest CheckedDevice::AddOne(uint64_t wr_id, const uint64_t* word) const {
  verbs::SendRequest request;
  request.opcode = verbs::Opcode::kFetchAndAdd;
  request.wr_id = wr_id;
  request.compare_add = 1;
  request.remote_address = reinterpret_cast<uintptr_t>(word);
  request.rkey = region_->rkey;
  request.sges = {&before_, 1};
  return request;
}

absl::Status CheckedDevice::Post(CheckedQueues* queues, const verbs::SendRequest& request) const {
  size_t posted = 0;
  return queues->sends().Post({&request, 1}, &posted);
}

bool CheckedDevice::Eventually(const std::function<bool()>& done) const {
  const uint64_t deadline = MonotonicNanoseconds() + options_.patience_ns();
  for (; !done(); sched_yield()) {
    if (MonotonicNanoseconds() > deadline) return false;
  }
  return true;
}

absl::StatusOr<verbs::Completion> CheckedDevice::Next(CheckedQueues* queues) const {
  verbs::Completion completion;
  absl::StatusOr<int> count = 0;
  const bool came = Eventually([&] {
    count = queues->completions().Take({&completion, 1});
    return !count.ok() || *count == 1;
  });
  BATON_RETURN_IF_ERROR(count.status());
  if (came) return completion;
  return absl::DeadlineExceededError(
      absl::StrCat("no completion within ", options_.patience.count(), " ms"));
}

absl::Status CheckedDevice::AddOnceMore(CheckedQueues* queues, uint64_t wr_id,
                                        const uint64_t* word) const {
  const uint64_t before = Load(word);
  BATON_RETURN_IF_ERROR(Post(queues, AddOne(wr_id, word)));
  BATON_ASSIGN_OR_RETURN(const verbs::Completion completion, Next(queues));
  if (completion.wr_id != wr_id || completion.status != verbs::CompletionStatus::kSuccess) {
    return absl::InternalError(absl::StrCat("request ", wr_id, " was posted, and ",
                                            completion.wr_id, " completed with status ",
                                            static_cast<int>(completion.status)));
  }
  if (Load(word) == before + 1) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("request ", wr_id, " was executed ", Load(word) - before, " times"));
}

absl::Status KillDrivers(CheckedDevice* device, Trail* trail,
                         const std::function<absl::Status(uint64_t random)>& drive) {
  std::mt19937_64 random(device->options().seed);
  uint64_t noted = 0;
  uint64_t noted_ns = MonotonicNanoseconds();
  for (uint32_t kills = 0; kills < device->options().kills && !trail->is_broken; ++kills) {
    trail->begun = false;
    const uint64_t number = random();
    BATON_ASSIGN_OR_RETURN(const pid_t child, Fork([&] { return drive(number); }));
    const bool begun = device->Eventually([trail] { return trail->begun || trail->is_broken; });
    PassTime(random() % kLatestKillNs);
    const absl::Status killed = Kill(child);
    if (trail->is_broken) break;
    BATON_RETURN_IF_ERROR(killed);
    if (!begun) return absl::DeadlineExceededError("a driver did not begin");
    if (std::exchange(noted, trail->noted) != trail->noted) noted_ns = MonotonicNanoseconds();
    if (MonotonicNanoseconds() - noted_ns > device->options().patience_ns()) break;
  }
  return absl::OkStatus();
}

}  // namespace baton::nic_check
