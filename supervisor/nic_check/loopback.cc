#include "supervisor/nic_check/loopback.h"

#include <cerrno>
#include <optional>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"

namespace baton::nic_check {
namespace {

std::optional<uint8_t> FindGid(ibv_context* context, uint8_t port, int count, uint32_t type) {
  for (int index = 0; index < count && index < UINT8_MAX; ++index) {
    ibv_gid_entry entry = {};
    if (ibv_query_gid_ex(context, port, static_cast<uint32_t>(index), &entry, 0) != 0) continue;
    if (entry.gid_type == type) return static_cast<uint8_t>(index);
  }
  return std::nullopt;
}

absl::Status Modify(ibv_qp* queue_pair, ibv_qp_attr* attributes, ibv_qp_state state, int mask) {
  attributes->qp_state = state;
  const int error = ibv_modify_qp(queue_pair, attributes, IBV_QP_STATE | mask);
  if (error == 0) return absl::OkStatus();
  return ErrnoStatus(error, absl::StrCat("ibv_modify_qp to state ", static_cast<int>(state)));
}

}  // namespace

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
  address.global = attributes.link_layer == IBV_LINK_LAYER_ETHERNET || gid_index >= 0;
  if (!address.global) return address;
  std::optional<uint8_t> index;
  if (gid_index >= 0) index = static_cast<uint8_t>(gid_index);
  for (const uint32_t type : {IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_IB}) {
    if (!index) index = FindGid(context, port, attributes.gid_tbl_len, type);
  }
  if (!index) return absl::NotFoundError(absl::StrCat("port ", port, " has no gid"));
  address.gid_index = *index;
  if (ibv_query_gid(context, port, *index, &address.gid) != 0) {
    return ErrnoStatus(errno, absl::StrCat("ibv_query_gid of index ", *index));
  }
  return address;
}

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

}  // namespace baton::nic_check
