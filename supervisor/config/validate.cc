#include "supervisor/config/policy.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "lib/arena/layout.h"
#include "lib/base/placement.h"
#include "lib/base/utf8.h"
#include "lib/text/text.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/config/network_namespace.h"
#include "supervisor/config/node.h"
#include "supervisor/config/shape.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

constexpr size_t kMaxNameBytes = 32;
constexpr size_t kMaxDeviceNameBytes = 63;  // IB_DEVICE_NAME_MAX, less the NUL
constexpr size_t kMaxFileNameBytes = 255;   // NAME_MAX
constexpr size_t kMaxPathBytes = 4095;      // PATH_MAX, less the NUL
constexpr uint64_t kMaxDevicePort = 255;    // uint8_t port_num
constexpr uint32_t kMaxNumaNodes = 1024;
constexpr uint32_t kMaxGidIndex = 255;  // uint8_t sgid_index
constexpr std::chrono::milliseconds kReadyTimeout{30'000};

constexpr Range kServiceRanges[] = {
    {"shards", 1, 1, arena::kMaxShards},
    {"max_connections", 64, 1, arena::kMaxConnections},
    {"send_queue_depth", 64, 1, arena::kMaxQueueDepth, /*power_of_two=*/true},
    {"receive_queue_depth", 64, 1, arena::kMaxQueueDepth, /*power_of_two=*/true},
    {"shared_receive_queue_depth", 0, 0, arena::kMaxQueueDepth, /*power_of_two=*/true},
    {"connection_state_bytes", 256, 1, arena::kMaxStateBytes},
    {"shard_state_bytes", 4096, 1, arena::kMaxStateBytes},
    {"buffer_bytes", 16u << 20, arena::kPageBytes, arena::kMaxBufferBytes},
    {"shard_heap_bytes", 0, 0, arena::kMaxHeapBytes},
    {"max_workers", 16, 1, arena::kMaxWorkers},
    {"max_listeners", 8, 1, 64},
    {"handoff_timeout_ms", 5000, 1, 600'000},
    {"realtime_priority", 0, 0, 99},
    {"heartbeat_ms", 1000, 10, 60'000},
    {"hang_timeout_ms", 5000, 20, UINT32_MAX},
    {"ready_timeout_ms", 0, 0, 86'400'000},  // its default is set last
    {"watch_window_ms", 30'000, 1, 86'400'000},
    {"stop_timeout_ms", 10'000, 1, 600'000},
    {"poison_deaths", 3, 1, UINT32_MAX},
    {"max_inline_bytes", 0, 0, arena::kMaxInlineBytes},
    {"yield_microseconds", 0, 0, 1'000'000},
};

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
}

// Port 0 stands for any free one.
bool IsAddressWithPort(const std::string& text) {
  const std::optional<HostPort> parsed = ParseHostPort(text);
  return parsed && IsAddress(parsed->host);
}

// From a listener's network namespace, host and port to the name of the service that has it.
using Ports = std::map<std::tuple<std::string, std::string, uint32_t>, std::string>;

void CheckListener(v1::ListenerConfig& listener, const Node& node, const v1::ServiceConfig& service,
                   Ports& ports) {
  if (listener.host().empty()) listener.set_host("0.0.0.0");
  if (!IsAddress(listener.host())) {
    node.Refuse("host", absl::StrCat("\"", listener.host(),
                                     "\" is not an IPv4 or IPv6 address; names are not resolved, "
                                     "write for example \"127.0.0.1\" or \"::1\""));
  }
  if (listener.port() > 65535) {
    node.Refuse("port", absl::StrCat(listener.port(),
                                     " is not between 0 and 65535; 0 takes any "
                                     "free port"));
  }
  if (listener.port() == 0) return;
  const std::string network = NetworkNamespacePath(service.network_namespace());
  const auto [other, inserted] =
      ports.emplace(std::tuple(network, listener.host(), listener.port()), service.name());
  if (!inserted) {
    node.Refuse("port", absl::StrCat(listener.host(), " port ", listener.port(),
                                     " is already a listener of service \"", other->second,
                                     "\"; give each its own"));
  }
}

void CheckNetworkNamespace(const v1::ServiceConfig& service, const Node& node) {
  const std::string& name = service.network_namespace();
  if (name.empty()) return;
  const bool path = name.front() == '/';
  const auto bad = [](unsigned char c) { return c == '\0' || c == '\n'; };
  if (!IsUtf8(name) || std::any_of(name.begin(), name.end(), bad) ||
      name.size() > (path ? kMaxPathBytes : kMaxFileNameBytes)) {
    node.Refuse("network_namespace", "is neither a name nor a path");
  } else if (!path && (name.find('/') != std::string::npos || name == "." || name == "..")) {
    node.Refuse("network_namespace",
                absl::StrCat("\"", name,
                             "\" is neither a name, as ip netns list shows it, nor an absolute "
                             "path; leave it out for that of batond"));
  }
}

void CheckRdma(const v1::RdmaDeviceConfig& rdma, const Node& node) {
  node.CheckRange({"port", 1, 1, kMaxDevicePort});
  if (rdma.gid_index() > kMaxGidIndex) {
    node.Refuse("gid_index", absl::StrCat(rdma.gid_index(), " is not between 0 and ", kMaxGidIndex,
                                          "; leave it out for the GID of each address"));
  }
  const std::string& device = rdma.device();
  if (device.size() > kMaxDeviceNameBytes ||
      !std::all_of(device.begin(), device.end(),
                   [](unsigned char c) { return std::isgraph(c) != 0 && c != '/'; })) {
    node.Refuse("device",
                "is no device's name; ibv_devices lists the names of this machine, leave "
                "it out where there is one");
  }
}

void CheckDevice(const v1::ServiceConfig& service, const Node& node) {
  if (service.device().kind_case() == v1::Device::KIND_NOT_SET) {
    return node.Refuse("device",
                       "is missing; a service has exactly one, for example device { soft {} }");
  }
  const v1::Device& device = service.device();
  const Node device_node = node.Child("device");
  if (device.has_rdma()) {
    CheckRdma(device.rdma(), device_node.Child("rdma"));
  } else if (device.soft().has_faults()) {
    CheckFaults(device.soft().faults(), device_node.Child("soft").Child("faults"));
  }
}

// Returns the default number of a shard's queue pairs: an equal share of the connections, and a
// quarter more because workers may accept them into other shards. Where queue pairs have a
// time-wait, the share counts twice: all connections may end at once, and come back at once.
uint32_t DefaultQueuePairs(const v1::ServiceConfig& service) {
  const uint64_t share =
      (uint64_t{service.max_connections()} + service.shards() - 1) / std::max(1u, service.shards());
  const uint64_t waiting = service.device().has_rdma() ? share : 0;
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(share + share / 4 + waiting, 8, arena::kMaxConnections));
}

// Workers would be root where nobody says who they are, so a file has to say it. A uid alone would
// leave them in batond's group. The largest number is no id: for the kernel it means that nothing
// changes.
void CheckIdentity(const v1::NativeConfig& native, const Node& node) {
  if (node.in_file() && !native.has_uid()) {
    node.Refuse("uid",
                "is missing: name the user that the workers run as, or root with uid: 0 gid: 0");
  }
  if (native.has_uid() && !native.has_gid()) {
    node.Refuse("gid", "is missing: name the group that the workers of that uid are in, too");
  }
  constexpr uint32_t kNone = ~0u;
  if (native.has_uid() && native.uid() == kNone) node.Refuse("uid", "4294967295 is no user");
  if (native.has_gid() && native.gid() == kNone) node.Refuse("gid", "4294967295 is no group");
}

void CheckNative(const v1::ServiceConfig& service, const Node& node) {
  if (service.mode() == v1::BROKERED) {
    if (service.has_native()) node.Refuse("native", "is for mode NATIVE, and the mode is BROKERED");
    return;
  }
  if (service.mode() != v1::NATIVE) return node.Refuse("mode", "is neither BROKERED nor NATIVE");
  const Node native_node = node.Child("native");
  const v1::NativeConfig& native = service.native();
  const std::string& object = native.object();
  if (object.empty() || object.front() != '/' || object.find('\0') != std::string::npos) {
    native_node.Refuse(
        "object", absl::StrCat("\"", object, "\" is not the absolute path of a shared object"));
  }
  CheckIdentity(native, native_node);
  native_node.CheckRange(
      {"workers", std::min(2u, service.max_workers()), 1, service.max_workers()});
  native_node.CheckRange(
      {"queue_pairs_per_shard", DefaultQueuePairs(service), 1, arena::kMaxConnections});
}

void CheckBrokers(v1::ServiceConfig& service, const Node& node) {
  const bool brokered = service.mode() == v1::BROKERED;
  if (!service.has_broker_processes()) {
    // The driver finds out what an RDMA device can do.
    if (!brokered || !service.device().has_rdma()) service.set_broker_processes(brokered);
  } else if (service.broker_processes() && !brokered) {
    node.Refuse("broker_processes", "is for mode BROKERED: native workers drive queues themselves");
  }
}

bool IsText(const std::string& text) {
  return text.find('\0') == std::string::npos && IsUtf8(text);
}

void CheckStateDecoder(const v1::ServiceConfig& service, const Node& node) {
  if (!service.has_state_decoder()) return;
  const v1::StateDecoder& decoder = service.state_decoder();
  const Node decoder_node = node.Child("state_decoder");
  const std::string& program = decoder.program();
  if (program.empty() || program.front() != '/' || !IsText(program)) {
    decoder_node.Refuse("program", "is not the absolute path of a program, in UTF-8");
  }
  if (!std::all_of(decoder.arguments().begin(), decoder.arguments().end(), IsText)) {
    decoder_node.Refuse("arguments", "has a NUL, or bytes that are not UTF-8");
  }
}

void CheckPlacement(const v1::ServiceConfig& service, const Node& node) {
  if (!service.has_placement()) return;
  const v1::Placement& placement = service.placement();
  const Node placement_node = node.Child("placement");
  const auto cpus = ParseCpus(placement.cpus());
  if (!cpus.ok()) placement_node.Refuse("cpus", std::string(cpus.status().message()));
  if (placement.numa_node() >= kMaxNumaNodes) {
    placement_node.Refuse("numa_node", absl::StrCat(placement.numa_node(), " is not below ",
                                                    kMaxNumaNodes, "; numactl -H lists them"));
  }
}

void CheckHugePages(const v1::ServiceConfig& service, const Node& node) {
  if (!v1::HugePages_IsValid(service.huge_pages())) {
    return node.Refuse("huge_pages",
                       "is none of HUGE_PAGES_TRANSPARENT, HUGE_PAGES_2_MIB, HUGE_PAGES_1_GIB");
  }
  if (service.huge_pages() == v1::HUGE_PAGES_TRANSPARENT) return;
  if (!service.device().has_rdma()) {
    node.Refuse("huge_pages", "needs an rdma device; leave it out on the soft one");
  }
  if (service.mode() == v1::BROKERED && service.worker_uids_size() != 0) {
    node.Refuse("huge_pages",
                "goes with no worker_uids: a worker of another user could take a page out of the "
                "buffers, which kills the driver that touches it; leave out one of them, or use "
                "mode: NATIVE");
  }
}

template <typename Message>
void CompleteLogLevel(v1::LogLevel otherwise, Message& message, const Node& node) {
  if (message.log_level() == v1::LOG_LEVEL_DEFAULT) message.set_log_level(otherwise);
  if (!v1::LogLevel_IsValid(message.log_level())) {
    node.Refuse("log_level",
                "is none of LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARNING, LOG_LEVEL_ERROR");
  }
}

void CheckLog(const v1::ServiceConfig& service, const Node& node) {
  const std::string& log = service.log();
  if (log.empty() || log == "journal") return;
  if (log.front() != '/' || log.back() == '/' || log.size() > kMaxPathBytes || !IsUtf8(log) ||
      log.find('\0') != std::string::npos) {
    node.Refuse(
        "log",
        "is neither \"journal\" nor the absolute path of a file, in UTF-8; leave it out for "
        "batond's standard error");
  }
}

// REQUIRES: the ranges of the fields have been checked. What is outside of them was refused.
void CheckHeaps(const v1::ServiceConfig& service, const Node& node) {
  if (service.shards() > arena::kMaxShards || service.buffer_bytes() > arena::kMaxBufferBytes ||
      service.shard_heap_bytes() > arena::kMaxHeapBytes) {
    return;
  }
  const uint64_t registered = ShapeOf(service).buffer_bytes;
  if (registered <= arena::kMaxBufferBytes) return;
  node.Refuse("shard_heap_bytes",
              absl::StrCat("the heaps of ", service.shards(), " shards and buffer_bytes are ",
                           registered, " bytes together, at most ", arena::kMaxBufferBytes,
                           " can be registered; lower one of them"));
}

void CheckName(const v1::ServiceConfig& service, const Node& node, std::set<std::string>& names) {
  if (!IsName(service.name())) {
    node.Refuse("name", absl::StrCat("\"", service.name(),
                                     "\" is not a name; use 1 to 32 of a-z, 0-9 and -"));
  } else if (IsReservedServiceName(service.name())) {
    node.Refuse("name", absl::StrCat("\"", service.name(),
                                     "\" is reserved for Baton's own sockets; use another name"));
  } else if (!names.insert(service.name()).second) {
    node.Refuse("name", absl::StrCat("\"", service.name(),
                                     "\" is taken by an earlier service; names are unique"));
  }
}

void CheckService(v1::ServiceConfig& service, const Node& node, std::set<std::string>& names,
                  Ports& ports) {
  CheckName(service, node, names);
  CheckDevice(service, node);
  CheckNetworkNamespace(service, node);
  for (const Range& range : kServiceRanges) node.CheckRange(range);
  CheckHeaps(service, node);
  CheckNative(service, node);
  CheckBrokers(service, node);
  CheckStateDecoder(service, node);
  CheckPlacement(service, node);
  CheckHugePages(service, node);
  CheckLog(service, node);
  if (service.has_policy()) {
    CheckPolicy(*service.mutable_policy(), service, node.Child("policy"));
  }
  if (static_cast<uint32_t>(service.listeners_size()) > service.max_listeners()) {
    node.Refuse("max_listeners", absl::StrCat(service.listeners_size(), " listeners are more than ",
                                              service.max_listeners(), "; raise max_listeners"));
  }
  for (int i = 0; i < service.listeners_size(); ++i) {
    CheckListener(*service.mutable_listeners(i), node.Child("listeners", i), service, ports);
  }
}

void CheckStateDir(const v1::Config& config, const Node& root) {
  const std::string& state_dir = config.state_dir();
  if (state_dir.empty() || state_dir.front() != '/') {
    return root.Refuse(
        "state_dir",
        state_dir.empty()
            ? "is missing; name a directory for sockets, for example "
              "state_dir: \"/run/baton\""
            : absl::StrCat("\"", state_dir, "\" is not an absolute path; start it with /"));
  }
  if (state_dir.find('\0') != std::string::npos) {
    return root.Refuse("state_dir", "has a NUL, which no path has");
  }
  if (!IsUtf8(state_dir)) {
    // A path need not be UTF-8, but workers get the paths of its sockets in messages that would not
    // parse.
    return root.Refuse("state_dir", "is not UTF-8; name a directory that is");
  }
  std::string longest = OperatorSocketPath(state_dir);
  for (const v1::ServiceConfig& service : config.services()) {
    for (std::string path : {WorkerSocketPath(state_dir, service.name()),
                             ManagementSocketPath(state_dir, service.name())}) {
      if (path.size() > longest.size()) longest = std::move(path);
    }
  }
  if (longest.size() > kMaxSocketPathBytes) {
    root.Refuse("state_dir", absl::StrCat("the socket ", longest, " would have ", longest.size(),
                                          " bytes, UNIX sockets take at most ", kMaxSocketPathBytes,
                                          "; use a state_dir that is ",
                                          longest.size() - kMaxSocketPathBytes, " bytes shorter"));
  }
}

// Opens no file: opening reports a missing one.
void CheckPemFile(const char* field, const std::string& path, const Node& node) {
  if (path.empty()) {
    node.Refuse(field, "is missing; name a file in PEM");
  } else if (path.front() != '/' || !IsText(path)) {
    node.Refuse(field, "is not an absolute path in UTF-8");
  }
}

template <typename Names>
void CheckCallers(const char* field, const Names& names, const Node& node,
                  std::set<std::string>* known) {
  for (const std::string& name : names) {
    if (name.empty() || !IsText(name)) {
      node.Refuse(field, "has a name that is empty, or is not UTF-8");
    } else if (!known->insert(name).second) {
      node.Refuse(field, absl::StrCat("\"", name,
                                      "\" stands there already, or in the other of operators and "
                                      "viewers; name each once"));
    }
  }
}

void CheckOperatorEndpoint(const v1::Config& config, const Node& root) {
  if (!config.has_operator_endpoint()) return;
  const v1::OperatorEndpoint& endpoint = config.operator_endpoint();
  const Node node = root.Child("operator_endpoint");
  if (!IsAddressWithPort(endpoint.address())) {
    node.Refuse("address", "is not ADDRESS:PORT, such as 10.0.0.1:9443 or [::1]:9443");
  }
  CheckPemFile("certificate_file", endpoint.certificate_file(), node);
  CheckPemFile("key_file", endpoint.key_file(), node);
  CheckPemFile("client_ca_file", endpoint.client_ca_file(), node);
  if (!endpoint.crl_file().empty()) CheckPemFile("crl_file", endpoint.crl_file(), node);
  std::set<std::string> known;
  CheckCallers("operators", endpoint.operators(), node, &known);
  CheckCallers("viewers", endpoint.viewers(), node, &known);
  if (endpoint.operators().empty() && endpoint.viewers().empty()) {
    node.Refuse("operators", "is missing, and so is viewers; name somebody who may call");
  }
}

}  // namespace

void CompleteAndValidate(v1::Config& config, google::protobuf::TextFormat::ParseInfoTree* places,
                         Problems& problems) {
  const Node root(config, "", places, problems);
  CheckStateDir(config, root);
  if (config.services_size() == 0) {
    root.Refuse("services",
                "is missing; name at least one service, for example "
                "services { name: \"kv\" device { soft {} } }");
  }
  if (!config.metrics_address().empty() && !IsAddressWithPort(config.metrics_address())) {
    root.Refuse("metrics_address", "is not ADDRESS:PORT, such as 127.0.0.1:9464 or [::1]:9464");
  }
  CheckOperatorEndpoint(config, root);
  if (!v1::LogFormat_IsValid(config.log_format())) {
    root.Refuse("log_format", "is neither TEXT nor JSON");
  }
  CompleteLogLevel(v1::LOG_LEVEL_INFO, config, root);
  std::set<std::string> names;
  Ports ports;
  for (int i = 0; i < config.services_size(); ++i) {
    v1::ServiceConfig& service = *config.mutable_services(i);
    const Node node = root.Child("services", i);
    CompleteLogLevel(config.log_level(), service, node);
    CheckService(service, node, names, ports);
  }
  if (!problems.ToStatus().ok()) return;
  for (v1::ServiceConfig& service : *config.mutable_services()) {
    if (service.ready_timeout_ms() != 0) continue;
    service.set_ready_timeout_ms(
        static_cast<uint32_t>(StartTimeout(service, kReadyTimeout).count()));
  }
}

}  // namespace baton
