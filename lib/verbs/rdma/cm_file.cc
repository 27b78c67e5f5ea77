#include "lib/verbs/rdma/cm_file.h"

#include <fcntl.h>
#include <infiniband/ib.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_cm.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/base/status.h"

namespace baton::verbs::rdma {
namespace {

constexpr char kCmDevice[] = "/dev/infiniband/rdma_cm";
constexpr char kAbiVersion[] = "/sys/class/misc/rdma_cm/abi_version";
constexpr char kErrnoPayload[] = "baton/errno";
constexpr uint32_t kCommunicationEstablished = IBV_EVENT_COMM_EST;
constexpr int kMostPaths = 2;

// The caller and the kernel share these structures.
static_assert(sizeof(CmParameters) == sizeof(rdma_ucm_conn_param));
static_assert(offsetof(CmParameters, qp_num) == offsetof(rdma_ucm_conn_param, qp_num));
static_assert(offsetof(CmParameters, q_key) == offsetof(rdma_ucm_conn_param, qkey));
static_assert(offsetof(CmParameters, private_data) == offsetof(rdma_ucm_conn_param, private_data));
static_assert(kCmPrivateDataBytes == RDMA_MAX_PRIVATE_DATA);
static_assert(offsetof(CmParameters, private_data_length) ==
              offsetof(rdma_ucm_conn_param, private_data_len));
static_assert(offsetof(CmParameters, srq) == offsetof(rdma_ucm_conn_param, srq));
static_assert(offsetof(CmParameters, responder_resources) ==
              offsetof(rdma_ucm_conn_param, responder_resources));
static_assert(offsetof(CmParameters, initiator_depth) ==
              offsetof(rdma_ucm_conn_param, initiator_depth));
static_assert(offsetof(CmParameters, flow_control) == offsetof(rdma_ucm_conn_param, flow_control));
static_assert(offsetof(CmParameters, retry_count) == offsetof(rdma_ucm_conn_param, retry_count));
static_assert(offsetof(CmParameters, rnr_retry_count) ==
              offsetof(rdma_ucm_conn_param, rnr_retry_count));
static_assert(offsetof(CmParameters, valid) == offsetof(rdma_ucm_conn_param, valid));
static_assert(sizeof(CmEventSlot) == sizeof(rdma_ucm_event_resp));
static_assert(offsetof(CmEventSlot, uid) == offsetof(rdma_ucm_event_resp, uid));
static_assert(offsetof(CmEventSlot, id) == offsetof(rdma_ucm_event_resp, id));
static_assert(offsetof(CmEventSlot, event) == offsetof(rdma_ucm_event_resp, event));
static_assert(offsetof(CmEventSlot, status) == offsetof(rdma_ucm_event_resp, status));
static_assert(offsetof(CmEventSlot, connection) == offsetof(rdma_ucm_event_resp, param));
static_assert(offsetof(CmEventSlot, ece_vendor) == offsetof(rdma_ucm_event_resp, ece));
static_assert(sizeof(ibv_path_data) == sizeof(ib_path_rec_data));
static_assert(offsetof(ibv_path_data, path) == offsetof(ib_path_rec_data, path_rec));

// Writes a command (RDMA_USER_CM_CMD_*) to `file`, with its body. Returns 0 or an errno. The kernel
// takes a command whole or not at all.
template <typename Body>
int GiveCommand(int file, uint32_t command, const Body& body, size_t answer_bytes = 0) {
  struct {
    rdma_ucm_cmd_hdr header = {};
    Body body = {};
  } message;
  static_assert(sizeof(message) == sizeof(rdma_ucm_cmd_hdr) + sizeof(Body));
  message.header.cmd = command;
  message.header.in = sizeof(Body);
  message.header.out = static_cast<uint16_t>(answer_bytes);
  message.body = body;
  return write(file, &message, sizeof(message)) == ssize_t{sizeof(message)} ? 0 : errno;
}

// Does the same for a command that the kernel answers by filling `answer`.
template <typename Answer, typename Body>
int AskCommand(int file, uint32_t command, Body body, Answer* answer) {
  body.response = reinterpret_cast<uintptr_t>(answer);
  return GiveCommand(file, command, body, sizeof(*answer));
}

std::string_view NameOf(uint32_t command) {
  static constexpr std::array<std::string_view, RDMA_USER_CM_CMD_JOIN_MCAST + 1> kNames = {
      "CREATE_ID",  "DESTROY_ID", "BIND_IP",    "RESOLVE_IP",   "RESOLVE_ROUTE", "QUERY_ROUTE",
      "CONNECT",    "LISTEN",     "ACCEPT",     "REJECT",       "DISCONNECT",    "INIT_QP_ATTR",
      "GET_EVENT",  "GET_OPTION", "SET_OPTION", "NOTIFY",       "JOIN_IP_MCAST", "LEAVE_MCAST",
      "MIGRATE_ID", "QUERY",      "BIND",       "RESOLVE_ADDR", "JOIN_MCAST"};
  return kNames[command];
}

std::string_view Cure(uint32_t command, int error) {
  switch (error) {
    case EACCES:
      return "only the process that opened the file can use it, with the credentials that it had; "
             "open another file in this process and move the ids to it";
    case ENOENT:
      return "no file has this id; it was destroyed, or its file was closed";
    case ENXIO:
    case EIO:
      return "the id's device was removed; destroy the id";
    case ENODEV:
    case EADDRNOTAVAIL:
      return "no RDMA device has this address; compare `rdma link` with `ip address`";
    case EADDRINUSE:
      return "another id has this port; `rdma resource show cm_id` names its process";
    case EINVAL:
      if (command == RDMA_USER_CM_CMD_MIGRATE_ID) {
        return "another file has this id, or the descriptor is not an rdma_cm file";
      }
      return "another file has this id, or the id is not in a state for this command, or an "
             "argument is out of range";
    case ENOSYS:
      return "this kernel does not have the command";
    case ENOMEM:
    case ENOSPC:
      return "free memory and try again";
    default:
      return "see lib/verbs/rdma/cm.md";
  }
}

absl::Status WithErrno(absl::Status status, int error) {
  status.SetPayload(kErrnoPayload, absl::Cord(absl::StrCat(error)));
  return status;
}

absl::Status Failed(int error, uint32_t command, const uint32_t* id) {
  const std::string_view name = NameOf(command);
  std::string what = absl::StrCat(View(name), " of rdma_cm's ");
  if (id != nullptr) {
    absl::StrAppend(&what, "id ", *id);
  } else {
    absl::StrAppend(&what, "file");
  }
  const absl::Status bare = ErrnoStatus(error, what);
  const std::string_view cure = Cure(command, error);
  const absl::Status status(bare.code(), absl::StrCat(bare.message(), "; ", View(cure)));
  return WithErrno(status, error);
}
absl::Status Failed(int error, uint32_t command, uint32_t id) {
  return Failed(error, command, &id);
}
absl::Status StatusOf(int error, uint32_t command, uint32_t id) {
  return error == 0 ? absl::OkStatus() : Failed(error, command, id);
}

absl::Status CheckAbi() {
  const FileDescriptor file(open(kAbiVersion, O_RDONLY | O_CLOEXEC));
  if (!file) return absl::OkStatus();  // sysfs is not mounted; the file itself decides
  char text[16] = "";
  const ssize_t size = read(file.get(), text, sizeof(text) - 1);
  int version = 0;
  if (size > 0 && absl::SimpleAtoi(absl::string_view(text, static_cast<size_t>(size)), &version) &&
      version == RDMA_USER_CM_ABI_VERSION) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("rdma_cm's ABI has version ", version,
                                               " in this kernel, and this program knows version ",
                                               RDMA_USER_CM_ABI_VERSION, "; use a newer program"));
}

absl::Status CheckUid(uint64_t uid) {
  return uid != 0 ? absl::OkStatus()
                  : absl::InvalidArgumentError("the uid of an rdma_cm id must not be 0");
}

absl::Status CheckAddress(const SocketAddress& address) {
  if (address.size <= sizeof(sockaddr_storage)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a socket address of ", address.size, " bytes does not exist"));
}

SocketAddress AddressOf(const __kernel_sockaddr_storage& storage, uint16_t size) {
  SocketAddress address;
  static_assert(sizeof(storage) == sizeof(address.storage));
  std::memcpy(&address.storage, &storage, sizeof(storage));
  address.size = size;
  return address;
}

ibv_gid GidOf(const __kernel_sockaddr_storage& storage) {
  sockaddr_ib address = {};
  std::memcpy(&address, &storage, sizeof(address));
  ibv_gid gid = {};
  std::memcpy(gid.raw, address.sib_addr.sib_addr8, sizeof(gid.raw));
  return gid;
}

ibv_ah_attr AddressHandleOf(const ib_uverbs_ah_attr& from) {
  ibv_ah_attr to = {};
  std::memcpy(to.grh.dgid.raw, from.grh.dgid, sizeof(to.grh.dgid.raw));
  to.grh.flow_label = from.grh.flow_label;
  to.grh.sgid_index = from.grh.sgid_index;
  to.grh.hop_limit = from.grh.hop_limit;
  to.grh.traffic_class = from.grh.traffic_class;
  to.dlid = from.dlid;
  to.sl = from.sl;
  to.src_path_bits = from.src_path_bits;
  to.static_rate = from.static_rate;
  to.is_global = from.is_global;
  to.port_num = from.port_num;
  return to;
}

ibv_qp_attr AttributesOf(const ib_uverbs_qp_attr& from) {
  ibv_qp_attr to = {};
  to.qp_state = static_cast<ibv_qp_state>(from.qp_state);
  to.cur_qp_state = static_cast<ibv_qp_state>(from.cur_qp_state);
  to.path_mtu = static_cast<ibv_mtu>(from.path_mtu);
  to.path_mig_state = static_cast<ibv_mig_state>(from.path_mig_state);
  to.qkey = from.qkey;
  to.rq_psn = from.rq_psn;
  to.sq_psn = from.sq_psn;
  to.dest_qp_num = from.dest_qp_num;
  to.qp_access_flags = from.qp_access_flags;
  to.cap.max_send_wr = from.max_send_wr;
  to.cap.max_recv_wr = from.max_recv_wr;
  to.cap.max_send_sge = from.max_send_sge;
  to.cap.max_recv_sge = from.max_recv_sge;
  to.cap.max_inline_data = from.max_inline_data;
  to.ah_attr = AddressHandleOf(from.ah_attr);
  to.alt_ah_attr = AddressHandleOf(from.alt_ah_attr);
  to.pkey_index = from.pkey_index;
  to.alt_pkey_index = from.alt_pkey_index;
  to.en_sqd_async_notify = from.en_sqd_async_notify;
  to.sq_draining = from.sq_draining;
  to.max_rd_atomic = from.max_rd_atomic;
  to.max_dest_rd_atomic = from.max_dest_rd_atomic;
  to.min_rnr_timer = from.min_rnr_timer;
  to.port_num = from.port_num;
  to.timeout = from.timeout;
  to.retry_cnt = from.retry_cnt;
  to.rnr_retry = from.rnr_retry;
  to.alt_port_num = from.alt_port_num;
  to.alt_timeout = from.alt_timeout;
  return to;
}

rdma_ucm_conn_param KernelParameters(const CmParameters& parameters) {
  rdma_ucm_conn_param result;
  std::memcpy(&result, &parameters, sizeof(result));
  result.valid = 1;
  return result;
}

}  // namespace

int CmErrno(const absl::Status& status) {
  const auto payload = status.GetPayload(kErrnoPayload);
  int error = 0;
  if (payload.has_value()) (void)absl::SimpleAtoi(std::string(*payload), &error);
  return error;
}

// Each body names the id that the command is for.
template <typename Body>
absl::Status CmFile::Give(uint32_t command, const Body& body) const {
  return StatusOf(GiveCommand(file_.get(), command, body), command, body.id);
}

template <typename Answer, typename Body>
absl::Status CmFile::Ask(uint32_t command, const Body& body, Answer* answer) const {
  return StatusOf(AskCommand(file_.get(), command, body, answer), command, body.id);
}

template <typename Answer>
absl::Status CmFile::Query(uint32_t id, uint32_t option, Answer* answer) const {
  rdma_ucm_query command = {};
  command.id = id;
  command.option = option;
  return Ask(RDMA_USER_CM_CMD_QUERY, command, answer);
}

absl::StatusOr<CmFile> CmFile::Open() {
  FileDescriptor file(open(kCmDevice, O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    const int error = errno;
    const absl::Status bare = ErrnoStatus(error, absl::StrCat("cannot open ", kCmDevice));
    const absl::Status status(
        bare.code(),
        absl::StrCat(bare.message(), error == ENOENT || error == ENODEV || error == ENXIO
                                         ? "; load the kernel's module rdma_ucm"
                                         : "; this process needs the right to read and write it"));
    return WithErrno(status, error);
  }
  BATON_RETURN_IF_ERROR(CheckAbi());
  return CmFile(std::move(file));
}

absl::StatusOr<uint32_t> CmFile::Create(uint64_t uid) {
  BATON_RETURN_IF_ERROR(CheckUid(uid));
  rdma_ucm_create_id command = {};
  command.uid = uid;
  command.ps = RDMA_PS_TCP;
  command.qp_type = IBV_QPT_RC;
  rdma_ucm_create_id_resp answer = {};
  const int error = AskCommand(file_.get(), RDMA_USER_CM_CMD_CREATE_ID, command, &answer);
  if (error != 0) return Failed(error, RDMA_USER_CM_CMD_CREATE_ID, nullptr);
  return answer.id;
}

absl::StatusOr<uint32_t> CmFile::Destroy(uint32_t id) {
  rdma_ucm_destroy_id command = {};
  command.id = id;
  rdma_ucm_destroy_id_resp answer = {};
  BATON_RETURN_IF_ERROR(Ask(RDMA_USER_CM_CMD_DESTROY_ID, command, &answer));
  return answer.events_reported;
}

absl::Status CmFile::Bind(uint32_t id, const SocketAddress& local) {
  BATON_RETURN_IF_ERROR(CheckAddress(local));
  rdma_ucm_bind command = {};
  command.id = id;
  command.addr_size = static_cast<uint16_t>(local.size);
  std::memcpy(&command.addr, &local.storage, local.size);
  return Give(RDMA_USER_CM_CMD_BIND, command);
}

absl::Status CmFile::Listen(uint32_t id, uint32_t backlog) {
  rdma_ucm_listen command = {};
  command.id = id;
  command.backlog = backlog;
  return Give(RDMA_USER_CM_CMD_LISTEN, command);
}

absl::Status CmFile::ResolveAddress(uint32_t id, const SocketAddress* local,
                                    const SocketAddress& peer, uint32_t timeout_ms) {
  BATON_RETURN_IF_ERROR(CheckAddress(peer));
  if (local != nullptr) BATON_RETURN_IF_ERROR(CheckAddress(*local));
  rdma_ucm_resolve_addr command = {};
  command.id = id;
  command.timeout_ms = timeout_ms;
  if (local != nullptr) {
    command.src_size = static_cast<uint16_t>(local->size);
    std::memcpy(&command.src_addr, &local->storage, local->size);
  }
  command.dst_size = static_cast<uint16_t>(peer.size);
  std::memcpy(&command.dst_addr, &peer.storage, peer.size);
  return Give(RDMA_USER_CM_CMD_RESOLVE_ADDR, command);
}

absl::Status CmFile::ResolveRoute(uint32_t id, uint32_t timeout_ms) {
  rdma_ucm_resolve_route command = {};
  command.id = id;
  command.timeout_ms = timeout_ms;
  return Give(RDMA_USER_CM_CMD_RESOLVE_ROUTE, command);
}

absl::StatusOr<CmAddresses> CmFile::QueryAddresses(uint32_t id) const {
  rdma_ucm_query_addr_resp answer = {};
  answer.ibdev_index = CmAddresses::kNoIndex;
  BATON_RETURN_IF_ERROR(Query(id, RDMA_USER_CM_QUERY_ADDR, &answer));
  CmAddresses addresses;
  addresses.node_guid = answer.node_guid;
  addresses.device_index = answer.ibdev_index;
  addresses.p_key = answer.pkey;
  addresses.port = answer.port_num;
  addresses.local = AddressOf(answer.src_addr, answer.src_size);
  addresses.peer = AddressOf(answer.dst_addr, answer.dst_size);
  return addresses;
}

absl::StatusOr<CmGids> CmFile::QueryGids(uint32_t id) const {
  rdma_ucm_query_addr_resp answer = {};
  BATON_RETURN_IF_ERROR(Query(id, RDMA_USER_CM_QUERY_GID, &answer));
  return CmGids{GidOf(answer.src_addr), GidOf(answer.dst_addr)};
}

absl::StatusOr<int> CmFile::QueryPaths(uint32_t id, ibv_path_data* paths, int room) const {
  // rdma_ucm_query_path_resp and what follows it. The kernel writes a path only if more than its
  // size is left, so there is room for one more.
  struct {
    uint32_t count = 0;
    uint32_t reserved = 0;
    ibv_path_data paths[kMostPaths + 1] = {};
  } answer;
  static_assert(offsetof(decltype(answer), paths) == sizeof(rdma_ucm_query_path_resp));
  BATON_RETURN_IF_ERROR(Query(id, RDMA_USER_CM_QUERY_PATH, &answer));
  int count = 0;
  for (; count < room && count < kMostPaths && count < static_cast<int>(answer.count); ++count) {
    paths[count] = answer.paths[count];
  }
  return count;
}

absl::Status CmFile::Connect(uint32_t id, CmParameters parameters) {
  rdma_ucm_connect command = {};
  command.id = id;
  command.conn_param = KernelParameters(parameters);
  return Give(RDMA_USER_CM_CMD_CONNECT, command);
}

// The kernel takes an accept without parameters for this, from the side that has connected.
absl::Status CmFile::Establish(uint32_t id) {
  rdma_ucm_accept command = {};
  command.id = id;
  return Give(RDMA_USER_CM_CMD_ACCEPT, command);
}

absl::Status CmFile::Accept(uint32_t id, uint64_t uid, CmParameters parameters) {
  BATON_RETURN_IF_ERROR(CheckUid(uid));
  rdma_ucm_accept command = {};
  command.id = id;
  command.uid = uid;
  command.conn_param = KernelParameters(parameters);
  return Give(RDMA_USER_CM_CMD_ACCEPT, command);
}

absl::Status CmFile::Reject(uint32_t id, CmRejection reason, std::string_view private_data) {
  rdma_ucm_reject command = {};
  if (private_data.size() >= sizeof(command.private_data)) {  // its length is a byte
    return absl::InvalidArgumentError(absl::StrCat("a rejection cannot carry ", private_data.size(),
                                                   " bytes of private data; send 148 at most"));
  }
  command.id = id;
  command.reason = static_cast<uint8_t>(reason);
  command.private_data_len = static_cast<uint8_t>(private_data.size());
  if (!private_data.empty()) {
    std::memcpy(command.private_data, private_data.data(), private_data.size());
  }
  return Give(RDMA_USER_CM_CMD_REJECT, command);
}

absl::Status CmFile::Disconnect(uint32_t id) {
  rdma_ucm_disconnect command = {};
  command.id = id;
  return Give(RDMA_USER_CM_CMD_DISCONNECT, command);
}

absl::StatusOr<CmQueuePairAttributes> CmFile::QueuePairAttributes(uint32_t id,
                                                                  ibv_qp_state state) const {
  rdma_ucm_init_qp_attr command = {};
  command.id = id;
  command.qp_state = state;
  ib_uverbs_qp_attr answer = {};
  BATON_RETURN_IF_ERROR(Ask(RDMA_USER_CM_CMD_INIT_QP_ATTR, command, &answer));
  return CmQueuePairAttributes{AttributesOf(answer), static_cast<int>(answer.qp_attr_mask)};
}

absl::StatusOr<bool> CmFile::NextEvent(CmEventSlot* slot) {
  const int error = AskCommand(file_.get(), RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{}, slot);
  if (error == EAGAIN) return false;
  if (error != 0) return Failed(error, RDMA_USER_CM_CMD_GET_EVENT, nullptr);
  return true;
}

absl::StatusOr<CmAnswer> CmFile::NotifyEstablished(uint32_t id) {
  rdma_ucm_notify command = {};
  command.id = id;
  command.event = kCommunicationEstablished;
  switch (const int error = GiveCommand(file_.get(), RDMA_USER_CM_CMD_NOTIFY, command)) {
    case 0:
      return CmAnswer::kAccepted;
    case EISCONN:
      return CmAnswer::kEstablished;
    case EINVAL:
      // The kernel also answers EINVAL for an id of another file.
      if (const absl::Status ours = QueryAddresses(id).status(); !ours.ok()) return ours;
      return CmAnswer::kNone;
    default:
      return Failed(error, RDMA_USER_CM_CMD_NOTIFY, id);
  }
}

template <typename Value>
absl::Status CmFile::SetOption(uint32_t id, uint32_t name, Value value) {
  rdma_ucm_set_option command = {};
  command.id = id;
  command.level = RDMA_OPTION_ID;
  command.optname = name;
  command.optval = reinterpret_cast<uintptr_t>(&value);
  command.optlen = sizeof(value);
  return Give(RDMA_USER_CM_CMD_SET_OPTION, command);
}

absl::Status CmFile::SetTypeOfService(uint32_t id, uint8_t value) {
  return SetOption(id, RDMA_OPTION_ID_TOS, value);
}
absl::Status CmFile::SetReuseAddress(uint32_t id, bool reuse) {
  return SetOption(id, RDMA_OPTION_ID_REUSEADDR, int{reuse});
}
absl::Status CmFile::SetAddressFamilyOnly(uint32_t id, bool only) {
  return SetOption(id, RDMA_OPTION_ID_AFONLY, int{only});
}
absl::Status CmFile::SetAckTimeout(uint32_t id, uint8_t exponent) {
  return SetOption(id, RDMA_OPTION_ID_ACK_TIMEOUT, exponent);
}

absl::StatusOr<uint32_t> CmFile::Migrate(int other_file, uint32_t id) {
  rdma_ucm_migrate_id command = {};
  command.id = id;
  command.fd = static_cast<uint32_t>(other_file);
  rdma_ucm_migrate_resp answer = {};
  BATON_RETURN_IF_ERROR(Ask(RDMA_USER_CM_CMD_MIGRATE_ID, command, &answer));
  return answer.events_reported;
}

}  // namespace baton::verbs::rdma
