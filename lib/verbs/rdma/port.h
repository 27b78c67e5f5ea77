// The port of an RDMA device: its state and its addresses.
#ifndef LIB_VERBS_RDMA_PORT_H_
#define LIB_VERBS_RDMA_PORT_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

struct Gid {
  uint32_t index = 0;
  bool roce_v2 = false;
  std::string text;               // "fe80::1 (RoCE v2)", "fec0::1 (InfiniBand)"
  std::string address;            // IPv4 or IPv6; empty: no connection can be made to it
  uint32_t interface_number = 0;  // of the network interface; 0: it has none
};

// Returns the port's GIDs that are set.
std::vector<Gid> ReadGids(ibv_context* context, uint8_t port);

// Returns the IPv4 or IPv6 address that a RoCE GID contains.
std::string GidText(const ibv_gid& gid);

// Returns whether packets have InfiniBand's P_Key and service level. RoCE has one P_Key.
bool IsInfiniBand(ibv_context* context, uint8_t port);

// Returns whether nothing can be sent. A RoCE port is down as soon as its network interface is,
// even if the port does not report it.
bool IsDown(ibv_context* context, uint8_t port);

DeviceInfo Describe(ibv_context* context, uint8_t port);

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_PORT_H_
