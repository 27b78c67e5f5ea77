#include "lib/verbs/rdma/port.h"

#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/socket_address.h"

namespace baton::verbs::rdma {
namespace {

constexpr size_t kMaxGids = 256;

const char* TypeName(uint32_t type) {
  static_assert(IBV_GID_TYPE_IB == 0 && IBV_GID_TYPE_ROCE_V1 == 1 && IBV_GID_TYPE_ROCE_V2 == 2);
  static constexpr const char* kNames[] = {"InfiniBand", "RoCE v1", "RoCE v2"};
  return type < std::size(kNames) ? kNames[type] : "unknown type";
}

in6_addr AddressOf(const ibv_gid& gid) {
  in6_addr address;
  static_assert(sizeof(address) == sizeof(gid.raw));
  std::memcpy(&address, gid.raw, sizeof(address));
  return address;
}

// A GID of RoCE is an IPv6 address, or an IPv4 address mapped into one.
std::string TextOf(const in6_addr& address) {
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    sockaddr_in v4 = {};
    v4.sin_family = AF_INET;
    std::memcpy(&v4.sin_addr, address.s6_addr + 12, sizeof(v4.sin_addr));
    return FromSocketAddress(reinterpret_cast<const sockaddr&>(v4)).host;
  }
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = address;
  return FromSocketAddress(reinterpret_cast<const sockaddr&>(v6)).host;
}

PortState StateOf(ibv_port_state state) {
  static_assert(IBV_PORT_DOWN == static_cast<int>(PortState::kDown));
  static_assert(IBV_PORT_INIT == static_cast<int>(PortState::kInitializing));
  static_assert(IBV_PORT_ARMED == static_cast<int>(PortState::kArmed));
  static_assert(IBV_PORT_ACTIVE == static_cast<int>(PortState::kActive));
  if (state == IBV_PORT_ACTIVE_DEFER) return PortState::kActive;
  return state <= IBV_PORT_ACTIVE ? static_cast<PortState>(state) : PortState::kUnknown;
}

}  // namespace

std::string GidText(const ibv_gid& gid) { return TextOf(AddressOf(gid)); }

bool IsInfiniBand(ibv_context* context, uint8_t port) {
  ibv_port_attr attributes = {};
  return ibv_query_port(context, port, &attributes) == 0 &&
         attributes.link_layer == IBV_LINK_LAYER_INFINIBAND;
}

std::vector<Gid> ReadGids(ibv_context* context, uint8_t port) {
  std::array<ibv_gid_entry, kMaxGids> entries;
  const ssize_t count = ibv_query_gid_table(context, entries.data(), entries.size(), 0);
  std::vector<Gid> gids;
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    if (entry.port_num != port) continue;
    Gid gid;
    gid.index = entry.gid_index;
    gid.roce_v2 = entry.gid_type == IBV_GID_TYPE_ROCE_V2;
    gid.interface_number = entry.ndev_ifindex;
    const in6_addr address = AddressOf(entry.gid);
    const std::string text = TextOf(address);
    gid.text = absl::StrCat(text, " (", TypeName(entry.gid_type), ")");
    // A link-local address means nothing without the link's name.
    if (entry.gid_type != IBV_GID_TYPE_IB && !IN6_IS_ADDR_LINKLOCAL(&address)) gid.address = text;
    gids.push_back(std::move(gid));
  }
  return gids;
}

bool IsDown(ibv_context* context, uint8_t port) {
  const DeviceInfo info = Describe(context, port);
  if (info.port_state != PortState::kActive) return true;
  if (info.network_interface.empty()) return false;
  const FileDescriptor any_socket(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = {};
  info.network_interface.copy(request.ifr_name, IFNAMSIZ - 1);
  return ioctl(any_socket.get(), SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_UP) == 0;
}

DeviceInfo Describe(ibv_context* context, uint8_t port) {
  DeviceInfo info;
  info.name = ibv_get_device_name(context->device);
  info.port = port;
  ibv_port_attr attributes = {};
  if (ibv_query_port(context, port, &attributes) == 0) {
    info.port_state = StateOf(attributes.state);
    info.active_mtu = 128u << attributes.active_mtu;  // IBV_MTU_256 is 1
    info.transport = attributes.link_layer == IBV_LINK_LAYER_ETHERNET ? "RoCE" : "InfiniBand";
  }
  char name[IF_NAMESIZE];
  for (const Gid& gid : ReadGids(context, port)) {
    info.gids.push_back(absl::StrCat(gid.index, ": ", gid.text));
    if (gid.roce_v2 && gid.interface_number != 0 &&
        if_indextoname(gid.interface_number, name) != nullptr) {
      info.network_interface = name;
    }
  }
  return info;
}

}  // namespace baton::verbs::rdma
