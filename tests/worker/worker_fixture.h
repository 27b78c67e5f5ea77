// A keeper, workers and raw peers in one process: the keeper has its threads, all others are turned
// by the test's.
#ifndef TESTS_WORKER_WORKER_FIXTURE_H_
#define TESTS_WORKER_WORKER_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/harness/wait_until.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/supervisor/keeper/keeper_thread.h"
#include "tests/worker/kind.h"
#include "worker/worker.h"

namespace baton::testing {

using driver::testing::RawPeer;

inline constexpr uint32_t kHeapBytes = 1 << 20;  // of a shard, where a test asks for one
// For what comes at once where the machine has time.
inline const int kDeadlineMs = 10'000 * harness::Slowness();

// Records what it is told, and does what the test has said.
class ScriptedService : public Service {
 public:
  absl::Status OnAdopt(Shard& shard) override {
    calls.emplace_back("adopt");
    shards[shard.index()] = &shard;
    return on_adopt ? on_adopt(shard) : absl::OkStatus();
  }
  void OnCompletion(Shard& shard, const Completion& completion) override {
    completions.push_back(completion);
    if (on_completion) on_completion(shard, completion);
  }
  void OnRelease(Shard& shard) override {
    calls.emplace_back("release");
    if (on_release) on_release(shard);
    shards.erase(shard.index());
  }
  void OnLost(Shard& shard) override {
    calls.emplace_back("lost");
    lost = &shard;
    if (on_lost) on_lost(shard);
    shards.erase(shard.index());
  }

  int Count(Completion::Kind kind) const {
    return static_cast<int>(
        std::count_if(completions.begin(), completions.end(),
                      [&](const Completion& completion) { return completion.kind == kind; }));
  }
  const Completion* Find(Completion::Kind kind) const {
    for (const Completion& completion : completions) {
      if (completion.kind == kind) return &completion;
    }
    return nullptr;
  }

  std::function<absl::Status(Shard&)> on_adopt;
  std::function<void(Shard&, const Completion&)> on_completion;
  std::function<void(Shard&)> on_release;
  std::function<void(Shard&)> on_lost;

  std::vector<std::string> calls;
  std::vector<Completion> completions;
  std::map<uint32_t, Shard*> shards;  // owned now
  Shard* lost = nullptr;
};

// The two halves of the buffers of connection `index`: 16 slots of 1 KiB to receive, 16 to send.
inline Buffer ReceiveSlot(const Connection& connection, uint64_t sequence, uint32_t length = 1024) {
  return {(connection.index() * 32 + sequence % 16) * 1024, length};
}
inline Buffer SendSlot(const Connection& connection, uint64_t sequence, uint32_t length) {
  return {(connection.index() * 32 + 16 + sequence % 16) * 1024, length};
}

class WorkerFixture : public ::testing::Test {
 protected:
  void TearDown() override { workers.clear(); }

  // Lives until all workers have ended.
  ScriptedService& NewService() { return services_.emplace_back(); }

  void Start(const keeper::testing::KeeperThread::Change& change = nullptr) {
    ASSERT_EQ(keeper.Start(change, kind.EngineOptions()), absl::OkStatus());
    kind.Begin(keeper);
  }
  WorkerOptions Options(CommitMode mode) const {
    WorkerOptions options;
    options.socket = keeper.socket();
    options.service = "kv";
    options.version = "test";
    options.commit_mode = mode;
    options.control_stream = false;
    return options;
  }
  // A worker that is ready; it and its service live as long as the test.
  Worker* Add(ScriptedService* service, CommitMode mode = CommitMode::kAfterEachBatch) {
    auto worker = Worker::Attach(Options(mode), service);
    EXPECT_TRUE(worker.ok()) << worker.status();
    EXPECT_EQ((*worker)->Ready(), absl::OkStatus());
    workers.push_back(*std::move(worker));
    return workers.back().get();
  }
  // Ends one: it releases and detaches.
  void Remove(Worker* worker) {
    std::erase_if(workers, [&](const auto& item) { return item.get() == worker; });
  }

  void Turn() {
    for (auto& worker : workers) {
      const auto polled = worker->Poll();
      if (!polled.ok()) poll_status = polled.status();
    }
    for (RawPeer* peer : peers) peer->Turn();
  }
  [[nodiscard]] bool Until(const std::function<bool()>& done) {
    return driver::testing::Pump([&] { Turn(); }, done);
  }
  // The driver's part only: workers see nothing yet.
  [[nodiscard]] bool UntilWithoutWorkers(const std::function<bool()>& done) {
    return driver::testing::Pump(
        [&] {
          kind.DriveForOwners();
          for (RawPeer* peer : peers) peer->Turn();
        },
        done);
  }
  uint64_t CompletionsInLog(uint32_t shard = 0) {
    return keeper.Describe().shards(static_cast<int>(shard)).completions();
  }

  // Connects `peer`; the service has to accept.
  void Connect(RawPeer& peer, Worker& worker, std::string_view private_data = {}) {
    peers.push_back(&peer);
    peer.Connect(worker.Listen(fabric.host, 0).value(), private_data);
  }
  void Establish(RawPeer& peer, Worker& worker) {
    Connect(peer, worker);
    ASSERT_TRUE(Until([&] { return peer.established; }));
  }

  // Handoff of all shards, with everybody turned meanwhile.
  absl::Status Handoff(const Worker& to) {
    auto result = std::async(std::launch::async, [&] { return keeper.Handoff(to.id()); });
    EXPECT_TRUE(Until(
        [&] { return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
    return result.get();
  }

  // Accepts every request with `receives` receives posted.
  static void AcceptWith(Shard& shard, const Completion& completion, int receives) {
    if (completion.kind != Completion::Kind::kConnectRequest) return;
    Connection& connection = *completion.connection;
    for (int i = 0; i < receives; ++i) {
      const Buffer slot = ReceiveSlot(connection, connection.next_receive());
      EXPECT_EQ(shard.Receive(connection, {&slot, 1}), absl::OkStatus());
    }
    EXPECT_EQ(shard.Accept(connection), absl::OkStatus());
  }
  absl::Status SendText(Shard& shard, Connection& connection, std::string_view text,
                        uint64_t tag = 0) {
    const Buffer slot =
        SendSlot(connection, connection.next_send(), static_cast<uint32_t>(text.size()));
    std::copy(text.begin(), text.end(), workers[0]->buffers().begin() + slot.offset);
    SendWork work;
    work.buffers = {&slot, 1};
    work.tag = tag;
    return shard.Send(connection, work);
  }
  std::string TextOf(const Completion& completion) const {
    const Buffer slot = ReceiveSlot(*completion.connection, completion.sequence);
    return std::string(reinterpret_cast<const char*>(workers[0]->buffers().data()) + slot.offset,
                       completion.byte_len);
  }
  // Answers every message with itself, and posts its receive again.
  void Echo(Shard& shard, const Completion& completion) {
    AcceptWith(shard, completion, 8);
    if (completion.kind != Completion::Kind::kReceive ||
        completion.status != verbs::CompletionStatus::kSuccess) {
      return;
    }
    Connection& connection = *completion.connection;
    EXPECT_EQ(SendText(shard, connection, TextOf(completion)), absl::OkStatus());
    const Buffer slot = ReceiveSlot(connection, connection.next_receive());
    EXPECT_EQ(shard.Receive(connection, {&slot, 1}), absl::OkStatus());
  }
  void EchoWith(ScriptedService& service) {
    service.on_completion = [this](Shard& shard, const Completion& completion) {
      Echo(shard, completion);
    };
  }

  const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
  keeper::testing::KeeperThread keeper;
  ServiceKind kind;

 private:
  std::deque<ScriptedService> services_;

 protected:
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<RawPeer*> peers;
  absl::Status poll_status;
};

}  // namespace baton::testing

#endif  // TESTS_WORKER_WORKER_FIXTURE_H_
