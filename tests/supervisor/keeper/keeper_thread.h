// A keeper of service "kv" that runs in a thread of the test's process, with its sockets in a
// directory of its own. Workers of the same process have to detach: the keeper kills the process
// of a worker that only closes its socket.
#ifndef TESTS_SUPERVISOR_KEEPER_KEEPER_THREAD_H_
#define TESTS_SUPERVISOR_KEEPER_KEEPER_THREAD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/keeper.h"
#include "tests/harness/temp_directory.h"
#include "tests/supervisor/keeper/hosted_driver.h"

namespace baton::keeper::testing {

class KeeperThread {
 public:
  using Change = std::function<void(v1::ServiceConfig*)>;

  KeeperThread();  // makes its directory; no thread yet
  ~KeeperThread() { Stop(); }

  void SetLauncher(const std::string& path) { launcher_ = path; }
  void DistrustContainedRoot() { distrusts_contained_root_ = true; }
  absl::Status Start(const Change& change = nullptr,
                     const driver_process::EngineOptions& engine_options = {});
  void Stop();  // ends it, as SIGTERM does; its sockets close

  driver_process::Engine& engine() {
    return dynamic_cast<driver_process::Engine&>(driver_->engine());
  }

  const harness::TempDirectory& directory() const { return directory_; }
  std::string socket() const { return directory_.File("kv.sock"); }
  std::string management_socket() const { return directory_.File("kv.keeper.sock"); }
  internal::KeeperConfig Config(const Change& change) const;

  // One request on the management socket. A status that the keeper answered is returned.
  absl::StatusOr<internal::ManagementReply> Ask(internal::ManagementRequest request);
  internal::Description Describe();
  std::vector<v1::Event> Events();  // that are logged
  absl::Status Handoff(uint64_t to_worker_id, const std::vector<uint32_t>& shards = {},
                       uint32_t timeout_ms = 0);

 private:
  harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
  std::string launcher_;
  bool distrusts_contained_root_ = false;
  HostedDriver* driver_ = nullptr;  // keeper_'s
  std::unique_ptr<Keeper> keeper_;
  std::thread thread_;
};

// A client of the worker socket that speaks for itself. Detaches at its end.
class RawClient {
 public:
  explicit RawClient(const std::string& socket);
  ~RawClient();

  static internal::WorkerRequest AttachRequest();  // a valid one

  absl::StatusOr<internal::WorkerReply> Ask(const internal::WorkerRequest& request);
  absl::Status Attach();
  // Sends one more request, so that keepers on kernels before Linux 6.5 know its process.
  absl::Status AttachAndShowItself();
  absl::Status Detach();
  // Closes the socket, in whatever state.
  void Close() { channel_.reset(); }

  bool attached() const { return attached_; }
  uint64_t id = 0;
  std::string token;
  std::vector<FileDescriptor> descriptors;  // of the last reply

  MessageChannel& channel() { return *channel_; }

 private:
  std::optional<MessageChannel> channel_;
  bool attached_ = false;
};

}  // namespace baton::keeper::testing

#endif  // TESTS_SUPERVISOR_KEEPER_KEEPER_THREAD_H_
