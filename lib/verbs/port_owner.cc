#include "lib/verbs/port_owner.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/sock_diag.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/time.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/text/text.h"
#include "lib/verbs/port_taken.h"
#include "lib/verbs/socket_address.h"

namespace baton::verbs {
namespace {

constexpr int kListening = 10;  // the kernel's TCP_LISTEN
constexpr timeval kPatience = {1, 0};
constexpr size_t kMaxNameBytes = 64;

// ---------------------------------------------------------------- netlink

using Message = std::function<void(nlmsghdr*)>;

// Sends a request whose answer is a list, and gives each message of the list to `on_message`.
// Returns false if the kernel does not answer.
bool Ask(int protocol, int type, const void* request, size_t size, const Message& on_message) {
  const std::unique_ptr<nl_sock, decltype(&nl_socket_free)> socket(nl_socket_alloc(),
                                                                   &nl_socket_free);
  if (!socket || nl_connect(socket.get(), protocol) != 0) return false;
  setsockopt(nl_socket_get_fd(socket.get()), SOL_SOCKET, SO_RCVTIMEO, &kPatience,
             sizeof(kPatience));
  nl_socket_modify_cb(
      socket.get(), NL_CB_VALID, NL_CB_CUSTOM,
      [](nl_msg* message, void* argument) -> int {
        (*static_cast<const Message*>(argument))(nlmsg_hdr(message));
        return NL_OK;
      },
      const_cast<Message*>(&on_message));
  return nl_send_simple(socket.get(), type, NLM_F_DUMP, const_cast<void*>(request), size) >= 0 &&
         nl_recvmsgs_default(socket.get()) >= 0;
}

// ---------------------------------------------------------------- addresses

// Returns the IPv4 address of an IPv4-mapped IPv6 address, and any other host unchanged.
std::string PlainHost(const std::string& host) {
  constexpr char kMapped[] = "::ffff:";
  const std::string rest = host.substr(std::min(host.size(), sizeof(kMapped) - 1));
  return host.starts_with(kMapped) && rest.find('.') != std::string::npos ? rest : host;
}

bool IsIpv4(const std::string& host) { return host.find(':') == std::string::npos; }

// Returns true if a socket bound to `a` (`ipv6_only`: with IPV6_V6ONLY) keeps others from binding
// to `b`.
bool Overlap(const std::string& a, const std::string& b, bool ipv6_only) {
  if (a == b) return true;
  if (IsIpv4(a) == IsIpv4(b)) {
    const std::string any = IsIpv4(a) ? "0.0.0.0" : "::";
    return a == any || b == any;
  }
  return (a == "::" || b == "::") && !ipv6_only;
}

// ---------------------------------------------------------------- TCP

struct TcpSocket {
  std::string host;
  int state = 0;
  uint32_t inode = 0;  // 0: no process has it any more
  uint32_t uid = 0;
};

// Returns the sockets of this network namespace that have the port of `asked` at an address which
// conflicts with it. Linux reports sockets that are only bound since 6.8.
std::vector<TcpSocket> FindTcpSockets(const Address& asked) {
  std::vector<TcpSocket> found;
  const std::string wanted = PlainHost(asked.host);
  for (const uint8_t family : {AF_INET, AF_INET6}) {
    inet_diag_req_v2 request = {};
    request.sdiag_family = family;
    request.sdiag_protocol = IPPROTO_TCP;
    request.idiag_states = ~0u;
    request.id.idiag_sport = htons(asked.port);
    (void)Ask(
        NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, &request, sizeof(request), [&](nlmsghdr* header) {
          inet_diag_msg message;
          if (nlmsg_datalen(header) < static_cast<int>(sizeof(message))) return;
          std::memcpy(&message, nlmsg_data(header), sizeof(message));
          char text[INET6_ADDRSTRLEN] = "";
          inet_ntop(message.idiag_family, message.id.idiag_src, text, sizeof(text));
          nlattr* const only = nlmsg_find_attr(header, sizeof(message), INET_DIAG_SKV6ONLY);
          const bool ipv6_only = only != nullptr && nla_get_u8(only) != 0;
          const std::string host = PlainHost(text);
          if (message.id.idiag_sport != htons(asked.port)) return;
          if (!Overlap(host, wanted, ipv6_only)) return;
          found.push_back({host, message.idiag_state, message.idiag_inode, message.idiag_uid});
        });
  }
  std::stable_sort(found.begin(), found.end(), [](const TcpSocket& a, const TcpSocket& b) {
    return (a.state == kListening) > (b.state == kListening);
  });
  return found;
}

std::string NameOf(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  // The process chooses this name: up to 15 arbitrary bytes.
  return absl::StrCat(name.empty() ? "process" : OneLine(name, kMaxNameBytes), " (pid ", pid, ")");
}

bool HasSocket(const std::filesystem::path& process, const std::string& link) {
  std::error_code error;
  for (std::filesystem::directory_iterator fd(process / "fd", error), end; !error && fd != end;
       fd.increment(error)) {
    std::error_code unreadable;
    if (std::filesystem::read_symlink(fd->path(), unreadable) == link) return true;
  }
  return false;
}

// Returns the pid of the first process with this socket, among those that we may look into.
std::optional<int> FindProcessWith(uint32_t inode) {
  const std::string link = absl::StrCat("socket:[", inode, "]");
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    int pid = 0;
    if (absl::SimpleAtoi(entry->path().filename().string(), &pid) &&
        HasSocket(entry->path(), link)) {
      return pid;
    }
  }
  return std::nullopt;
}

std::string DescribeOwner(const TcpSocket& socket, const Address& asked) {
  const std::optional<int> pid = FindProcessWith(socket.inode);
  const std::string who =
      pid ? NameOf(*pid)
          : absl::StrCat("a process of uid ", socket.uid,
                         " that we may not look into (or that is in another container)");
  const std::string where = socket.host == PlainHost(asked.host)
                                ? "there"
                                : absl::StrCat("at ", ToString({socket.host, asked.port}));
  return socket.state == kListening ? absl::StrCat(who, " listens ", where, " with TCP")
                                    : absl::StrCat(who, " has a TCP socket ", where);
}

// ---------------------------------------------------------------- RDMA

// Returns the devices, by the kernel's number.
std::vector<uint32_t> FindRdmaDevices() {
  std::vector<uint32_t> devices;
  (void)Ask(NETLINK_RDMA, RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET), nullptr, 0,
            [&](nlmsghdr* header) {
              nlattr* const index = nlmsg_find_attr(header, 0, RDMA_NLDEV_ATTR_DEV_INDEX);
              if (index != nullptr) devices.push_back(nla_get_u32(index));
            });
  return devices;
}

// Describes the owner of a connection manager's id. nullopt: the id does not conflict with `asked`.
std::optional<std::string> DescribeRdmaOwner(nlattr* entry, const Address& asked) {
  const auto find = [entry](int type) {
    return nla_find(static_cast<nlattr*>(nla_data(entry)), nla_len(entry), type);
  };
  nlattr* const source = find(RDMA_NLDEV_ATTR_RES_SRC_ADDR);
  if (source == nullptr) return std::nullopt;
  sockaddr_storage storage = {};
  std::memcpy(&storage, nla_data(source),
              std::min(sizeof(storage), static_cast<size_t>(nla_len(source))));
  const Address at = FromSocketAddress(reinterpret_cast<const sockaddr&>(storage));
  const std::string host = PlainHost(at.host);
  if (at.port != asked.port || !Overlap(host, PlainHost(asked.host), false)) return std::nullopt;
  const std::string where = absl::StrCat(" has it at ", ToString({host, at.port}), " with RDMA");
  if (nlattr* const kernel = find(RDMA_NLDEV_ATTR_RES_KERN_NAME)) {
    return absl::StrCat("the kernel (", nla_get_string(kernel), ")", where);
  }
  nlattr* const pid = find(RDMA_NLDEV_ATTR_RES_PID);
  if (pid == nullptr || nla_get_u32(pid) == 0) return absl::StrCat("another container", where);
  return NameOf(static_cast<int>(nla_get_u32(pid))) + where;
}

std::optional<std::string> FindRdmaOwner(const Address& asked) {
  std::optional<std::string> owner;
  for (const uint32_t device : FindRdmaDevices()) {
    const std::unique_ptr<nl_msg, decltype(&nlmsg_free)> request(nlmsg_alloc(), &nlmsg_free);
    if (!request || nla_put_u32(request.get(), RDMA_NLDEV_ATTR_DEV_INDEX, device) != 0) continue;
    // nla_put has put the attribute where an empty message's data begins.
    nlmsghdr* const header = nlmsg_hdr(request.get());
    (void)Ask(NETLINK_RDMA, RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_RES_CM_ID_GET),
              nlmsg_data(header), static_cast<size_t>(nlmsg_datalen(header)),
              [&](nlmsghdr* answer) {
                nlattr* const table = nlmsg_find_attr(answer, 0, RDMA_NLDEV_ATTR_RES_CM_ID);
                if (table == nullptr) return;
                nlattr* entry = nullptr;
                int rest = 0;
                nla_for_each_nested(entry, table, rest) {
                  if (!owner) owner = DescribeRdmaOwner(entry, asked);
                }
              });
  }
  return owner;
}

// ---------------------------------------------------------------- both

std::string FindOwner(const TakenPort& port) {
  if (port.space == PortSpace::kTcp) {
    for (const TcpSocket& socket : FindTcpSockets(port.address)) {
      if (socket.inode != 0) return DescribeOwner(socket, port.address);
    }
  }
  // A TCP socket that does not listen may hold the port for an rdma_cm listener
  // (rdma/connection.cc).
  if (std::optional<std::string> owner = FindRdmaOwner(port.address)) return *std::move(owner);
  return port.space == PortSpace::kTcp
             ? "a TCP socket has it that does not listen; the kernel does not tell whose"
             : "a listener of RDMA has it; the kernel does not tell whose";
}

}  // namespace

absl::Status NamePortOwner(const absl::Status& refused) {
  const std::optional<TakenPort> port = TakenPortOf(refused);
  if (!port) return refused;
  return absl::Status(refused.code(),
                      absl::StrCat(ToString(port->address), " is taken: ", FindOwner(*port),
                                   "; stop it or choose another port"));
}

}  // namespace baton::verbs
