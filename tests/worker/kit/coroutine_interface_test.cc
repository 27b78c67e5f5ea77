// Coroutines on the C++ interface of the kit, with a keeper in this process. Linked with each kind
// of worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <baton/coroutine.hpp>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/lib/driver/raw_peer.h"
#include "tests/supervisor/keeper/keeper_thread.h"
#include "tests/worker/kind.h"

namespace baton {
namespace {

using driver::testing::RawPeer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kSlotBytes = 1024;

// Adds up the numbers that a peer sends, and answers each with the total, which is the state.
class Adder final : public CoroutineService {
 public:
  explicit Adder(uint32_t frame_bytes = 4096)
      : CoroutineService({.coroutines = 2,
                          .frame_bytes = frame_bytes,
                          .commit_mode = BATON_COMMIT_EACH_COMPLETION}) {}

  uint8_t* buffers = nullptr;
  int starts = 0;
  int answered = 0;  // requests whose answers have been sent and acknowledged
  std::vector<std::string> errors;

 private:
  static Buffer Slot(Connection connection, uint32_t slot, uint32_t length) {
    return {(uint64_t{connection.index()} * 2 + slot) * kSlotBytes, length};
  }

  CoTask Serve(CoConnection& connection) override {
    ++starts;
    const Connection one = connection.connection();
    uint64_t total = 0;
    const v0::View state = connection.state();
    if (state.size == sizeof(total)) std::memcpy(&total, state.data, sizeof(total));
    for (uint64_t tag = 1;; ++tag) {
      const Completion message = co_await connection.Receive();
      const Buffer request = Slot(one, 0, message.byte_len);
      const std::string text(reinterpret_cast<const char*>(buffers + request.offset),
                             request.length);
      total += std::strtoull(text.c_str(), nullptr, 10);
      EXPECT_TRUE(connection.shard().SetState(one, &total, sizeof(total), /*version=*/1).ok());
      if (text == "throw") throw std::runtime_error("as the peer asked");
      if (text == "error") co_return Status(BATON_DATA_LOSS, "as the peer asked");
      if (text == "bye") co_return Status();
      Answer(connection, std::to_string(total), tag);
      const Completion sent = co_await connection.Sent(tag);
      EXPECT_EQ(sent.kind, BATON_SEND);
      EXPECT_TRUE(connection.shard().Receive(one, Slot(one, 0, kSlotBytes)).ok());
      ++answered;
    }
  }
  void Answer(CoConnection& connection, const std::string& text, uint64_t tag) {
    SendWork reply;
    reply.tag = tag;
    reply.buffers = Slot(connection.connection(), 1, static_cast<uint32_t>(text.size()));
    std::memcpy(buffers + reply.buffers.data()->offset, text.data(), text.size());
    EXPECT_TRUE(connection.shard().Send(connection.connection(), reply).ok());
  }

  Status OnConnectRequest(Shard shard, Connection connection) override {
    Status posted = shard.Receive(connection, Slot(connection, 0, kSlotBytes));
    return posted.ok() ? shard.Accept(connection) : posted;
  }
  void OnFailure(Connection, const Status& error) override { errors.push_back(error.message()); }
};

class KitCoroutineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(keeper_.Start([](v1::ServiceConfig* service) { service->set_shards(1); },
                            testing::ServiceKind::EngineOptions()),
              absl::OkStatus());
    kind_.Begin(keeper_);
  }

  void Attach(Adder& adder, Worker* worker) {
    WorkerOptions options;
    options.socket = keeper_.socket();
    options.service = "kv";
    options.control_stream = false;
    options.commit_mode = BATON_COMMIT_EACH_COMPLETION;
    const Status attached = worker->Attach(options, &adder);
    ASSERT_TRUE(attached.ok()) << attached.message();
    size_t length = 0;
    adder.buffers = worker->buffers(&length);
    ASSERT_TRUE(worker->Ready().ok());
  }
  void Connect(Worker& worker, RawPeer& peer) {
    for (int i = 0; i < 8; ++i) peer.Receive();
    uint16_t port = 0;
    ASSERT_TRUE(worker.Listen(verbs::testing::FabricUnderTest().host.c_str(), 0, &port).ok());
    peer.Connect(port);
    ASSERT_TRUE(Until(worker, peer, [&] { return peer.established; }));
  }
  static bool Until(Worker& worker, RawPeer& peer, const std::function<bool()>& done) {
    return driver::testing::Pump(
        [&] {
          EXPECT_TRUE(worker.Poll().ok());
          peer.Turn();
        },
        done);
  }
  void Ask(Worker& worker, RawPeer& peer, const std::string& text) {
    const size_t before = peer.received.size();
    peer.Send(text);
    ASSERT_TRUE(Until(worker, peer, [&] { return peer.received.size() > before; }));
  }

  keeper::testing::KeeperThread keeper_;
  testing::ServiceKind kind_;
};

TEST_F(KitCoroutineTest, shouldGoOnFromTheStateThatAnotherWorkerCommitted) {
  Adder first, second;
  Worker former, next;
  RawPeer peer;
  Attach(first, &former);
  ASSERT_NO_FATAL_FAILURE(Connect(former, peer));
  for (const char* number : {"5", "7"}) ASSERT_NO_FATAL_FAILURE(Ask(former, peer, number));
  EXPECT_EQ(first.starts, 1);
  EXPECT_EQ(first.running(), 1u);
  // A successor does not come back to a coroutine that waits for the completion of its answer.
  ASSERT_TRUE(Until(former, peer, [&] { return first.answered == 2; }));
  former.Detach();
  EXPECT_EQ(first.running(), 0u);
  Attach(second, &next);
  peer.Send("30");
  ASSERT_TRUE(Until(next, peer, [&] { return peer.received.size() == 3; }));
  EXPECT_THAT(peer.received, ElementsAre("5", "12", "42"));
  EXPECT_EQ(second.starts, 1);
  EXPECT_THAT(second.errors, IsEmpty());
}

TEST_F(KitCoroutineTest, shouldDisconnectWhenItEnds) {
  Adder adder;
  Worker worker;
  Attach(adder, &worker);
  for (const char* word : {"bye", "error", "throw"}) {
    RawPeer peer;
    ASSERT_NO_FATAL_FAILURE(Connect(worker, peer));
    ASSERT_NO_FATAL_FAILURE(Ask(worker, peer, "1"));
    peer.Send(word);
    EXPECT_TRUE(Until(worker, peer, [&] { return peer.disconnected && adder.running() == 0; }));
  }
  EXPECT_THAT(adder.errors, ElementsAre("as the peer asked",
                                        HasSubstr("the coroutine has thrown: as the peer asked")));
}

TEST_F(KitCoroutineTest, shouldSayHowLargeAFrameItNeeds) {
  Adder adder(/*frame_bytes=*/16);
  Worker worker;
  RawPeer peer;
  Attach(adder, &worker);
  ASSERT_NO_FATAL_FAILURE(Connect(worker, peer));
  EXPECT_TRUE(Until(worker, peer, [&] { return peer.disconnected && adder.running() == 0; }));
  EXPECT_THAT(adder.errors, ElementsAre(HasSubstr("16 are there: raise "
                                                  "CoroutineOptions::frame_bytes")));
}

}  // namespace
}  // namespace baton
