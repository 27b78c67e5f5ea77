// rdma_cm's events, as the kernel numbers them. rdma/rdma_cma.h has the same numbers, but cannot be
// included beside rdma/rdma_user_cm.h.
#ifndef LIB_VERBS_RDMA_CM_EVENT_NUMBER_H_
#define LIB_VERBS_RDMA_CM_EVENT_NUMBER_H_

#include <cstdint>

namespace baton::verbs::rdma {

// connection.cc and cm_file_test.cc check them.
enum class CmEventNumber : uint32_t {
  kAddressResolved = 0,
  kAddressError = 1,
  kRouteResolved = 2,
  kRouteError = 3,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kDeviceRemoval = 11,
  kAddressChange = 14,
  kTimeWaitExit = 15,
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_CM_EVENT_NUMBER_H_
