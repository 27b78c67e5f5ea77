// These functions translate a provider's completions, and libibverbs' asynchronous events, into
// those of verbs.h.
#ifndef LIB_VERBS_RDMA_COMPLETION_H_
#define LIB_VERBS_RDMA_COMPLETION_H_

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <optional>

#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

inline CompletionStatus StatusOf(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return CompletionStatus::kSuccess;
    case IBV_WC_LOC_LEN_ERR:
      return CompletionStatus::kLocalLengthError;
    case IBV_WC_LOC_QP_OP_ERR:
      return CompletionStatus::kLocalQpError;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return CompletionStatus::kLocalProtectionError;
    case IBV_WC_WR_FLUSH_ERR:
      return CompletionStatus::kFlushError;
    case IBV_WC_BAD_RESP_ERR:
      return CompletionStatus::kBadResponse;
    case IBV_WC_REM_INV_REQ_ERR:
      return CompletionStatus::kRemoteInvalidRequest;
    case IBV_WC_REM_ACCESS_ERR:
      return CompletionStatus::kRemoteAccessError;
    case IBV_WC_REM_OP_ERR:
      return CompletionStatus::kRemoteOperationError;
    case IBV_WC_RETRY_EXC_ERR:
      return CompletionStatus::kRetryExceeded;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return CompletionStatus::kRnrRetryExceeded;
    case IBV_WC_FATAL_ERR:
      return CompletionStatus::kFatalError;
    default:
      return CompletionStatus::kGeneralError;
  }
}

// Tests for receives first. The other opcodes have the order of ibv_wc_opcode.
inline CompletionOpcode OpcodeOf(ibv_wc_opcode opcode) {
  if (opcode == IBV_WC_RECV) return CompletionOpcode::kReceive;
  if (opcode == IBV_WC_RECV_RDMA_WITH_IMM) return CompletionOpcode::kReceiveWithImmediate;
  static_assert(IBV_WC_SEND == static_cast<int>(CompletionOpcode::kSend));
  static_assert(IBV_WC_RDMA_WRITE == static_cast<int>(CompletionOpcode::kWrite));
  static_assert(IBV_WC_RDMA_READ == static_cast<int>(CompletionOpcode::kRead));
  static_assert(IBV_WC_COMP_SWAP == static_cast<int>(CompletionOpcode::kCompareAndSwap));
  static_assert(IBV_WC_FETCH_ADD == static_cast<int>(CompletionOpcode::kFetchAndAdd));
  return opcode <= IBV_WC_FETCH_ADD ? CompletionOpcode(opcode) : CompletionOpcode::kSend;
}

// CompletionQueue::Take leaves the provider's format in the slots.
static_assert(sizeof(Completion) == sizeof(ibv_wc));
static_assert(offsetof(Completion, wr_id) == offsetof(ibv_wc, wr_id));
static_assert(alignof(Completion) >= alignof(ibv_wc));

// Translates the fields of a successful receive, READ or atomic. A SEND or WRITE has none.
inline void TranslateData(const ibv_wc& from, unsigned int invalidated_flags, Completion* to) {
  to->byte_len = from.byte_len;
  to->has_immediate = (from.wc_flags & IBV_WC_WITH_IMM) != 0;
  to->has_invalidate = (from.wc_flags & invalidated_flags) != 0;
  if (to->has_immediate) to->immediate = ntohl(from.imm_data);
  if (to->has_invalidate) to->immediate = from.invalidated_rkey;
}

// Translates a failed completion. Only its status and queue pair are valid (ibv_poll_cq(3)).
inline void TranslateFailed(const ibv_wc& from, Completion* to) {
  to->status = StatusOf(from.status);
  to->opcode = CompletionOpcode::kSend;
  to->vendor_error = from.vendor_err;
}

// `invalidated_flags`: the provider's (provider.h).
inline void TranslateCompletion(const ibv_wc& from, unsigned int invalidated_flags,
                                Completion* to) {
  to->wr_id = from.wr_id;
  to->status = CompletionStatus::kSuccess;
  to->opcode = OpcodeOf(from.opcode);
  to->has_immediate = to->has_invalidate = false;
  to->byte_len = to->immediate = to->vendor_error = 0;
  to->qp_number = from.qp_num;
  if (from.status != IBV_WC_SUCCESS) return TranslateFailed(from, to);
  if (to->opcode != CompletionOpcode::kSend && to->opcode != CompletionOpcode::kWrite) {
    TranslateData(from, invalidated_flags, to);
  }
}

// Returns nullopt for events without a meaning to the user (ibv_get_async_event(3)).
std::optional<DeviceEvent> ToDeviceEvent(const ibv_async_event& event);

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_COMPLETION_H_
