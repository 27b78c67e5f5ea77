#include "tests/worker/examples/nvmed/nvme_host.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::nvmed {
namespace {

// CC as Linux has it: the NVM command set, pages of 4 KiB, entries of 64 and of 16 bytes.
constexpr uint32_t kConfiguration = kIoSqEntryShift << 16 | kIoCqEntryShift << 20;

std::vector<uint8_t> BytesOf(const ConnectData& data) {
  const auto* begin = reinterpret_cast<const uint8_t*>(&data);
  return {begin, begin + sizeof(data)};
}

}  // namespace

absl::Status ExpectSuccess(const absl::StatusOr<Response>& response, const std::string& what) {
  BATON_RETURN_IF_ERROR(response.status());
  if (response->ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, " failed with status 0x",
                                          absl::Hex(static_cast<uint16_t>(response->status))));
}

absl::StatusOr<std::unique_ptr<NvmeHost>> NvmeHost::Open(const NvmeHostOptions& options) {
  std::unique_ptr<NvmeHost> host(new NvmeHost(options));
  BATON_ASSIGN_OR_RETURN(host->fabric_, HostFabric::Open());
  BATON_ASSIGN_OR_RETURN(host->admin_, host->OpenQueue(0));
  return host;
}

absl::StatusOr<std::unique_ptr<NvmeHost>> NvmeHost::Connect(const NvmeHostOptions& options) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<NvmeHost> host, Open(options));
  BATON_RETURN_IF_ERROR(host->ConnectAdmin());
  BATON_RETURN_IF_ERROR(host->Enable());
  if (options.io_queues == 0) return host;
  BATON_ASSIGN_OR_RETURN(const uint16_t granted, host->AskForQueues(options.io_queues));
  if (granted != options.io_queues) {
    return absl::InternalError(
        absl::StrCat(granted, " I/O queues were granted, not ", options.io_queues));
  }
  for (uint16_t id = 1; id <= granted; ++id) BATON_RETURN_IF_ERROR(host->AddQueue(id));
  return host;
}

absl::StatusOr<std::unique_ptr<HostQueue>> NvmeHost::OpenQueue(uint16_t id) {
  HostQueueOptions queue;
  queue.port = options_.port;
  queue.id = id;
  queue.entries = options_.entries;
  queue.data_bytes = options_.data_bytes;
  return HostQueue::Open(*fabric_, queue);
}

SubmissionEntry NvmeHost::ConnectCommandOf(const HostQueue& queue) const {
  auto connect = ViewOf<ConnectCommand>(FabricsOf(FabricsType::kConnect));
  connect.qid = queue.id();
  connect.sqsize = static_cast<uint16_t>(options_.entries - 1);
  if (queue.id() == 0) {
    connect.kato = options_.keep_alive_ms;
  } else if (!options_.flow_control) {
    connect.cattr = kConnectDisableSqFlowControl;
  }
  return EntryOf(connect);
}

ConnectData NvmeHost::ConnectDataOf(const HostQueue& queue) const {
  ConnectData data = {};
  std::memset(data.hostid, options_.host_id, sizeof(data.hostid));
  data.cntlid = queue.id() == 0 ? kDynamicController : controller_;
  options_.subsystem_nqn.copy(data.subnqn, sizeof(data.subnqn) - 1);
  options_.host_nqn.copy(data.hostnqn, sizeof(data.hostnqn) - 1);
  return data;
}

absl::Status NvmeHost::ConnectAdmin() {
  BATON_ASSIGN_OR_RETURN(
      const Response response,
      admin_->Execute(ConnectCommandOf(*admin_), ToController(BytesOf(ConnectDataOf(*admin_)))));
  BATON_RETURN_IF_ERROR(ExpectSuccess(response, "Connect of the admin queue"));
  controller_ = static_cast<uint16_t>(response.result);
  return absl::OkStatus();
}

absl::Status NvmeHost::Enable() {
  BATON_RETURN_IF_ERROR(
      ExpectSuccess(admin_->Execute(GetPropertyOf(kPropertyCap, kProperty8Bytes)), "Get CAP"));
  BATON_RETURN_IF_ERROR(
      ExpectSuccess(admin_->Execute(SetPropertyOf(kPropertyCc, kConfiguration | 1)), "Set CC"));
  BATON_ASSIGN_OR_RETURN(const Response status, admin_->Execute(GetPropertyOf(kPropertyCsts)));
  BATON_RETURN_IF_ERROR(ExpectSuccess(status, "Get CSTS"));
  if (status.result == kCstsReady) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CSTS is ", status.result, " after CC.EN was set"));
}

absl::Status NvmeHost::Reset() {
  BATON_RETURN_IF_ERROR(
      ExpectSuccess(admin_->Execute(SetPropertyOf(kPropertyCc, kConfiguration)), "Set CC, reset"));
  BATON_ASSIGN_OR_RETURN(const Response status, admin_->Execute(GetPropertyOf(kPropertyCsts)));
  BATON_RETURN_IF_ERROR(ExpectSuccess(status, "Get CSTS"));
  if ((status.result & kCstsReady) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CSTS is ", status.result, " after a reset"));
}

absl::StatusOr<uint16_t> NvmeHost::AskForQueues(uint16_t queues) {
  const auto asked = static_cast<uint16_t>(queues - 1);
  BATON_ASSIGN_OR_RETURN(
      const Response response,
      admin_->Execute(SetFeaturesOf(FeatureId::kNumberOfQueues, NumberOfQueues(asked, asked))));
  BATON_RETURN_IF_ERROR(ExpectSuccess(response, "Set Features, number of queues"));
  return static_cast<uint16_t>((response.result & 0xffff) + 1);
}

absl::Status NvmeHost::AddQueue(uint16_t id) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<HostQueue> queue, OpenQueue(id));
  if (!options_.flow_control) queue->DisableFlowControl();
  BATON_RETURN_IF_ERROR(ExpectSuccess(
      queue->Execute(ConnectCommandOf(*queue), InCapsule(BytesOf(ConnectDataOf(*queue)))),
      absl::StrCat("Connect of queue ", id)));
  io_.push_back(std::move(queue));
  return absl::OkStatus();
}

bool NvmeHost::connected() const {
  return admin_->connected() &&
         std::all_of(io_.begin(), io_.end(), [](const auto& queue) { return queue->connected(); });
}

absl::StatusOr<HealthLog> NvmeHost::ReadHealthLog() {
  BATON_ASSIGN_OR_RETURN(
      const Response response,
      admin_->Execute(LogPageOf(LogPageId::kHealth, sizeof(HealthLog)), ToHost(sizeof(HealthLog))));
  BATON_RETURN_IF_ERROR(ExpectSuccess(response, "Get Log Page, health"));
  return DataAs<HealthLog>(response);
}

absl::Status NvmeHost::KeepAlive() {
  return ExpectSuccess(admin_->Execute(CommandOf(AdminOpcode::kKeepAlive)), "Keep Alive");
}

absl::Status NvmeHost::Disconnect() {
  BATON_RETURN_IF_ERROR(
      ExpectSuccess(admin_->Execute(SetPropertyOf(
                        kPropertyCc, kConfiguration | 1 | uint32_t{kShutdownNormal} << 14)),
                    "Set CC, shutdown"));
  BATON_ASSIGN_OR_RETURN(const Response status, admin_->Execute(GetPropertyOf(kPropertyCsts)));
  if ((status.result & kCstsShutdownMask) != kCstsShutdownComplete) {
    return absl::InternalError(absl::StrCat("CSTS is ", status.result, " after a shutdown"));
  }
  for (const auto& queue : io_) {
    if (queue->outstanding() != 0) {
      return absl::InternalError(absl::StrCat("queue ", queue->id(), ": ", queue->outstanding(),
                                              " commands were never answered"));
    }
    BATON_RETURN_IF_ERROR(queue->Disconnect());
  }
  return admin_->Disconnect();
}

}  // namespace baton::nvmed
