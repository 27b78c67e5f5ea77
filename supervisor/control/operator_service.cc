#include "supervisor/control/operator_service.h"

#include <unistd.h>

#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/text/text.h"
#include "proto/baton/v1/operator.grpc.pb.h"
#include "supervisor/control/change_record.h"
#include "supervisor/control/grpc_status.h"
#include "supervisor/control/service_calls.h"
#include "supervisor/control/streams.h"

namespace baton {
namespace {

// The keeper limits a handoff's time. This is for a keeper that never answers.
constexpr uint64_t kMaxHandoffNs = 600 * kSecondNs;
constexpr char kWatchEvents[] = "/baton.v1.OperatorService/WatchEvents";
constexpr uint32_t kDefaultPage = 1000;
constexpr uint32_t kMaxPage = 10000;
// Trailing metadata of an answer that leaves something out, for the operator to read.
constexpr char kWarning[] = "baton-warning";
// All headers of an answer may have 8 KiB.
constexpr size_t kMaxWarningBytes = 512;
constexpr int kMaxWarnings = 8;
constexpr size_t kMaxProblemBytes = 2048;
constexpr uint32_t kMaxWatchWindowMs = 86'400'000;

v1::Service UnreachableService(const std::string& name, const absl::Status& problem) {
  v1::Service service;
  service.set_name(name);
  service.set_reachable(false);
  service.set_problem(OneLine(MessageOf(problem), kMaxProblemBytes));
  return service;
}

absl::Status CheckWatchWindow(uint32_t milliseconds) {
  if (milliseconds <= kMaxWatchWindowMs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("watch_window_ms is ", milliseconds, ": give at most ", kMaxWatchWindowMs));
}

class OperatorServiceImpl final
    : public v1::OperatorService::WithCallbackMethod_WatchEvents<v1::OperatorService::Service> {
 public:
  OperatorServiceImpl(const OperatorServiceContext& context, Role role) : context_(context) {
    const google::protobuf::ServiceDescriptor* service =
        v1::GetStatusRequest::descriptor()->file()->FindServiceByName("OperatorService");
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string method =
          absl::StrCat("/", service->full_name(), "/", service->method(i)->name());
      if (!MayCall(role, method)) MarkMethodGeneric(i);
    }
  }

  grpc::Status GetStatus(grpc::ServerContext* call, const v1::GetStatusRequest*,
                         v1::GetStatusResponse* response) override {
    FillVersion(response->mutable_version());
    response->set_control_pid(getpid());
    response->set_control_uptime_seconds(static_cast<double>(MonotonicNanoseconds() - started_ns_) *
                                         1e-9);
    // Before the configuration, which is then at least that batond's.
    response->set_batonds_followed(context_.batonds_followed());
    const auto config = context_.callers->config();
    response->set_batond_release(config->batond_release());
    response->set_control_program_given_up(config->control_program_given_up());
    response->set_batond_program_given_up(config->batond_program_given_up());
    AddServices(*call, response);
    return grpc::Status::OK;
  }

  grpc::Status ListServices(grpc::ServerContext* call, const v1::ListServicesRequest*,
                            v1::ListServicesResponse* response) override {
    FillVersion(response->mutable_version());
    AddServices(*call, response);
    return grpc::Status::OK;
  }

  grpc::Status GetService(grpc::ServerContext* call, const v1::GetServiceRequest* request,
                          v1::GetServiceResponse* response) override {
    auto described = calls_.Describe(*call, request->service());
    if (!described.ok()) return ToGrpc(described.status());
    FillVersion(response->mutable_version());
    *response->mutable_service() = std::move(*described->mutable_service());
    response->mutable_shards()->Swap(described->mutable_shards());
    response->mutable_workers()->Swap(described->mutable_workers());
    return grpc::Status::OK;
  }

  grpc::Status ListWorkers(grpc::ServerContext* call, const v1::ListWorkersRequest* request,
                           v1::ListWorkersResponse* response) override {
    FillVersion(response->mutable_version());
    if (!request->service().empty()) {
      const auto described = calls_.Describe(*call, request->service());
      if (!described.ok()) return ToGrpc(described.status());
      AddWorkers(request->service(), *described, response);
      return grpc::Status::OK;
    }
    int left_out = 0;
    for (const auto& [name, described] : calls_.DescribeAll(*call)) {
      if (described.ok()) {
        AddWorkers(name, *described, response);
      } else if (++left_out <= kMaxWarnings) {
        call->AddTrailingMetadata(kWarning,
                                  AsciiLine(MessageOf(described.status()), kMaxWarningBytes));
      }
    }
    if (left_out > kMaxWarnings) {
      call->AddTrailingMetadata(
          kWarning, absl::StrCat("workers of ", left_out - kMaxWarnings,
                                 " more services are left out: `baton status` names them"));
    }
    return grpc::Status::OK;
  }

  grpc::Status GetWorker(grpc::ServerContext* call, const v1::GetWorkerRequest* request,
                         v1::GetWorkerResponse* response) override {
    const auto described = calls_.Describe(*call, request->service());
    if (!described.ok()) return ToGrpc(described.status());
    const v1::Worker* worker = FindWorker(*described, request->worker_id());
    if (!worker) return ToGrpc(NoSuchWorker(request->service(), request->worker_id()));
    FillVersion(response->mutable_version());
    *response->mutable_worker() = *worker;
    return grpc::Status::OK;
  }

  grpc::Status StopWorker(grpc::ServerContext* call, const v1::StopWorkerRequest* request,
                          v1::StopWorkerResponse* response) override {
    return Change(*call, "StopWorker", *request, response,
                  [&] { return baton::StopWorker(*call, *request, calls_, context_.streams); });
  }

  grpc::Status KillWorker(grpc::ServerContext* call, const v1::KillWorkerRequest* request,
                          v1::KillWorkerResponse* response) override {
    return Change(*call, "KillWorker", *request, response, [&]() -> absl::Status {
      if (request->worker_id() == 0) {
        return absl::InvalidArgumentError("worker_id is missing: name the worker to kill");
      }
      internal::ManagementRequest kill;
      kill.mutable_kill_worker()->set_worker_id(request->worker_id());
      return calls_.Change(*call, request->service(), std::move(kill)).status();
    });
  }

  grpc::Status ReplaceKeeper(grpc::ServerContext* call, const v1::ReplaceKeeperRequest* request,
                             v1::ReplaceKeeperResponse* response) override {
    return Change(*call, "ReplaceKeeper", *request, response, [&]() -> absl::Status {
      internal::ManagementRequest replace;
      BATON_RETURN_IF_ERROR(CheckWatchWindow(request->watch_window_ms()));
      replace.mutable_replace_keeper()->set_probation_ms(request->watch_window_ms());
      BATON_ASSIGN_OR_RETURN(const internal::ManagementReply reply,
                             calls_.Change(*call, request->service(), std::move(replace)));
      response->set_keeper_pid(reply.keeper_pid());
      return absl::OkStatus();
    });
  }

  grpc::Status ReplaceDriverCode(grpc::ServerContext* call,
                                 const v1::ReplaceDriverCodeRequest* request,
                                 v1::ReplaceDriverCodeResponse* response) override {
    return Change(*call, "ReplaceDriverCode", *request, response, [&]() -> absl::Status {
      internal::ManagementRequest replace;
      BATON_RETURN_IF_ERROR(CheckWatchWindow(request->watch_window_ms()));
      replace.mutable_replace_driver_code()->set_probation_ms(request->watch_window_ms());
      return calls_.Change(*call, request->service(), std::move(replace)).status();
    });
  }

  grpc::Status ReplaceProgram(grpc::ServerContext* call, const v1::ReplaceProgramRequest* request,
                              v1::ReplaceProgramResponse* response) override {
    FillVersion(response->mutable_version());
    return ToGrpc(
        record_.Do(*call, "ReplaceProgram", *request, /*service=*/"", [&]() -> absl::Status {
          BATON_RETURN_IF_ERROR(CheckWatchWindow(request->watch_window_ms()));
          return context_.replace_program(*request);
        }));
  }

  grpc::Status ReadPrograms(grpc::ServerContext*, const v1::ReadProgramsRequest*,
                            v1::ReadProgramsResponse* response) override {
    FillVersion(response->mutable_version());
    context_.read_programs(response);
    return grpc::Status::OK;
  }

  grpc::Status ListShards(grpc::ServerContext* call, const v1::ListShardsRequest* request,
                          v1::ListShardsResponse* response) override {
    auto described = calls_.Describe(*call, request->service());
    if (!described.ok()) return ToGrpc(described.status());
    FillVersion(response->mutable_version());
    for (v1::Shard& shard : *described->mutable_shards()) {
      v1::ShardOfService* item = response->add_shards();
      item->set_service(request->service());
      *item->mutable_shard() = std::move(shard);
    }
    return grpc::Status::OK;
  }

  grpc::Status GetShard(grpc::ServerContext* call, const v1::GetShardRequest* request,
                        v1::GetShardResponse* response) override {
    const auto described = calls_.Describe(*call, request->service());
    if (!described.ok()) return ToGrpc(described.status());
    for (const v1::Shard& shard : described->shards()) {
      if (shard.index() != request->shard()) continue;
      FillVersion(response->mutable_version());
      *response->mutable_shard() = shard;
      return grpc::Status::OK;
    }
    return ToGrpc(NoSuchShard(request->service(), request->shard(), described->shards_size()));
  }

  grpc::Status ListConnections(grpc::ServerContext* call, const v1::ListConnectionsRequest* request,
                               v1::ListConnectionsResponse* response) override {
    if (request->shard() < -1 || request->page_size() > kMaxPage) {
      return ToGrpc(absl::InvalidArgumentError(
          absl::StrCat("shard ", request->shard(), ", page_size ", request->page_size(),
                       ": give a shard or -1 for all, and at most ", kMaxPage)));
    }
    const uint32_t limit = request->page_size() == 0 ? kDefaultPage : request->page_size();
    auto reply =
        Connections(*call, request->service(), request->shard(), request->page_start(), limit);
    if (!reply.ok()) return ToGrpc(reply.status());
    FillVersion(response->mutable_version());
    for (v1::Connection& connection : *reply->mutable_connections()) {
      v1::ConnectionOfService* item = response->add_connections();
      item->set_service(request->service());
      *item->mutable_connection() = std::move(connection);
    }
    response->set_next_page_start(reply->next());
    return grpc::Status::OK;
  }

  grpc::Status GetConnection(grpc::ServerContext* call, const v1::GetConnectionRequest* request,
                             v1::GetConnectionResponse* response) override {
    const auto reply = Connections(*call, request->service(), -1, request->connection(), 1);
    if (!reply.ok()) return ToGrpc(reply.status());
    if (reply->connections_size() == 0 || reply->connections(0).index() != request->connection()) {
      return ToGrpc(absl::NotFoundError(absl::StrCat(
          "service \"", request->service(), "\" has no connection ", request->connection(),
          " now: `baton connection list ", request->service(), "` shows all")));
    }
    FillVersion(response->mutable_version());
    *response->mutable_connection() = reply->connections(0);
    return grpc::Status::OK;
  }

  grpc::Status Handoff(grpc::ServerContext* call, const v1::HandoffRequest* request,
                       v1::HandoffResponse* response) override {
    return Change(*call, "Handoff", *request, response,
                  [&] { return HandOff(*call, *request, response); });
  }

  grpc::Status Upgrade(grpc::ServerContext* call, const v1::UpgradeRequest* request,
                       v1::UpgradeResponse* response) override {
    if (request->plan().exec().empty()) {
      return Change(*call, "Upgrade", *request, response, [] {
        return absl::InvalidArgumentError("plan.exec is missing: name the new program");
      });
    }
    internal::ManagementRequest upgrade;
    *upgrade.mutable_upgrade() = request->plan();
    return ChangeProgram(*call, "Upgrade", *request, std::move(upgrade), response);
  }

  grpc::Status Rollback(grpc::ServerContext* call, const v1::RollbackRequest* request,
                        v1::RollbackResponse* response) override {
    internal::ManagementRequest rollback;
    rollback.mutable_rollback()->set_ready_timeout_ms(request->ready_timeout_ms());
    rollback.mutable_rollback()->set_watch_window_ms(request->watch_window_ms());
    rollback.mutable_rollback()->set_no_rollback(request->no_rollback());
    return ChangeProgram(*call, "Rollback", *request, std::move(rollback), response);
  }

  grpc::Status ListUpgrades(grpc::ServerContext* call, const v1::ListUpgradesRequest* request,
                            v1::ListUpgradesResponse* response) override {
    internal::ManagementRequest list;
    list.mutable_list_upgrades();
    auto reply = calls_.Ask(*call, request->service(), std::move(list));
    if (!reply.ok()) return ToGrpc(reply.status());
    FillVersion(response->mutable_version());
    response->mutable_upgrades()->Swap(reply->mutable_upgrades());
    return grpc::Status::OK;
  }

  grpc::Status PauseUpgrade(grpc::ServerContext* call, const v1::PauseUpgradeRequest* request,
                            v1::PauseUpgradeResponse* response) override {
    internal::ManagementRequest pause;
    pause.mutable_pause_upgrade();
    return ChangeProgram(*call, "PauseUpgrade", *request, std::move(pause), response);
  }

  grpc::Status ResumeUpgrade(grpc::ServerContext* call, const v1::ResumeUpgradeRequest* request,
                             v1::ResumeUpgradeResponse* response) override {
    internal::ManagementRequest resume;
    resume.mutable_resume_upgrade();
    return ChangeProgram(*call, "ResumeUpgrade", *request, std::move(resume), response);
  }

  grpc::Status DrainService(grpc::ServerContext* call, const v1::DrainServiceRequest* request,
                            v1::DrainServiceResponse* response) override {
    return Change(*call, "DrainService", *request, response, [&]() -> absl::Status {
      internal::ManagementRequest drain;
      drain.mutable_drain_service()->set_deadline_ms(request->deadline_ms());
      drain.mutable_drain_service()->set_disconnect(request->disconnect());
      BATON_ASSIGN_OR_RETURN(internal::ManagementReply reply,
                             calls_.Change(*call, request->service(), std::move(drain)));
      response->mutable_drain()->Swap(reply.mutable_drain());
      return absl::OkStatus();
    });
  }

  grpc::Status EndDrain(grpc::ServerContext* call, const v1::EndDrainRequest* request,
                        v1::EndDrainResponse* response) override {
    return Change(*call, "EndDrain", *request, response, [&] {
      internal::ManagementRequest end;
      end.mutable_end_drain();
      return calls_.Change(*call, request->service(), std::move(end)).status();
    });
  }

  grpc::Status ListShardMoves(grpc::ServerContext* call, const v1::ListShardMovesRequest* request,
                              v1::ListShardMovesResponse* response) override {
    internal::ManagementRequest list;
    list.mutable_list_shard_moves()->set_shard(request->shard());
    auto reply = calls_.Ask(*call, request->service(), std::move(list));
    if (!reply.ok()) return ToGrpc(reply.status());
    FillVersion(response->mutable_version());
    response->mutable_moves()->Swap(reply->mutable_shard_moves());
    return grpc::Status::OK;
  }

  grpc::Status SetPolicy(grpc::ServerContext* call, const v1::SetPolicyRequest* request,
                         v1::SetPolicyResponse* response) override {
    const auto set_policy = [&]() -> absl::Status {
      internal::ManagementRequest set;
      *set.mutable_set_policy()->mutable_policy() = request->policy();
      set.mutable_set_policy()->set_validate_only(request->validate_only());
      BATON_ASSIGN_OR_RETURN(internal::ManagementReply reply,
                             calls_.Change(*call, request->service(), std::move(set)));
      response->mutable_policy()->Swap(reply.mutable_policy());
      return absl::OkStatus();
    };
    if (request->validate_only()) {  // nothing is changed
      FillVersion(response->mutable_version());
      return ToGrpc(set_policy());
    }
    return Change(*call, "SetPolicy", *request, response, set_policy);
  }

  grpc::Status Reload(grpc::ServerContext* call, const v1::ReloadRequest* request,
                      v1::ReloadResponse* response) override {
    FillVersion(response->mutable_version());
    const auto reload = [&] { return context_.reload(*request, response); };
    if (request->validate_only()) return ToGrpc(reload());  // nothing is changed
    return ToGrpc(record_.Do(*call, "Reload", *request, /*service=*/"", reload));
  }

  grpc::ServerWriteReactor<v1::WatchEventsResponse>* WatchEvents(
      grpc::CallbackServerContext* call, const v1::WatchEventsRequest* request) override {
    const auto certificate = call->auth_context();
    EventStream::Judge judge;
    if (certificate && certificate->IsPeerAuthenticated()) {
      judge = [callers = context_.callers, certificate] {
        return callers->Judge(*certificate, kWatchEvents);
      };
    }
    return context_.event_streams->Open(*request, std::move(judge));
  }

 private:
  absl::Status HandOff(const grpc::ServerContext& call, const v1::HandoffRequest& request,
                       v1::HandoffResponse* response) {
    BATON_ASSIGN_OR_RETURN(const internal::Description described,
                           calls_.Describe(call, request.service()));
    for (const uint32_t shard : request.shards()) {
      if (shard < static_cast<uint32_t>(described.shards_size())) continue;
      return NoSuchShard(request.service(), shard, described.shards_size());
    }
    NoticeOwners(request, described);
    internal::ManagementRequest handoff;
    *handoff.mutable_handoff()->mutable_shards() = request.shards();
    handoff.mutable_handoff()->set_to_worker_id(request.to_worker_id());
    handoff.mutable_handoff()->set_timeout_ms(request.timeout_ms());
    BATON_ASSIGN_OR_RETURN(
        const internal::ManagementReply reply,
        calls_.Change(call, request.service(), std::move(handoff), kMaxHandoffNs));
    response->set_to_worker_id(reply.handoff().to_worker_id());
    *response->mutable_shards() = reply.handoff().shards();
    response->set_slowest_blackout_us(reply.handoff().slowest_blackout_us());
    return absl::OkStatus();
  }

  // The keeper answers when the change has begun. The rest goes on without control.
  template <typename Request, typename Response>
  grpc::Status ChangeProgram(const grpc::ServerContext& call, const char* what,
                             const Request& asked, internal::ManagementRequest request,
                             Response* response) {
    auto change = [&, request = std::move(request)]() mutable -> absl::Status {
      BATON_ASSIGN_OR_RETURN(internal::ManagementReply reply,
                             calls_.Change(call, asked.service(), std::move(request)));
      if (reply.upgrades().empty()) {
        return absl::InternalError(absl::StrCat("the keeper of service \"", asked.service(),
                                                "\" did not say what it has begun"));
      }
      response->mutable_upgrade()->Swap(reply.mutable_upgrades(0));
      return absl::OkStatus();
    };
    return Change(call, what, asked, response, change);
  }

  absl::StatusOr<internal::Connections> Connections(const grpc::ServerContext& call,
                                                    const std::string& service, int32_t shard,
                                                    uint32_t start, uint32_t limit) {
    internal::ManagementRequest list;
    list.mutable_list_connections()->set_shard(shard);
    list.mutable_list_connections()->set_start(start);
    list.mutable_list_connections()->set_limit(limit);
    auto reply = calls_.Ask(call, service, std::move(list));
    if (!reply.ok()) return reply.status();
    return std::move(*reply->mutable_connections());
  }

  template <typename Response>
  void AddServices(const grpc::ServerContext& call, Response* response) {
    for (auto& [name, described] : calls_.DescribeAll(call)) {
      *response->add_services() = described.ok() ? std::move(*described->mutable_service())
                                                 : UnreachableService(name, described.status());
    }
  }

  static void AddWorkers(const std::string& service, const internal::Description& described,
                         v1::ListWorkersResponse* response) {
    for (const v1::Worker& worker : described.workers()) {
      v1::WorkerOfService* item = response->add_workers();
      item->set_service(service);
      *item->mutable_worker() = worker;
    }
  }

  // Lets owners prepare. The handoff does not depend on the notices, because the keeper asks the
  // owners itself.
  void NoticeOwners(const v1::HandoffRequest& request, const internal::Description& described) {
    std::map<uint64_t, v1::AttachResponse> notices;
    for (const v1::Shard& shard : described.shards()) {
      const auto& chosen = request.shards();
      if (!chosen.empty() && !absl::c_linear_search(chosen, shard.index())) continue;
      if (shard.owner_worker_id() == 0 || shard.owner_worker_id() == request.to_worker_id()) {
        continue;
      }
      notices[shard.owner_worker_id()].mutable_handoff()->add_shards(shard.index());
    }
    for (auto& [worker, notice] : notices) {
      context_.streams->Notify(request.service(), worker, std::move(notice));
    }
  }

  // Does `work`, which changes something, and records it.
  template <typename Request, typename Response, typename Work>
  grpc::Status Change(const grpc::ServerContext& call, const char* what, const Request& request,
                      Response* response, const Work& work) {
    FillVersion(response->mutable_version());
    return ToGrpc(record_.Do(call, what, request, request.service(), work));
  }

  const OperatorServiceContext context_;
  const uint64_t started_ns_ = MonotonicNanoseconds();
  const ServiceCalls calls_{context_.keepers, context_.streams};
  ChangeRecord record_{context_.keepers, context_.callers, context_.trail};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeOperatorService(const OperatorServiceContext& context,
                                                   Role role) {
  return std::make_unique<OperatorServiceImpl>(context, role);
}

}  // namespace baton
