// Runs a keeper and its driver in the test's process, and speaks to the keeper as a worker does.
#ifndef TESTS_SUPERVISOR_KEEPER_KEEPER_THREAD_H_
#define TESTS_SUPERVISOR_KEEPER_KEEPER_THREAD_H_

#include <sys/eventfd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/driver/driver_host.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/keeper.h"
#include "tests/harness/temp_directory.h"

namespace baton::keeper::testing {

// A keeper's driver in the keeper's process. Its engine runs as long as it lives. It holds nothing
// for another keeper.
class HostedDriverClient final : public DriverClient {
 public:
  explicit HostedDriverClient(std::unique_ptr<driver_process::DriverHost> host)
      : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), host_(std::move(host)) {
    host_->news().SetWake([fd = wake_.get()] { eventfd_write(fd, 1); });
    host_->Start();
    introduced_ = host_->Introduce();
  }

  driver_process::ServiceEngine& engine() { return host_->engine(); }
  // Both are called before there is a keeper. Keepers died of everything that it is about to do.
  void RefuseDealings() { refuses_dealings_ = true; }
  // Called with each order, on the keeper's thread.
  void Watch(std::function<void(const internal::DriverOrder&)> watch) { watch_ = std::move(watch); }

  const arena::Arena& arena() const override { return host_->driver().arena(); }
  std::string_view device_name() const override { return host_->driver().device_name(); }
  int news_fd() const override { return wake_.get(); }
  internal::DriverAnswer Execute(const internal::DriverOrder& order,
                                 std::vector<FileDescriptor> descriptors,
                                 std::vector<FileDescriptor>* received) override {
    if (watch_) watch_(order);
    if (refuses_dealings_ && !order.deal_with().what().empty()) {
      internal::DriverAnswer refused;
      refused.set_status_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
      return refused;
    }
    return host_->driver().Execute(order, std::move(descriptors), received);
  }

 protected:
  std::vector<internal::DriverNews> TakeNews() override {
    eventfd_t count;
    (void)eventfd_read(wake_.get(), &count);
    return host_->news().Take();
  }

 private:
  const FileDescriptor wake_;  // the engine writes to it until the host's end
  const std::unique_ptr<driver_process::DriverHost> host_;
  bool refuses_dealings_ = false;
  std::function<void(const internal::DriverOrder&)> watch_;
};

// A keeper of service "kv" that runs in a thread of the test's process, with its sockets in a
// directory of its own. Workers of the same process have to detach: the keeper kills the process
// of a worker that only closes its socket.
class KeeperThread {
 public:
  using Change = std::function<void(v1::ServiceConfig*)>;

  KeeperThread();  // makes its directory; no thread yet
  ~KeeperThread() { Stop(); }

  void SetLauncher(const std::string& path) { launcher_ = path; }
  void DistrustContainedRoot() { distrusts_contained_root_ = true; }
  void RefuseDealings() { refuses_dealings_ = true; }
  // See HostedDriverClient.
  void WatchOrders(std::function<void(const internal::DriverOrder&)> watch) {
    watch_ = std::move(watch);
  }
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
  bool refuses_dealings_ = false;
  std::function<void(const internal::DriverOrder&)> watch_;
  HostedDriverClient* driver_ = nullptr;  // keeper_'s
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
