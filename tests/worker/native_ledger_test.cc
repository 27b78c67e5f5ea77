// The ledger as a native object: the peer that checks every reply notices neither that its service
// runs so, nor that one worker takes over from the other under load.
//
// The object's main runs in threads of the test's process (see kind.h): two workers of one object,
// as a process takes no second one that has the same messages. Keepers fork.
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "tests/harness/binaries.h"
#include "tests/harness/peer_process.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/supervisor/keeper/keeper_thread.h"
#include "tests/worker/kind.h"

namespace baton::testing {
namespace {

class NativeLedgerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(keeper_.Start(
                  [](v1::ServiceConfig* service) {
                    service->set_send_queue_depth(64);
                    service->set_receive_queue_depth(64);
                    service->set_max_connections(16);
                    service->set_buffer_bytes(1 << 20);
                  },
                  ServiceKind::EngineOptions()),
              absl::OkStatus());
    kind_.Begin(keeper_);
    sigaction(SIGTERM, nullptr, &keepers_end_);  // which the ledger has for itself while it runs
  }
  void TearDown() override {
    for (std::thread& worker : workers_) worker.join();
    sigaction(SIGTERM, &keepers_end_, nullptr);
  }

  struct Ready {
    uint64_t worker = 0;
    uint32_t port = 0;
  };
  // Runs main of the object, until it says that it is ready.
  Ready Run() {
    const auto path = harness::Binaries().Find("ledger-v1.so");
    if (!path.ok()) {
      ADD_FAILURE() << path.status();
      return {};
    }
    void* const loaded = dlopen(path->c_str(), RTLD_NOW | RTLD_LOCAL);
    if (loaded == nullptr) {
      ADD_FAILURE() << dlerror();
      return {};
    }
    const auto main_function = reinterpret_cast<int (*)(int, char**)>(dlsym(loaded, "main"));
    std::array<int, 2> ready;
    EXPECT_EQ(pipe2(ready.data(), O_CLOEXEC), 0);
    workers_.emplace_back([this, main_function, end = ready[1]] {
      std::vector<std::string> arguments = {"ledger", "--socket=/nobody/looks/here", "--service=kv",
                                            absl::StrCat("--listen=", fabric_.host, ":0"),
                                            absl::StrCat("--ready-fd=", end)};
      std::vector<char*> pointers;
      for (std::string& argument : arguments) pointers.push_back(argument.data());
      EXPECT_EQ(main_function(static_cast<int>(pointers.size()), pointers.data()), 0);
      close(end);
    });
    std::array<char, 256> line = {};
    EXPECT_GT(read(ready[0], line.data(), line.size() - 1), 0);
    close(ready[0]);
    TakeLoggingBack();
    Ready result;
    EXPECT_EQ(sscanf(line.data(), "ledger ready version=1 worker=%lu port=%u", &result.worker,
                     &result.port),
              2)
        << line.data();
    return result;
  }
  // The object shares spdlog with us, and has taken a logger of its own for the default. It cannot
  // have another of that name; nor must it go, as the keeper's thread may be using it.
  void TakeLoggingBack() {
    loggers_.push_back(spdlog::default_logger());
    spdlog::set_default_logger(own_logger_);
    spdlog::drop(loggers_.back()->name());
  }
  void End(const std::vector<uint64_t>& workers) {
    keeper_.engine().Run([&] {
      for (const uint64_t worker : workers) {
        for (uint32_t slot = 0; slot < keeper_.engine().arena().shape().workers; ++slot) {
          keeper_.engine().succession().AskToStop(slot, worker);
        }
      }
    });
  }
  std::unique_ptr<harness::PeerProcess> StartPeer(uint32_t port) {
    harness::PeerOptions options;
    options.program = harness::Binaries().Find("baton-peer").value();
    options.log_path = keeper_.directory().File("peer.log");
    options.fabric = fabric_;
    options.port = static_cast<uint16_t>(port);
    options.connections = 8;
    return harness::PeerProcess::Start(options).value();
  }

  const verbs::testing::Fabric fabric_ = verbs::testing::FabricUnderTest();
  keeper::testing::KeeperThread keeper_;
  ServiceKind kind_;
  struct sigaction keepers_end_ = {};
  const std::shared_ptr<spdlog::logger> own_logger_ = spdlog::default_logger();
  std::vector<std::shared_ptr<spdlog::logger>> loggers_;
  std::vector<std::thread> workers_;
};

TEST_F(NativeLedgerTest, shouldServeAndHandOverUnderLoad) {
  const Ready first = Run();
  ASSERT_NE(first.port, 0u);
  const auto peer = StartPeer(first.port);
  ASSERT_EQ(peer->Settle(), absl::OkStatus());
  const Ready second = Run();
  ASSERT_NE(second.worker, first.worker);
  constexpr int kHandoffs = 10;
  for (int i = 1; i <= kHandoffs; ++i) {
    EXPECT_EQ(keeper_.Handoff(i % 2 == 1 ? second.worker : first.worker), absl::OkStatus());
    EXPECT_EQ(peer->Settle(), absl::OkStatus());
    const auto window = peer->Mark(absl::StrCat("handoff", i));
    ASSERT_TRUE(window.ok()) << window.status();
    EXPECT_EQ(window->connections_with_reply, 8u) << i;
    EXPECT_EQ(window->disconnects, 0u) << i;
  }
  const auto result = peer->Stop();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->Flag("ok")) << result->text();
  EXPECT_GT(result->Count("messages"), 0u);
  End({first.worker, second.worker});
}

}  // namespace
}  // namespace baton::testing
