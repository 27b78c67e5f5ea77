#include "lib/verbs/port_taken.h"

#include <cerrno>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/status.h"
#include "lib/verbs/socket_address.h"

namespace baton::verbs {
namespace {

constexpr char kPayload[] = "baton/taken_port";  // "tcp 127.0.0.1 7471"
constexpr char kTcp[] = "tcp";
constexpr char kRdma[] = "rdma";

}  // namespace

absl::Status PortTakenError(const TakenPort& port) {
  absl::Status status = absl::AlreadyExistsError(
      absl::StrCat(ToString(port.address), " is taken; stop who has it or choose another port"));
  status.SetPayload(kPayload,
                    absl::Cord(absl::StrCat(port.space == PortSpace::kTcp ? kTcp : kRdma, " ",
                                            port.address.host, " ", port.address.port)));
  return status;
}

absl::Status NoPortFreeError(const Address& address) {
  return absl::ResourceExhaustedError(
      absl::StrCat("no port of ", address.host,
                   " was found that TCP and the device have free: name one, or widen "
                   "net.ipv4.ip_local_port_range"));
}

absl::Status TcpBindError(int error, const Address& address, const std::string& what) {
  if (error != EADDRINUSE) return ErrnoStatus(error, what);
  return address.port == 0 ? NoPortFreeError(address) : PortTakenError({PortSpace::kTcp, address});
}

std::optional<TakenPort> TakenPortOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayload);
  if (!payload) return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(std::string(*payload), ' ');
  uint32_t port = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[2], &port)) return std::nullopt;
  return TakenPort{parts[0] == kTcp ? PortSpace::kTcp : PortSpace::kRdma,
                   {parts[1], static_cast<uint16_t>(port)}};
}

}  // namespace baton::verbs
