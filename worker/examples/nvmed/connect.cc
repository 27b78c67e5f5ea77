#include "worker/examples/nvmed/connect.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>

#include "worker/examples/nvmed/capsule.h"

namespace baton::nvmed {
namespace {

constexpr uint32_t kDiscoveryKeepAliveMs = 120'000;

// Refuses a Connect whose field at `offset` is invalid.
Answer RefuseField(bool in_data, size_t offset) {
  Answer answer = Refuse(StatusCode::kConnectInvalidParameters);
  answer.result = ConnectInvalidResult(in_data, static_cast<uint16_t>(offset));
  return answer;
}

void SetText(std::string_view text, char (&field)[kNqnBytes]) {
  std::memset(field, 0, sizeof(field));
  std::memcpy(field, text.data(), std::min(text.size(), sizeof(field) - 1));
}

struct Names {
  std::string_view subsystem, host;
};

Answer ConnectAdmin(const ConnectRequest& request, const Names& names, Target& target,
                    Registry& registry, ControllerState** controller) {
  if (request.data.cntlid != kDynamicController) {
    return RefuseField(true, offsetof(ConnectData, cntlid));
  }
  const bool discovery = names.subsystem == kDiscoveryNqn;
  if (!discovery) {
    const Subsystem* subsystem = target.Find(names.subsystem);
    if (subsystem == nullptr) return RefuseField(true, offsetof(ConnectData, subnqn));
    if (!subsystem->Admits(names.host)) return Refuse(StatusCode::kConnectInvalidHost);
  }
  ControllerState* made = registry.Add();
  if (made == nullptr) return Refuse(StatusCode::kConnectControllerBusy);
  made->discovery = discovery;
  made->keep_alive_ms = request.command.kato;
  // Otherwise a host that is gone, and had asked for no timeout, would keep its controller for
  // ever.
  if (discovery && made->keep_alive_ms == 0) made->keep_alive_ms = kDiscoveryKeepAliveMs;
  made->admin_connection = request.connection;
  made->admin_generation = request.generation;
  std::memcpy(made->host_id, request.data.hostid, sizeof(made->host_id));
  SetText(names.subsystem, made->subsystem_nqn);
  SetText(names.host, made->host_nqn);
  *controller = made;
  return Return(ConnectResult(made->id));
}

Answer ConnectIo(const ConnectRequest& request, const Names& names, Registry& registry,
                 ControllerState** controller) {
  ControllerState* found = registry.Find(request.data.cntlid);
  if (found == nullptr || found->ending != 0) {
    return RefuseField(true, offsetof(ConnectData, cntlid));
  }
  if (TextIn(found->subsystem_nqn) != names.subsystem) {
    return RefuseField(true, offsetof(ConnectData, subnqn));
  }
  if (TextIn(found->host_nqn) != names.host) {
    return RefuseField(true, offsetof(ConnectData, hostnqn));
  }
  if (std::memcmp(found->host_id, request.data.hostid, sizeof(found->host_id)) != 0) {
    return RefuseField(true, offsetof(ConnectData, hostid));
  }
  const uint16_t queue = request.command.qid;
  if (found->discovery != 0 || queue > found->granted_queues) {
    return RefuseField(false, offsetof(ConnectCommand, qid));
  }
  const uint64_t bit = uint64_t{1} << (queue - 1);
  if ((found->status & kCstsReady) == 0 || (found->queues & bit) != 0) {
    return Refuse(StatusCode::kCommandSequenceError);
  }
  found->queues |= bit;
  registry.Touch();
  *controller = found;
  return Return(ConnectResult(found->id));
}

}  // namespace

Answer Connect(const ConnectRequest& request, const ControllerOptions& options, Target& target,
               Registry& registry, ControllerState** controller) {
  const ConnectCommand& command = request.command;
  if (command.recfmt != 0) return Refuse(StatusCode::kConnectIncompatibleFormat);
  if (command.qid != request.queue_id || command.qid > options.io_queues) {
    return RefuseField(false, offsetof(ConnectCommand, qid));
  }
  if (command.sqsize == 0 || command.sqsize >= request.entries) {
    return RefuseField(false, offsetof(ConnectCommand, sqsize));
  }
  const auto subsystem = TextOf(request.data.subnqn, kMaxNqnBytes);
  if (!subsystem) return RefuseField(true, offsetof(ConnectData, subnqn));
  const auto host = TextOf(request.data.hostnqn, kMaxNqnBytes);
  if (!host || host->empty()) return RefuseField(true, offsetof(ConnectData, hostnqn));
  const Names names{*subsystem, *host};
  return command.qid == 0 ? ConnectAdmin(request, names, target, registry, controller)
                          : ConnectIo(request, names, registry, controller);
}

}  // namespace baton::nvmed
