#include "supervisor/doctor/rdma_devices.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton::doctor {
namespace {

constexpr char kDevices[] = "/sys/class/infiniband";
constexpr char kNodes[] = "/sys/class/infiniband_verbs";

std::string ReadOr(const Machine& machine, const std::string& path) {
  return machine.Read(path).value_or("");
}

// "4: ACTIVE" as "ACTIVE".
std::string AfterNumber(const std::string& text) {
  const size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

// Parses a table entry; returns nothing if it is not in use. GIDs have the form of IPv6 addresses,
// even if they are none.
std::optional<Gid> ParseGid(const std::string& text) {
  in6_addr address = {};
  if (inet_pton(AF_INET6, text.c_str(), &address) != 1) return std::nullopt;
  if (IN6_IS_ADDR_UNSPECIFIED(&address)) return std::nullopt;
  std::array<char, INET6_ADDRSTRLEN> shown = {};
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, &address.s6_addr[12], shown.data(), shown.size());
  } else {
    inet_ntop(AF_INET6, &address, shown.data(), shown.size());
  }
  Gid gid;
  gid.address = shown.data();
  gid.link_local = IN6_IS_ADDR_LINKLOCAL(&address);
  return gid;
}

std::vector<uint32_t> Numbers(const std::vector<std::string>& names) {
  std::vector<uint32_t> numbers;
  for (const std::string& name : names) {
    uint32_t number = 0;
    if (absl::SimpleAtoi(name, &number)) numbers.push_back(number);
  }
  absl::c_sort(numbers);
  return numbers;
}

Port ReadPort(const Machine& machine, const std::string& device, uint32_t number) {
  const std::string path = absl::StrCat(kDevices, "/", device, "/ports/", number);
  Port port;
  port.number = number;
  port.state = AfterNumber(ReadOr(machine, path + "/state"));
  port.physical_state = AfterNumber(ReadOr(machine, path + "/phys_state"));
  port.ethernet = ReadOr(machine, path + "/link_layer") == "Ethernet";
  for (const uint32_t index : Numbers(machine.List(path + "/gids"))) {
    std::optional<Gid> gid = ParseGid(ReadOr(machine, absl::StrCat(path, "/gids/", index)));
    if (!gid) continue;
    gid->index = index;
    gid->type = ReadOr(machine, absl::StrCat(path, "/gid_attrs/types/", index));
    const std::string interface = ReadOr(machine, absl::StrCat(path, "/gid_attrs/ndevs/", index));
    if (port.interface.empty()) port.interface = interface;
    port.gids.push_back(*std::move(gid));
  }
  return port;
}

// Returns a net device of the same function of the same card, as IPoIB's are, too. For software
// devices returns the parent that they name.
std::string InterfaceOf(const Machine& machine, const std::string& device) {
  const std::string path = absl::StrCat(kDevices, "/", device);
  const std::vector<std::string> beside = machine.List(path + "/device/net");
  return beside.empty() ? ReadOr(machine, path + "/parent") : beside.front();
}

}  // namespace

const Port* RdmaDevice::FindPort(uint32_t number) const {
  const auto port = absl::c_find_if(ports, [&](const Port& p) { return p.number == number; });
  return port == ports.end() ? nullptr : &*port;
}

std::vector<RdmaDevice> ReadRdmaDevices(const Machine& machine) {
  std::vector<RdmaDevice> devices;
  for (const std::string& name : machine.List(kDevices)) {
    RdmaDevice device;
    device.name = name;
    const std::string path = absl::StrCat(kDevices, "/", name);
    device.node_type = AfterNumber(ReadOr(machine, path + "/node_type"));
    for (const uint32_t number : Numbers(machine.List(path + "/ports"))) {
      device.ports.push_back(ReadPort(machine, name, number));
      Port& port = device.ports.back();
      if (port.interface.empty()) port.interface = InterfaceOf(machine, name);
    }
    for (const std::string& node : machine.List(kNodes)) {
      if (machine.Read(absl::StrCat(kNodes, "/", node, "/ibdev")) != name) continue;
      device.node = node;
      device.node_number = ReadOr(machine, absl::StrCat(kNodes, "/", node, "/dev"));
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace baton::doctor
