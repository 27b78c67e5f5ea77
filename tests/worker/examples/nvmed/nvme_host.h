// A host of NVMe over Fabrics on RDMA: an admin queue, and I/O queues of one controller. It
// connects as Linux's does, and judges as HostQueue does. Thread-safety: none; a host is used by
// one thread at a time.
#ifndef TESTS_WORKER_EXAMPLES_NVMED_NVME_HOST_H_
#define TESTS_WORKER_EXAMPLES_NVMED_NVME_HOST_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/worker/examples/nvmed/host_queue.h"
#include "worker/examples/nvmed/nvme_data.h"
#include "worker/examples/nvmed/nvme_spec.h"

namespace baton::nvmed {

// ---------------------------------------------------------------- commands, as hosts make them

template <typename View>
SubmissionEntry EntryOf(const View& view) {
  static_assert(sizeof(View) == sizeof(SubmissionEntry));
  SubmissionEntry entry;
  std::memcpy(&entry, &view, sizeof(entry));
  return entry;
}

template <typename Opcode>
SubmissionEntry CommandOf(Opcode opcode, uint32_t nsid = 0) {
  SubmissionEntry entry = {};
  entry.opcode = static_cast<uint8_t>(opcode);
  entry.nsid = nsid;
  return entry;
}

// `blocks` from 1 on.
inline SubmissionEntry BlocksOf(IoOpcode opcode, uint32_t nsid, uint64_t slba, uint32_t blocks,
                                uint16_t control = 0) {
  auto block = ViewOf<BlockCommand>(CommandOf(opcode, nsid));
  block.slba = slba;
  block.nlb = static_cast<uint16_t>(blocks - 1);
  block.control = control;
  return EntryOf(block);
}

inline SubmissionEntry DeallocateOf(uint32_t nsid) {
  auto dataset = ViewOf<DatasetManagementCommand>(CommandOf(IoOpcode::kDatasetManagement, nsid));
  dataset.attributes = kDatasetDeallocate;
  return EntryOf(dataset);
}
// Its data, for one range.
inline std::vector<uint8_t> DatasetRangeOf(uint64_t slba, uint32_t blocks) {
  const DatasetRange range{0, blocks, slba};
  const auto* begin = reinterpret_cast<const uint8_t*>(&range);
  return {begin, begin + sizeof(range)};
}

inline SubmissionEntry FabricsOf(FabricsType type) {
  return CommandOf(AdminOpcode::kFabrics, static_cast<uint32_t>(type));
}

inline SubmissionEntry GetPropertyOf(uint32_t offset, uint8_t size = kProperty4Bytes) {
  auto property = ViewOf<PropertyCommand>(FabricsOf(FabricsType::kPropertyGet));
  property.ofst = offset;
  property.attrib = size;
  return EntryOf(property);
}

inline SubmissionEntry SetPropertyOf(uint32_t offset, uint32_t value) {
  auto property = ViewOf<PropertyCommand>(FabricsOf(FabricsType::kPropertySet));
  property.ofst = offset;
  property.value = value;
  return EntryOf(property);
}

inline SubmissionEntry IdentifyOf(IdentifyCns cns, uint32_t nsid = 0) {
  auto identify = ViewOf<IdentifyCommand>(CommandOf(AdminOpcode::kIdentify, nsid));
  identify.cns = static_cast<uint8_t>(cns);
  return EntryOf(identify);
}

// `bytes`: a multiple of 4.
inline SubmissionEntry LogPageOf(LogPageId page, uint32_t bytes, uint32_t nsid = kAllNamespaces) {
  auto get = ViewOf<GetLogPageCommand>(CommandOf(AdminOpcode::kGetLogPage, nsid));
  get.lid = static_cast<uint8_t>(page);
  get.numdl = static_cast<uint16_t>(bytes / 4 - 1);
  get.numdu = static_cast<uint16_t>((bytes / 4 - 1) >> 16);
  return EntryOf(get);
}

inline SubmissionEntry SetFeaturesOf(FeatureId feature, uint32_t value) {
  auto features = ViewOf<FeaturesCommand>(CommandOf(AdminOpcode::kSetFeatures));
  features.fid = static_cast<uint8_t>(feature);
  features.cdw11 = value;
  return EntryOf(features);
}

inline SubmissionEntry AbortOf(uint16_t queue, uint16_t cid) {
  auto abort = ViewOf<AbortCommand>(CommandOf(AdminOpcode::kAbort));
  abort.sqid = queue;
  abort.cid = cid;
  return EntryOf(abort);
}

inline Transfer ToHost(uint32_t bytes, bool invalidate_key = false) {
  Transfer transfer;
  transfer.kind = Transfer::Kind::kToHost;
  transfer.length = bytes;
  transfer.invalidate_key = invalidate_key;
  return transfer;
}
inline Transfer ToController(std::vector<uint8_t> data, bool invalidate_key = false) {
  Transfer transfer;
  transfer.kind = Transfer::Kind::kToController;
  transfer.data = std::move(data);
  transfer.invalidate_key = invalidate_key;
  return transfer;
}
inline Transfer InCapsule(std::vector<uint8_t> data) {
  Transfer transfer;
  transfer.kind = Transfer::Kind::kInCapsule;
  transfer.data = std::move(data);
  return transfer;
}

// The beginning of what a command has returned.
template <typename Data>
Data DataAs(const Response& response) {
  Data data = {};
  std::memcpy(&data, response.data.data(), std::min(sizeof(data), response.data.size()));
  return data;
}

// ---------------------------------------------------------------- the host

struct NvmeHostOptions {
  uint16_t port = 0;
  std::string subsystem_nqn = {};
  std::string host_nqn = "nqn.2014-08.org.example:host";
  uint8_t host_id = 1;         // all bytes of it
  uint32_t keep_alive_ms = 0;  // 0: none
  uint16_t entries = 32;       // of each queue
  uint16_t io_queues = 1;
  uint32_t data_bytes = 128 * 1024;  // of a command, at most
  bool flow_control = true;          // of the I/O queues
};

class NvmeHost {
 public:
  // The controller is enabled, and all I/O queues are connected.
  static absl::StatusOr<std::unique_ptr<NvmeHost>> Connect(const NvmeHostOptions& options);
  // The admin queue has been connected as RDMA has it; no command has been sent.
  static absl::StatusOr<std::unique_ptr<NvmeHost>> Open(const NvmeHostOptions& options);

  // The steps of Connect after Open. Each expects success of what it sends.
  absl::Status ConnectAdmin();
  absl::Status Enable();
  absl::Status Reset();                                    // Enable follows
  absl::StatusOr<uint16_t> AskForQueues(uint16_t queues);  // how many were granted
  absl::Status AddQueue(uint16_t id);

  // A Connect command for a queue of this host, and its data.
  SubmissionEntry ConnectCommandOf(const HostQueue& queue) const;
  ConnectData ConnectDataOf(const HostQueue& queue) const;
  // Queue and command as they are; the answer is the caller's to judge.
  absl::StatusOr<std::unique_ptr<HostQueue>> OpenQueue(uint16_t id);

  HostFabric& fabric() { return *fabric_; }
  HostQueue& admin() { return *admin_; }
  HostQueue& io(size_t index = 0) { return *io_[index]; }
  size_t io_queues() const { return io_.size(); }
  uint16_t controller() const { return controller_; }
  bool connected() const;

  absl::StatusOr<HealthLog> ReadHealthLog();
  absl::Status KeepAlive();
  // Shuts the controller down, and ends all connections. Nothing may be outstanding, or come.
  absl::Status Disconnect();

 private:
  explicit NvmeHost(const NvmeHostOptions& options) : options_(options) {}

  const NvmeHostOptions options_;
  std::unique_ptr<HostFabric> fabric_;
  std::unique_ptr<HostQueue> admin_;
  std::vector<std::unique_ptr<HostQueue>> io_;
  uint16_t controller_ = kDynamicController;
};

// kInternal, with `what` and the status, unless the command has succeeded.
absl::Status ExpectSuccess(const absl::StatusOr<Response>& response, const std::string& what);

}  // namespace baton::nvmed

#endif  // TESTS_WORKER_EXAMPLES_NVMED_NVME_HOST_H_
