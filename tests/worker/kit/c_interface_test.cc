// The C interface, and the C++ classes on top of it, with a keeper in this process. Linked with
// each kind of worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <baton/baton.hpp>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/supervisor/keeper/keeper_thread.h"
#include "tests/worker/kind.h"
#include "worker/kit/status_code.h"

namespace baton {
namespace {

using driver::testing::RawPeer;
using ::testing::HasSubstr;

constexpr uint32_t kSlotBytes = 1024;

// Answers each message with the number of messages that its connection has sent so far.
class Counter final : public Service {
 public:
  bool OnAdopt(Shard shard) override {
    ++adoptions;
    shard.ForEachConnection([this](Connection one) { adopted.push_back(one.index()); });
    return adopts;
  }
  void OnCompletion(Shard shard, const Completion& done) override {
    const Connection connection = done.connection;
    kinds.push_back(done.kind);
    if (done.kind == BATON_CONNECT_REQUEST) {
      asked.assign(reinterpret_cast<const char*>(connection.private_data().data),
                   connection.private_data().size);
      EXPECT_TRUE(shard.Receive(connection, Slot(connection, 0, kSlotBytes)).ok());
      EXPECT_TRUE(shard.Accept(connection, "welcome").ok());
    } else if (done.kind == BATON_RECEIVE && done.status == BATON_SUCCESS) {
      Answer(shard, connection);
    }
  }
  void OnRelease(Shard) override { ++releases; }
  void OnShutdown(const char* reason) override { shutdown = reason; }

  uint8_t* buffers = nullptr;
  bool adopts = true;
  std::vector<uint32_t> adopted;  // connections
  std::vector<baton_kind> kinds;
  std::string asked, shutdown;
  int adoptions = 0;
  int releases = 0;

 private:
  static Buffer Slot(Connection connection, uint32_t slot, uint32_t length) {
    return {(uint64_t{connection.index()} * 2 + slot) * kSlotBytes, length};
  }
  void Answer(Shard shard, Connection connection) {
    uint32_t count = 0;
    const v0::View state = connection.state();
    if (state.size == sizeof(count)) std::memcpy(&count, state.data, sizeof(count));
    ++count;
    EXPECT_TRUE(shard.SetState(connection, &count, sizeof(count), /*version=*/7).ok());
    const std::string text = std::to_string(count);
    SendWork reply;
    reply.buffers = Slot(connection, 1, static_cast<uint32_t>(text.size()));
    std::memcpy(buffers + reply.buffers.data()->offset, text.data(), text.size());
    EXPECT_TRUE(shard.Send(connection, reply).ok());
    EXPECT_TRUE(shard.Receive(connection, Slot(connection, 0, kSlotBytes)).ok());
  }
};

class KitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(keeper_.Start([](v1::ServiceConfig* service) { service->set_shards(1); },
                            testing::ServiceKind::EngineOptions()),
              absl::OkStatus());
    kind_.Begin(keeper_);
  }

  WorkerOptions Options() const {
    WorkerOptions options;
    options.socket = keeper_.socket();
    options.service = "kv";
    options.version = "kit";
    options.control_stream = false;
    return options;
  }
  void Attach(Counter& counter, Worker* worker) {
    const Status attached = worker->Attach(Options(), &counter);
    ASSERT_TRUE(attached.ok()) << attached.message();
    size_t length = 0;
    counter.buffers = worker->buffers(&length);
    EXPECT_GT(length, 0u);
    ASSERT_TRUE(worker->Ready().ok());
  }
  static bool Until(const std::vector<Worker*>& workers, RawPeer& peer,
                    const std::function<bool()>& done) {
    return driver::testing::Pump(
        [&] {
          for (Worker* const worker : workers) EXPECT_TRUE(worker->Poll().ok());
          peer.Turn();
        },
        done);
  }

  keeper::testing::KeeperThread keeper_;
  testing::ServiceKind kind_;
};

TEST_F(KitTest, shouldServeAndHandStateToTheNextWorker) {
  Counter first, second;
  Worker former, next;
  RawPeer peer;
  peer.Receive();
  peer.Receive();
  Attach(first, &former);
  uint16_t port = 0;
  ASSERT_TRUE(former.Listen(verbs::testing::FabricUnderTest().host.c_str(), 0, &port).ok());
  peer.Connect(port, "hello");
  ASSERT_TRUE(Until({&former}, peer, [&] { return peer.established; }));
  EXPECT_EQ(first.asked.substr(0, 5), "hello");
  EXPECT_THAT(peer.private_data, HasSubstr("welcome"));
  peer.Send("message");
  ASSERT_TRUE(Until({&former}, peer, [&] { return peer.received.size() == 1; }));
  Attach(second, &next);
  former.Detach();
  EXPECT_EQ(first.releases, 1);
  ASSERT_TRUE(Until({&next}, peer, [&] { return !second.adopted.empty(); }));
  peer.Send("message");
  ASSERT_TRUE(Until({&next}, peer, [&] { return peer.received.size() == 2; }));
  EXPECT_THAT(peer.received, ::testing::ElementsAre("1", "2"));
}

TEST(KitTakeOverTest, shouldMoveAShardWhereThePolicyAllowsIt) {
  keeper::testing::KeeperThread keeper;
  testing::ServiceKind kind;
  ASSERT_EQ(keeper.Start([](v1::ServiceConfig* service) { service->set_shards(2); },
                         testing::ServiceKind::EngineOptions()),
            absl::OkStatus());
  kind.Begin(keeper);
  WorkerOptions options;
  options.socket = keeper.socket();
  options.service = "kv";
  options.control_stream = false;
  Counter first, second;
  Worker former, next;
  ASSERT_TRUE(former.Attach(options, &first).ok());
  ASSERT_TRUE(former.Ready().ok());
  const auto until = [&](const std::function<bool()>& done) {
    return driver::testing::Pump(
        [&] {
          for (Worker* const worker : {&former, &next}) {
            if (worker->handle() == nullptr) continue;
            EXPECT_TRUE(worker->Poll().ok());
          }
        },
        done);
  };
  ASSERT_TRUE(until([&] { return first.adoptions == 2; }));
  ASSERT_TRUE(next.Attach(options, &second).ok());
  const uint32_t shard = 1, unknown = 9;
  EXPECT_EQ(next.TakeOver(&shard, 1).code(), BATON_FAILED_PRECONDITION);  // not ready
  ASSERT_TRUE(next.Ready().ok());
  EXPECT_EQ(next.TakeOver(&shard, 1).code(), BATON_PERMISSION_DENIED);
  EXPECT_THAT(baton_error(), HasSubstr("workers_may_take_over"));
  EXPECT_EQ(next.TakeOver(&unknown, 1).code(), BATON_INVALID_ARGUMENT);
  EXPECT_EQ(baton_take_over(next.handle(), nullptr, 1), BATON_INVALID_ARGUMENT);

  internal::ManagementRequest request;
  request.mutable_set_policy()->mutable_policy()->set_workers_may_take_over(true);
  ASSERT_TRUE(keeper.Ask(request).ok());
  const Status begun = next.TakeOver(&shard, 1);
  ASSERT_TRUE(begun.ok()) << begun.message();
  ASSERT_TRUE(until([&] { return second.adoptions == 1; }));
  EXPECT_EQ(first.releases, 1);
  // Its process has all shards already.
  EXPECT_TRUE(next.TakeOver().ok());
}

// The keeper refuses it: the policy does not allow that workers take over. Native workers do not
// ask.
TEST_F(KitTest, shouldTakeOverWhenItRunsAndTheOptionsSaySo) {
  harness::ChildOptions other;  // of a process of its own, from which there is something to take
  const auto program = harness::Binaries().Find("tests/supervisor/keeper/upgrade_worker");
  ASSERT_TRUE(program.ok()) << program.status();
  other.program = *program;
  other.arguments = {"--socket", keeper_.socket()};
  const auto owner = harness::ChildProcess::Start(other);
  ASSERT_TRUE(owner.ok()) << owner.status();
  ASSERT_EQ(harness::WaitUntil("an owner",
                               [&] { return keeper_.Describe().shards(0).owner_worker_id() != 0; }),
            absl::OkStatus());
  for (const bool take_over : {false, true}) {
    Counter counter;
    Worker worker;
    WorkerOptions options = Options();
    options.take_over = take_over;
    ASSERT_TRUE(worker.Attach(options, &counter).ok());
    worker.Stop();  // Run returns as soon as it has asked
    EXPECT_EQ(worker.Run().code(), take_over ? BATON_PERMISSION_DENIED : BATON_OK);
  }
}

TEST_F(KitTest, shouldTellItsCapacityAndGrantMemory) {
  Counter counter;
  Worker worker;
  Attach(counter, &worker);
  const baton_capacity capacity = worker.capacity();
  EXPECT_EQ(capacity.shards, 1u);
  EXPECT_GT(capacity.connections, 0u);
  baton_remote_grant grant = {};
  ASSERT_TRUE(worker.GrantRemoteAccess(0, 4096, BATON_REMOTE_READ, &grant).ok());
  EXPECT_NE(grant.remote_address, 0u);
  EXPECT_TRUE(worker.RevokeGrant(grant.id).ok());
  const Status again = worker.RevokeGrant(grant.id);
  EXPECT_EQ(again.code(), BATON_NOT_FOUND);
  EXPECT_FALSE(again.message().empty());
  worker.ReportHealth(true, nullptr);
  EXPECT_NE(worker.id(), 0u);
}

TEST_F(KitTest, shouldRefuseStructuresWithoutASize) {
  Counter counter;
  Worker worker;
  Attach(counter, &worker);
  baton_remote_grant grant = {};
  for (baton_remote_grant* const result : {&grant, static_cast<baton_remote_grant*>(nullptr)}) {
    EXPECT_EQ(baton_grant(worker.handle(), 0, 4096, BATON_REMOTE_READ, result),
              BATON_INVALID_ARGUMENT);
    EXPECT_THAT(baton_error(), HasSubstr("grant"));
  }
  const baton_send_work work = {};
  EXPECT_EQ(baton_send(nullptr, nullptr, &work), BATON_INVALID_ARGUMENT);
  EXPECT_THAT(baton_error(), HasSubstr("work: its size"));
}

TEST_F(KitTest, shouldAnswerCallbacksThatComeWhileItDetaches) {
  struct Leaver final : Service {
    bool OnAdopt(Shard) override {
      owns = true;
      return true;
    }
    void OnCompletion(Shard, const Completion&) override {}
    void OnRelease(Shard) override { id = worker.id(); }
    bool owns = false;
    uint64_t id = 0;
    Worker worker;  // detached first
  } leaver;
  ASSERT_TRUE(leaver.worker.Attach(Options(), &leaver).ok());
  ASSERT_TRUE(leaver.worker.Ready().ok());
  RawPeer peer;
  ASSERT_TRUE(Until({&leaver.worker}, peer, [&] { return leaver.owns; }));
  const uint64_t id = leaver.worker.id();
  leaver.worker.Detach();
  EXPECT_EQ(leaver.id, id);
}

TEST_F(KitTest, shouldGiveBackAShardThatTheApplicationDoesNotAdopt) {
  Counter counter;
  counter.adopts = false;
  Worker worker;
  RawPeer peer;
  Attach(counter, &worker);
  ASSERT_TRUE(Until({&worker}, peer, [&] {
    return keeper_.Describe().shards(0).epoch() > 0 &&
           keeper_.Describe().shards(0).owner_worker_id() == 0;
  }));
}

// Native workers need none.
TEST_F(KitTest, shouldSayThatThereIsNoSuchSocket) {
  Counter counter;
  Worker worker;
  WorkerOptions options = Options();
  options.socket += ".elsewhere";
  const Status status = worker.Attach(options, &counter);
  EXPECT_EQ(status.code(), BATON_NOT_FOUND);
  EXPECT_THAT(status.message(), HasSubstr(options.socket));
}

TEST_F(KitTest, shouldSayThatItsSocketIsAnotherServices) {
  Counter counter;
  Worker worker;
  WorkerOptions options = Options();
  options.service = "another";
  const Status status = worker.Attach(options, &counter);
  EXPECT_EQ(status.code(), BATON_FAILED_PRECONDITION);
  EXPECT_THAT(status.message(), HasSubstr("another"));
}

void Ignore(void*, baton_shard*, const baton_completion*) {}

TEST_F(KitTest, shouldRefuseWhatIsMissing) {
  baton_worker_options options = BATON_WORKER_OPTIONS_INIT;
  baton_service service = {};
  baton_worker* worker = nullptr;
  EXPECT_EQ(baton_attach(nullptr, &service, &worker), BATON_INVALID_ARGUMENT);
  EXPECT_EQ(baton_attach(&options, &service, &worker), BATON_INVALID_ARGUMENT);
  EXPECT_THAT(baton_error(), HasSubstr("service"));
  service.size = sizeof(service);
  EXPECT_EQ(baton_attach(&options, &service, &worker), BATON_INVALID_ARGUMENT);
  EXPECT_THAT(baton_error(), HasSubstr("on_completion"));
  service.on_completion = Ignore;
  options.commit_mode = static_cast<baton_commit_mode>(3);
  EXPECT_EQ(baton_attach(&options, &service, &worker), BATON_INVALID_ARGUMENT);
  EXPECT_THAT(baton_error(), HasSubstr("commit_mode"));
  EXPECT_EQ(worker, nullptr);
}

// Programs of the first release wish nothing by the padding at the end of their options.
static_assert(offsetof(baton_worker_options, take_over) == 72);

// A program that was built with an earlier header, whose structures end earlier, and with a later
// one, which has members that this library does not know.
TEST_F(KitTest, shouldTakeStructuresOfOtherReleases) {
  baton_service service = {};
  service.size = offsetof(baton_service, on_release);
  service.on_completion = Ignore;
  service.on_release = reinterpret_cast<decltype(service.on_release)>(1);  // not to be called
  struct {
    baton_worker_options known = BATON_WORKER_OPTIONS_INIT;
    uint64_t unknown = ~uint64_t{0};
  } options;
  options.known.size = sizeof(options);
  const std::string socket = keeper_.socket();
  options.known.socket = socket.c_str();
  options.known.service = "kv";
  options.known.no_control_stream = true;
  baton_worker* worker = nullptr;
  ASSERT_EQ(baton_attach(&options.known, &service, &worker), BATON_OK) << baton_error();
  struct {
    baton_capacity known = {};
    uint64_t beyond = 77;
  } capacity;
  capacity.known.size = offsetof(baton_capacity, send_queue_depth);
  capacity.known.send_queue_depth = 99;
  baton_get_capacity(worker, &capacity.known);
  EXPECT_EQ(capacity.known.shards, 1u);
  EXPECT_EQ(capacity.known.send_queue_depth, 99u);
  capacity.known.size = sizeof(capacity);
  baton_get_capacity(worker, &capacity.known);
  EXPECT_NE(capacity.known.send_queue_depth, 99u);
  EXPECT_EQ(capacity.beyond, 77u);
  baton_detach(worker);
  baton_detach(nullptr);
}

TEST_F(KitTest, shouldCallBackWhenADescriptorIsReadable) {
  Counter counter;
  Worker worker;
  RawPeer peer;
  Attach(counter, &worker);
  FileDescriptor event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  int calls = 0;
  const auto take = [&] {
    uint64_t count = 0;
    EXPECT_EQ(read(event.get(), &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
    ++calls;
  };
  ASSERT_TRUE(worker.Watch(event.get(), take).ok());
  EXPECT_EQ(worker.Watch(event.get(), take).code(), BATON_ALREADY_EXISTS);
  const uint64_t one = 1;
  ASSERT_EQ(write(event.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  ASSERT_TRUE(Until({&worker}, peer, [&] { return calls == 1; }));
  worker.Unwatch(event.get());
  worker.Unwatch(event.get());

  // A callback ends its own watch, and goes on.
  ASSERT_TRUE(worker
                  .Watch(event.get(),
                         [&, kept = std::string(64, 'x')] {
                           worker.Unwatch(event.get());
                           take();
                           EXPECT_EQ(kept, std::string(64, 'x'));
                         })
                  .ok());
  ASSERT_EQ(write(event.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  ASSERT_TRUE(Until({&worker}, peer, [&] { return calls == 2; }));
  EXPECT_TRUE(worker.Watch(event.get(), take).ok());
  worker.Detach();
}

TEST_F(KitTest, shouldRefuseToWatchWhatCannotBeWatched) {
  Counter counter;
  Worker worker;
  Attach(counter, &worker);
  const Status closed = worker.Watch(-1, [] {});
  EXPECT_FALSE(closed.ok());
  EXPECT_FALSE(closed.message().empty());
  FileDescriptor event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  EXPECT_EQ(baton_watch(worker.handle(), event.get(), nullptr, nullptr), BATON_INVALID_ARGUMENT);
  EXPECT_THAT(baton_error(), HasSubstr("callback"));
  EXPECT_EQ(worker.Watch(event.get(), nullptr).code(), BATON_INVALID_ARGUMENT);
}

TEST(KitCodeTest, shouldReportOnlyCodesThatTheHeaderHas) {
  EXPECT_EQ(CodeOf(absl::StatusCode::kOk), BATON_OK);
  EXPECT_EQ(CodeOf(absl::StatusCode::kUnavailable), BATON_UNAVAILABLE);
  EXPECT_EQ(CodeOf(absl::StatusCode::kOutOfRange), BATON_OUT_OF_RANGE);
  EXPECT_EQ(CodeOf(absl::StatusCode::kDataLoss), BATON_DATA_LOSS);
  for (const absl::StatusCode code :
       {absl::StatusCode::kUnknown, absl::StatusCode::kCancelled,
        absl::StatusCode::kUnauthenticated, static_cast<absl::StatusCode>(17)}) {
    EXPECT_EQ(CodeOf(code), BATON_UNKNOWN) << static_cast<int>(code);
  }
}

TEST_F(KitTest, shouldRefuseMoreBuffersThanARequestHas) {
  struct Asker final : Service {
    void OnCompletion(Shard shard, const Completion& done) override {
      if (done.kind != BATON_CONNECT_REQUEST) return;
      const Buffer one = {0, 8};
      status = shard.Receive(done.connection, {one, one, one, one, one});
      EXPECT_TRUE(shard.Reject(done.connection, "no").ok());
    }
    Status status;
  } asker;
  Worker worker;
  ASSERT_TRUE(worker.Attach(Options(), &asker).ok());
  ASSERT_TRUE(worker.Ready().ok());
  uint16_t port = 0;
  ASSERT_TRUE(worker.Listen(verbs::testing::FabricUnderTest().host.c_str(), 0, &port).ok());
  RawPeer peer;
  peer.Connect(port);
  ASSERT_TRUE(Until({&worker}, peer, [&] { return peer.rejected; }));
  EXPECT_EQ(asker.status.code(), BATON_INVALID_ARGUMENT);
  EXPECT_THAT(asker.status.message(), HasSubstr("buffer_count"));
}

}  // namespace
}  // namespace baton
