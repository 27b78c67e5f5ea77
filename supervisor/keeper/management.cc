#include "supervisor/keeper/management.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "lib/channel/carried_status.h"
#include "lib/channel/message_channel.h"
#include "lib/log/log.h"
#include "lib/text/text.h"
#include "supervisor/config/state_files.h"
#include "supervisor/keeper/fingerprint.h"

namespace baton::keeper {
namespace {

constexpr FramedSocket::Limits kSocketLimits = {.text_bytes = 16 << 10,
                                                .refuses_descriptors = true};
constexpr size_t kMaxPolicyBytes = 1024;  // in an event

// batond gives the socket's file to the user that it runs control as. Nobody else can do that,
// because the state directory is batond's.
bool OwnsSocketFile(int socket, uid_t uid) {
  sockaddr_un address = {};
  socklen_t length = sizeof(address);
  // Refuses a path that fills the address, because it has no end.
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      address.sun_family != AF_UNIX || length >= sizeof(address)) {
    return false;
  }
  struct stat file = {};
  return lstat(address.sun_path, &file) == 0 && S_ISSOCK(file.st_mode) && file.st_uid == uid;
}

void Refuse(const internal::ManagementRequest& request, const absl::Status& why,
            FramedSocket* socket) {
  internal::ManagementReply reply;
  reply.set_id(request.id());
  SetStatus(why, &reply);
  socket->Send(reply);
}

}  // namespace

Management::Management(const KeeperParts& parts, const Managed& managed, std::function<void()> end)
    : parts_(parts), managed_(managed), end_(std::move(end)), started_ns_(MonotonicNanoseconds()) {}

void Management::Accept(FileDescriptor socket) {
  const auto peer = GetPeerCredentials(socket.get());
  if (!peer.ok()) return;
  if (peer->uid != geteuid() && peer->uid != 0 && !OwnsSocketFile(socket.get(), peer->uid)) return;
  // Control and batond are in the keeper's pid namespace.
  if (parts_.config.distrust_contained_root() && IsPeerContained(socket.get())) return;
  auto framed = std::make_shared<FramedSocket>(parts_.loop, std::move(socket), kSocketLimits);
  const std::weak_ptr<FramedSocket> weak = framed;
  const bool is_batonds = peer->uid == geteuid() || peer->uid == 0;
  framed->Start(
      [this, weak, is_batonds]() -> absl::StatusOr<bool> {
        const SocketPtr alive = weak.lock();
        return alive ? OnFrame(alive, is_batonds) : false;
      },
      [this, weak](const absl::Status&) {
        const SocketPtr alive = weak.lock();
        if (!alive) return;
        subscribers_.erase(alive);
        parts_.workers.ForgetControlStreams(alive.get());
      });
}

absl::StatusOr<bool> Management::OnFrame(const SocketPtr& socket, bool is_batonds) {
  internal::ManagementRequest request;
  BATON_ASSIGN_OR_RETURN(const bool whole, socket->channel().NextFrame(&request));
  if (!whole) return false;
  // The configuration is a file of batond's user. A control of another user may not replace it.
  if (request.has_take_config() && !is_batonds) {
    Refuse(request, absl::PermissionDeniedError("only batond's user gives keepers a configuration"),
           socket.get());
  } else {
    Handle(socket, request);
  }
  return true;
}

// Logs a traced request, and the events that it causes at once, with its trace. The request is
// logged because later events do not have the trace.
void Management::Handle(const SocketPtr& socket, const internal::ManagementRequest& request) {
  const std::string trace = CheckedTraceParent(request.trace_parent());
  const auto* what = internal::ManagementRequest::descriptor()->FindFieldByNumber(
      static_cast<int>(request.request_case()));
  log::Write(trace.empty() ? spdlog::level::debug : spdlog::level::info, {.trace_parent = trace},
             absl::StrCat("control asks: ", what == nullptr ? "nothing" : what->name()));
  const EventLog::TraceScope traced(parts_.events, trace);
  // The driver does not count this one. Only another keeper ends what the driver refuses.
  if (request.has_replace_keeper()) return Answer(socket, request);
  internal::ManagementRequest asked = request;  // without what another asker would not ask
  asked.clear_id();
  asked.clear_trace_parent();
  if (asked.has_take_config()) asked.mutable_take_config()->clear_expires_ns();
  const absl::Status dealt = parts_.driver.DealWith(
      absl::StrCat("the request ", what == nullptr ? "nothing" : what->name(), " of control (",
                   FingerprintOf(asked), ")"),
      [&] { Answer(socket, request); });
  if (!dealt.ok()) Refuse(request, dealt, socket.get());
}

void Management::Answer(const SocketPtr& socket, const internal::ManagementRequest& request) {
  using internal::ManagementRequest;
  internal::ManagementReply reply;
  reply.set_id(request.id());
  const auto answer_with_upgrade = [socket, reply](const absl::StatusOr<v1::Upgrade>& upgrade) {
    internal::ManagementReply answer = reply;
    SetStatus(upgrade.status(), &answer);
    if (upgrade.ok()) *answer.add_upgrades() = *upgrade;
    socket->Send(answer);
  };
  switch (request.request_case()) {
    case ManagementRequest::kHandoff:
      return Handoff(socket, request);
    case ManagementRequest::kSubscribe:
      socket->Send(reply);
      return Subscribe(socket, request.subscribe().after_sequence());
    case ManagementRequest::kUpgrade:
      return managed_.upgrades.Start(request.upgrade(), answer_with_upgrade);
    case ManagementRequest::kRollback:
      return managed_.upgrades.Rollback(request.rollback(), answer_with_upgrade);
    case ManagementRequest::kPauseUpgrade:
    case ManagementRequest::kResumeUpgrade:
      return answer_with_upgrade(managed_.upgrades.SetPaused(request.has_pause_upgrade()));
    default:
      break;
  }
  absl::Status status = Execute(*socket, request, &reply);
  // The answers of a driver that is gone are empty.
  if (const absl::Status& lost = parts_.driver.lost(); !lost.ok()) {
    reply = internal::ManagementReply();
    reply.set_id(request.id());
    status = absl::UnavailableError(absl::StrCat("the service's driver is gone: ", lost.message()));
  }
  SetStatus(status, &reply);
  socket->Send(reply);
}

absl::Status Management::Execute(const FramedSocket& socket,
                                 const internal::ManagementRequest& request,
                                 internal::ManagementReply* reply) {
  using internal::ManagementRequest;
  switch (request.request_case()) {
    case ManagementRequest::kDescribe:
      Describe(reply->mutable_description());
      return absl::OkStatus();
    case ManagementRequest::kListConnections:
      BATON_RETURN_IF_ERROR(CheckShard(request.list_connections().shard()));
      *reply->mutable_connections() = parts_.driver.ListConnections(request.list_connections());
      return absl::OkStatus();
    case ManagementRequest::kListShardMoves:
      BATON_RETURN_IF_ERROR(CheckShard(request.list_shard_moves().shard()));
      *reply->mutable_shard_moves() = parts_.driver.ListShardMoves(request.list_shard_moves());
      return absl::OkStatus();
    case ManagementRequest::kListUpgrades:
      for (v1::Upgrade& upgrade : managed_.upgrades.List()) {
        *reply->add_upgrades() = std::move(upgrade);
      }
      return absl::OkStatus();
    case ManagementRequest::kKillWorker:
      return parts_.workers.KillForOperator(request.kill_worker().worker_id());
    case ManagementRequest::kRedeemToken: {
      BATON_ASSIGN_OR_RETURN(const uint64_t worker_id,
                             parts_.workers.RedeemToken(request.redeem_token().token()));
      reply->mutable_redeemed()->set_worker_id(worker_id);
      return absl::OkStatus();
    }
    case ManagementRequest::kControlStream:
      return parts_.workers.SetControlStream(request.control_stream().worker_id(),
                                             request.control_stream().open(), &socket);
    case ManagementRequest::kDrainService: {
      BATON_ASSIGN_OR_RETURN(*reply->mutable_drain(),
                             managed_.drain.Begin(request.drain_service()));
      return absl::OkStatus();
    }
    case ManagementRequest::kEndDrain:
      return managed_.drain.End();
    case ManagementRequest::kSetPolicy:
      return SetPolicy(request.set_policy(), reply->mutable_policy());
    case ManagementRequest::kReplaceKeeper: {
      reply->set_keeper_pid(getpid());
      absl::Status started = parts_.driver.StartNextKeeper(request.replace_keeper().probation_ms());
      if (!absl::IsUnimplemented(started)) return started;
      end_();
      return absl::OkStatus();
    }
    case ManagementRequest::kReplaceDriverCode:
      return parts_.driver.TakeDriverCode(request.replace_driver_code().probation_ms());
    case ManagementRequest::kTakeConfig: {
      BATON_ASSIGN_OR_RETURN(*reply->mutable_config_taken(),
                             managed_.live.Take(request.take_config()));
      return absl::OkStatus();
    }
    default:
      return absl::UnimplementedError("a request this keeper does not know");
  }
}

// A negative `shard` stands for all shards.
absl::Status Management::CheckShard(int64_t shard) const {
  const uint32_t count = parts_.config.service().shards();
  if (shard < int64_t{count}) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("shard ", shard, " does not exist, the service has ", count));
}

absl::Status Management::SetPolicy(const internal::SetPolicy& request, v1::Policy* in_force) {
  BATON_ASSIGN_OR_RETURN(*in_force,
                         parts_.policies.Replace(request.policy(), request.validate_only()));
  if (request.validate_only()) return absl::OkStatus();
  parts_.events.Add("policy_set",
                    absl::StrCat("the service's policy is now: ",
                                 OneLine(in_force->ShortDebugString(), kMaxPolicyBytes)));
  return absl::OkStatus();
}

void Management::Subscribe(const SocketPtr& socket, uint64_t after) {
  subscribers_.insert(socket);
  for (const v1::Event& event : parts_.events.events()) {
    if (event.sequence() <= after) continue;
    internal::ManagementReply reply;
    *reply.mutable_event() = event;
    socket->Send(reply);
  }
}

void Management::Publish(const v1::Event& event) {
  if (subscribers_.empty()) return;
  internal::ManagementReply reply;
  *reply.mutable_event() = event;
  for (const SocketPtr& socket : subscribers_) socket->Send(reply);
}

void Management::Describe(internal::Description* description) {
  v1::Accounts accounts = managed_.limits.Look();
  *description = parts_.driver.DescribeQueues();
  v1::Service* service = description->mutable_service();
  const v1::ServiceConfig& config = parts_.config.service();
  service->set_name(config.name());
  service->set_device(std::string(parts_.driver.device_name()));
  service->set_shard_count(config.shards());
  service->set_max_connections(config.max_connections());
  service->set_keeper_pid(getpid());
  service->set_keeper_release(kRelease);
  service->set_driver_release(parts_.driver.introduced().release());
  service->set_uptime_seconds(static_cast<double>(MonotonicNanoseconds() - started_ns_) / 1e9);
  service->set_worker_socket(WorkerSocketPath(parts_.config.state_dir(), config.name()));
  service->set_network_namespace(config.network_namespace());
  service->set_reachable(true);
  service->set_buffer_bytes(config.buffer_bytes());
  service->set_shard_heap_bytes(config.shard_heap_bytes());
  if (parts_.driver.introduced().has_buffer_pages()) {
    *service->mutable_buffer_pages() = parts_.driver.introduced().buffer_pages();
  }
  if (config.has_state_decoder()) *service->mutable_state_decoder() = config.state_decoder();
  if (auto upgrade = managed_.upgrades.UnderWay()) {
    *service->mutable_upgrade() = *std::move(upgrade);
  }
  if (auto drain = managed_.drain.Describe()) *service->mutable_drain() = *std::move(drain);
  *service->mutable_policy() = parts_.policies.policy();
  *service->mutable_accounts() = std::move(accounts);
  service->mutable_version()->set_release(kRelease);
  service->mutable_version()->set_layout_version(arena::kLayoutVersion);
  service->mutable_version()->set_protocol_version(kProtocolVersion);
  for (v1::Worker& worker : parts_.workers.Describe())
    *description->add_workers() = std::move(worker);
  service->set_worker_count(static_cast<uint32_t>(description->workers_size()));
  for (v1::Worker& worker : *description->mutable_workers()) {
    if (worker.state() == v1::WORKER_STATE_READY) {
      service->set_ready_workers(service->ready_workers() + 1);
    }
    for (const v1::Shard& shard : description->shards()) {
      if (shard.owner_worker_id() == worker.id()) worker.add_shards(shard.index());
    }
  }
  for (const v1::Shard& shard : description->shards()) {
    if (shard.owner_worker_id() != 0) service->set_shards_owned(service->shards_owned() + 1);
  }
}

// ---------------------------------------------------------------- handoff

absl::StatusOr<std::vector<ShardMove>> Management::PlanHandoff(const internal::Handoff& request) {
  BATON_RETURN_IF_ERROR(managed_.upgrades.CheckIdle());
  const uint32_t shard_count = parts_.config.service().shards();
  // One element for each shard, so that a long list takes no longer than to read it.
  std::vector<bool> asked(shard_count, request.shards().empty());
  for (const uint32_t shard : request.shards()) {
    BATON_RETURN_IF_ERROR(CheckShard(shard));
    asked[shard] = true;
  }
  const auto first = std::find(asked.begin(), asked.end(), true) - asked.begin();
  BATON_ASSIGN_OR_RETURN(
      const uint32_t slot,
      parts_.workers.Successor(request.to_worker_id(), static_cast<uint32_t>(first)));
  std::vector<ShardMove> moves;
  for (uint32_t shard = 0; shard < shard_count; ++shard) {
    if (asked[shard]) moves.push_back({shard, slot});
  }
  return moves;
}

void Management::Handoff(const SocketPtr& socket, const internal::ManagementRequest& asked) {
  const internal::Handoff& request = asked.handoff();
  const auto moves = PlanHandoff(request);
  if (!moves.ok()) return Refuse(asked, moves.status(), socket.get());
  internal::ManagementReply reply;
  reply.set_id(asked.id());
  reply.mutable_handoff()->set_to_worker_id(parts_.workers.IdOf(moves->front().slot));
  for (const ShardMove& move : *moves) reply.mutable_handoff()->add_shards(move.shard);
  const uint32_t timeout_ms =
      request.timeout_ms() ? request.timeout_ms() : parts_.config.service().handoff_timeout_ms();
  MoveShards(parts_.loop, parts_.driver, *moves, timeout_ms,
             [socket, reply = std::move(reply),
              trace = parts_.events.trace_parent()](const HandoffsResult& result) mutable {
               if (!trace.empty()) {
                 log::Write(spdlog::level::info, {.trace_parent = trace},
                            result.status.ok()
                                ? "handoff: done"
                                : "handoff: " + std::string(MessageOf(result.status)));
               }
               SetStatus(result.status, &reply);
               reply.mutable_handoff()->set_slowest_blackout_us(result.slowest_us);
               socket->Send(reply);
             });
}

}  // namespace baton::keeper
