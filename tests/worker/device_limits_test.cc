// What the service's device does not do is refused at the worker's call, with the reason, and by
// the driver if a worker commits it all the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>

#include "lib/arena/arena.h"
#include "lib/driver/device_objects.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/local_driver.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/lib/verbs/forwarding_device.h"
#include "worker/stream.h"
#include "worker/worker_impl.h"

namespace baton {
namespace {

using driver::CommitOutcome;
using driver::testing::RawPeer;
using ::testing::HasSubstr;

constexpr uint64_t kMaxMessage = 4096;

class LimitedDevice final : public verbs::testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  verbs::DeviceLimits limits() const override {
    verbs::DeviceLimits limits = ForwardingDevice::limits();
    limits.atomics = limits.send_with_invalidate = false;
    limits.max_message_bytes = kMaxMessage;
    return limits;
  }
};

class Observer final : public native::LocalObserver {
 public:
  void OnConnectionState(uint32_t, std::string_view) override {}
  void OnRefusedConnection(std::string_view) override {}
};

class Acceptor final : public Service {
 public:
  void OnCompletion(Shard& shard, const Completion& completion) override {
    if (completion.kind == Completion::Kind::kConnectRequest) {
      EXPECT_EQ(shard.Accept(*completion.connection), absl::OkStatus());
    }
    if (completion.kind == Completion::Kind::kEstablished) connection = completion.connection;
  }
  Connection* connection = nullptr;
};

// A driver, a worker and a peer with a connection between them, all turned by the test's thread.
class DeviceLimitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    local_ = native::LocalDriver::Create(arena_.get(), &device_, &observer_).value();
    driver_ = &local_->driver();
    driver::Ownership(arena_.get(), 0).GiveTo(kSlot, kWorkerId);
    WorkerOptions options;
    options.control_stream = false;
    worker_ = std::make_unique<WorkerImpl>(options, &service_);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, keeper_), 0);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, wake_), 0);
    worker_->Connected(FileDescriptor(keeper_[0]));
    ASSERT_EQ(worker_->Start(arena_, FileDescriptor(wake_[0]), kWorkerId, kSlot), absl::OkStatus());
    peer_.Connect(driver::ListenOnce(&device_, local_->objects(), {fabric_.host, 0}).value().port);
    ASSERT_TRUE(Until([&] { return service_.connection != nullptr && peer_.established; }));
  }
  void TearDown() override {
    worker_->Die();  // there is nobody to say farewell to
    worker_.reset();
    close(keeper_[1]);
    close(wake_[1]);
  }

  bool Until(const std::function<bool()>& done) {
    const auto turn = [&] {
      local_->TurnManager();
      uint32_t shard;
      while (local_->HandleNotice(&shard)) {
      }
      outcome_ = driver_->ApplyNext(0, &error_);
      ASSERT_TRUE(driver_->PollCompletions(0).ok());
      ASSERT_TRUE(worker_->Poll().ok());
      peer_.Turn();
    };
    return driver::testing::Pump(turn, done);
  }
  Shard& shard() { return service_.connection->shard(); }
  absl::Status Send(verbs::Opcode opcode, uint32_t length) {
    const Buffer buffer = {0, length};
    SendWork work;
    work.opcode = opcode;
    work.buffers = {&buffer, 1};
    work.remote_address = peer_.address();
    work.rkey = peer_.rkey();
    return shard().Send(*service_.connection, work);
  }

  static constexpr uint64_t kWorkerId = 7;
  static constexpr uint32_t kSlot = 1;

  const verbs::testing::Fabric fabric_ = verbs::testing::FabricUnderTest();
  LimitedDevice device_{verbs::testing::OpenDevice(fabric_).value()};
  std::shared_ptr<arena::Arena> arena_ = std::make_shared<arena::Arena>(
      arena::Arena::Create(driver::testing::TestShape(), "kv").value());
  Observer observer_;
  std::unique_ptr<native::LocalDriver> local_;
  driver::QueueDriver* driver_ = nullptr;  // that of `local_`
  Acceptor service_;
  std::unique_ptr<WorkerImpl> worker_;
  RawPeer peer_;
  int keeper_[2], wake_[2];
  CommitOutcome outcome_ = CommitOutcome::kIdle;
  absl::Status error_;
};

TEST_F(DeviceLimitsTest, shouldRefuseWhatTheDeviceDoesNotDo) {
  for (const verbs::Opcode opcode : {verbs::Opcode::kCompareAndSwap, verbs::Opcode::kFetchAndAdd,
                                     verbs::Opcode::kSendWithInvalidate}) {
    const absl::Status status = Send(opcode, 8);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("device has no " + std::string(verbs::OpcodeName(opcode))));
  }
  const absl::Status status = Send(verbs::Opcode::kWrite, kMaxMessage + 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("4097 bytes in one message"));
  EXPECT_EQ(driver::ReserveGrant(*arena_, device_, local_->objects(), 0, 8,
                                 verbs::kLocalWrite | verbs::kRemoteAtomic)
                .status()
                .code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(service_.connection->next_send(), 0u);  // nothing of it was staged

  EXPECT_EQ(Send(verbs::Opcode::kWrite, kMaxMessage), absl::OkStatus());
  EXPECT_EQ(Send(verbs::Opcode::kRead, 8), absl::OkStatus());
  EXPECT_EQ(shard().Commit(), absl::OkStatus());
  EXPECT_TRUE(Until([&] { return arena_->connection(0).send.completed == 2; }));
  EXPECT_EQ(arena_->connection(0).state,
            static_cast<uint32_t>(arena::ConnectionState::kEstablished));
}

TEST_F(DeviceLimitsTest, shouldBoundTheMessagesOfAStream) {
  const stream::Greeting greeting = {
      stream::kGreetingMagic, stream::kStreamVersion, 8,
      16 * kMaxMessage,       peer_.rkey(),           peer_.address()};
  const stream::StreamState state = stream::StreamEnd::Begin(greeting, stream::kMinRingBytes,
                                                             stream::kMinWindow, stream::kMinWindow)
                                        .state();
  Stream end =
      Stream::Load(*service_.connection, {reinterpret_cast<const uint8_t*>(&state), sizeof(state)})
          .value();
  EXPECT_EQ(end.peer_ring_bytes(), 16 * kMaxMessage);
  EXPECT_EQ(end.longest_message(), kMaxMessage);
  EXPECT_EQ(end.RoomFor(kMaxMessage + 1, 1), 0u);
  EXPECT_EQ(end.RoomFor(kMaxMessage, 1), 1u);
  EXPECT_EQ(end.AwaitRoom(kMaxMessage + 1).status().code(), absl::StatusCode::kInvalidArgument);
  Buffer message = {0, kMaxMessage + 1};
  const absl::Status status = end.Send({&message, 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("4097 bytes in one message, the service's device sends at most 4096"));
  EXPECT_EQ(service_.connection->next_send(), 0u);
  message.length = kMaxMessage;
  EXPECT_EQ(end.Send({&message, 1}), absl::OkStatus());
  shard().Abandon();
}

// The library of a worker that was not told lets it pass, as an older or a hostile one does.
TEST_F(DeviceLimitsTest, shouldFenceWhoCommitsItAllTheSame) {
  arena_->header().missing_opcodes = 0;
  arena_->header().max_message_bytes = 0;
  EXPECT_EQ(Send(verbs::Opcode::kFetchAndAdd, 8), absl::OkStatus());
  EXPECT_EQ(shard().Commit(), absl::OkStatus());
  EXPECT_TRUE(Until([&] { return outcome_ == CommitOutcome::kInvalid; }));
  EXPECT_THAT(std::string(error_.message()), HasSubstr("the device has no FETCH_AND_ADD"));
  EXPECT_EQ(arena_->connection(0).send.committed, 0u);
}

TEST_F(DeviceLimitsTest, shouldFenceWhoCommitsALongerMessage) {
  arena_->header().max_message_bytes = 0;
  EXPECT_EQ(Send(verbs::Opcode::kWrite, kMaxMessage + 1), absl::OkStatus());
  EXPECT_EQ(shard().Commit(), absl::OkStatus());
  EXPECT_TRUE(Until([&] { return outcome_ == CommitOutcome::kInvalid; }));
  EXPECT_THAT(std::string(error_.message()), HasSubstr("at most 4096"));
}

}  // namespace
}  // namespace baton
