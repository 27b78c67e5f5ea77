// A host of NVMe over Fabrics on RDMA: an admin queue, and I/O queues of one controller. It
// connects as Linux's does, and judges as HostQueue does. Thread-safety: none; a host is used by
// one thread at a time.
#ifndef TESTS_WORKER_EXAMPLES_NVMED_NVME_HOST_H_
#define TESTS_WORKER_EXAMPLES_NVMED_NVME_HOST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/worker/examples/nvmed/host_queue.h"
#include "worker/examples/nvmed/nvme_data.h"
#include "worker/examples/nvmed/nvme_spec.h"

namespace baton::nvmed {

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
