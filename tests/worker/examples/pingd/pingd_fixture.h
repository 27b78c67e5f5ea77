// A Baton with pingd workers, and clients that ping it all the time.
#ifndef TESTS_WORKER_EXAMPLES_PINGD_PINGD_FIXTURE_H_
#define TESTS_WORKER_EXAMPLES_PINGD_PINGD_FIXTURE_H_

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/harness/cluster.h"
#include "tests/harness/expectations.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/worker/examples/pingd/ping_client.h"

namespace baton::pingd {

inline constexpr std::chrono::seconds kTimeout{60};

struct PingdOptions {
  int version = 1;
  bool test_hooks = false;
  std::string crash_at = {};  // as BATON_CRASH_AT; needs test hooks
  std::vector<std::string> arguments = {};
};

struct PingdWorker {
  std::unique_ptr<harness::ChildProcess> process;
  uint64_t id = 0;
};

// One client in a thread of its own, from its beginning to Stop.
class PingLoad {
 public:
  PingLoad(uint16_t port, uint32_t data_bytes)
      : thread_([this, port, data_bytes] { Run(port, data_bytes); }) {}
  ~PingLoad() { Join(); }
  PingLoad(const PingLoad&) = delete;
  PingLoad& operator=(const PingLoad&) = delete;

  uint64_t pings() const { return pings_; }
  bool failed() const { return ended_ && !stop_; }
  // What it has found; of a whole connection.
  absl::Status Stop() {
    Join();
    return status_;
  }

 private:
  void Join() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void Run(uint16_t port, uint32_t data_bytes) {
    auto client = PingClient::Connect(port, data_bytes);
    status_ = client.status();
    while (status_.ok() && !stop_) {
      status_ = (*client)->Ping();
      if (status_.ok()) ++pings_;
    }
    if (status_.ok()) status_ = (*client)->Disconnect();
    ended_ = true;
  }

  absl::Status status_;  // of the thread, until it was joined
  std::atomic<uint64_t> pings_{0};
  std::atomic<bool> stop_{false}, ended_{false};
  std::thread thread_;
};

class PingdTest : public testing::Test {
 protected:
  void StartCluster(uint32_t shards = 2, uint32_t max_connections = 16,
                    std::vector<std::string> batond_arguments = {}) {
    harness::ClusterOptions options;
    options.service = "pingd";
    options.shards = shards;
    options.max_connections = max_connections;
    options.batond_arguments = std::move(batond_arguments);
    auto cluster = harness::Cluster::Start(std::move(options));
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }

  // Ready when it returns.
  void StartPingd(const PingdOptions& options, std::unique_ptr<PingdWorker>* worker) {
    auto started = std::make_unique<PingdWorker>();
    ASSERT_NO_FATAL_FAILURE(Spawn(options, &started->process));
    const auto line = started->process->ReadLineWith("pingd ready", kTimeout);
    ASSERT_OK(line);
    unsigned long long id = 0;
    unsigned port = 0;
    ASSERT_EQ(std::sscanf(line->c_str(), "pingd ready version=%*d worker=%llu port=%u", &id, &port),
              2)
        << *line;
    started->id = id;
    port_ = static_cast<uint16_t>(port);
    // One that crashes by itself may be gone before it can be looked at.
    if (options.crash_at.empty()) ASSERT_OK(cluster_->WaitUntilReady(id));
    *worker = std::move(started);
  }

  void Spawn(const PingdOptions& options, std::unique_ptr<harness::ChildProcess>* process) {
    const std::string name =
        absl::StrCat("pingd-v", options.version, options.test_hooks ? "-test-hooks" : "");
    const auto program = harness::Binaries().Find(name);
    ASSERT_OK(program);
    harness::ChildOptions child;
    child.program = *program;
    child.log_path = absl::StrCat(cluster_->directory(), "/pingd-", logs_.size(), ".log");
    logs_.push_back(child.log_path);
    child.arguments = {"--socket", cluster_->SocketPath(),
                       "--listen", absl::StrCat(verbs::testing::FabricUnderTest().host, ":", port_),
                       "--name",   name};
    child.arguments.insert(child.arguments.end(), options.arguments.begin(),
                           options.arguments.end());
    if (!options.crash_at.empty()) {
      child.environment.emplace_back("BATON_CRASH_AT", options.crash_at);
    }
    auto started = harness::ChildProcess::Start(child);
    ASSERT_OK(started);
    *process = *std::move(started);
  }

  void StartLoads(int count, uint32_t data_bytes) {
    for (int i = 0; i < count; ++i) {
      loads_.push_back(std::make_unique<PingLoad>(port_, data_bytes));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectPings());
  }

  // Each client has done some more whole pings, all of which began after this was called but the
  // first.
  void ExpectPings() {
    for (const auto& load : loads_) {
      const uint64_t enough = load->pings() + 3;
      EXPECT_OK(harness::WaitUntil(
          "pings", [&] { return load->failed() || load->pings() >= enough; }, kTimeout));
      if (load->failed()) ASSERT_OK(load->Stop());
    }
  }

  // Ends all clients: each found every step of its connection once.
  void ExpectNothingLost() {
    for (const auto& load : loads_) EXPECT_OK(load->Stop());
    loads_.clear();
  }

  // No connection is left behind.
  void ExpectNoConnections() {
    EXPECT_OK(harness::WaitUntil("all connections to be gone", [&] {
      const auto list = cluster_->operators().ListConnections("pingd");
      return list.ok() && list->connections_size() == 0;
    }));
  }

  void TearDown() override {
    loads_.clear();
    if (!HasFailure() || cluster_ == nullptr) return;
    cluster_->DumpLogs();
    for (const std::string& path : logs_) {
      std::ifstream file(path);
      std::cerr << "---- " << path << "\n" << file.rdbuf();
    }
  }

  std::unique_ptr<harness::Cluster> cluster_;
  std::vector<std::unique_ptr<PingLoad>> loads_;
  uint16_t port_ = 0;
  std::vector<std::string> logs_;
};

}  // namespace baton::pingd

#endif  // TESTS_WORKER_EXAMPLES_PINGD_PINGD_FIXTURE_H_
