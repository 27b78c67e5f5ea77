// rdma_cm's events, as the kernel numbers them: rdma/rdma_cma.h has them, and cannot be included
// beside rdma/rdma_user_cm.h.
#ifndef LIB_VERBS_RDMA_CM_EVENT_NUMBER_H_
#define LIB_VERBS_RDMA_CM_EVENT_NUMBER_H_

#include <cstdint>

namespace baton::verbs::rdma {

enum class CmEventNumber : uint32_t {  // connection.cc checks them
  kConnectRequest = 4,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kDisconnected = 10,
  kDeviceRemoval = 11,
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_CM_EVENT_NUMBER_H_
