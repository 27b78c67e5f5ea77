// A native service's `baton-driver` and the drivers of its shards, in one process.
#ifndef TESTS_LIB_NATIVE_MANAGER_FIXTURE_H_
#define TESTS_LIB_NATIVE_MANAGER_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/connection_manager.h"
#include "lib/native/mailbox.h"
#include "lib/native/native_device.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::native::testing {

inline constexpr uint32_t kPool = 3;

// A queue pair of `baton-driver`, as a shard's driver has inherited it.
class InheritedQueuePair final : public verbs::QueuePair {
 public:
  InheritedQueuePair(verbs::QueuePair* keepers, uint32_t* resets)
      : keepers_(keepers), resets_(resets) {}
  uint32_t number() const override { return keepers_->number(); }
  verbs::QueuePairState state() const override { return keepers_->state(); }
  uint32_t max_inline_data() const override { return keepers_->max_inline_data(); }
  absl::Status PostSend(absl::Span<const verbs::SendRequest> requests, size_t* posted) override {
    return keepers_->PostSend(requests, posted);
  }
  absl::Status PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                           size_t* posted) override {
    return keepers_->PostReceive(requests, posted);
  }
  absl::StatusOr<std::optional<uint64_t>> LastQueued(bool receive) const override {
    return keepers_->LastQueued(receive);
  }
  absl::Status SetError() override { return keepers_->SetError(); }
  absl::Status SetReset() override {
    ++*resets_;
    return keepers_->SetReset();
  }
  absl::Status SetInit() override { return keepers_->SetInit(); }
  bool holds_no_receive() const override { return keepers_->holds_no_receive(); }
  void NoteConnected(bool reads) override { keepers_->NoteConnected(reads); }

 private:
  verbs::QueuePair* const keepers_;
  uint32_t* const resets_;
};

// A driver of some shards, as in a process of its own.
class Driver final : public driver::DriverObserver {
 public:
  Driver(arena::Arena* arena, verbs::Device* device, const ConnectionManager& manager)
      : objects(std::make_shared<driver::DeviceObjects>()) {
    // It would have inherited the same queues and regions.
    objects->connections.resize(arena->shape().connections);
    Borrow(manager.objects().get(), objects.get());
    pool = QueuePairPool(manager.pool().shards());
    for (uint32_t shard = 0; shard < pool.shards(); ++shard) {
      for (uint32_t place = 0; place < manager.pool().places(shard); ++place) {
        pool.Add(shard,
                 std::make_unique<InheritedQueuePair>(manager.pool().at(shard, place), &resets));
      }
    }
    native.emplace(
        NativeDevice::Context{.arena = arena,
                              .device = device,
                              .pool = &pool,
                              .objects = objects.get(),
                              .wake_driver = [] {},
                              .tell = [this](std::string_view what) { told.emplace_back(what); }});
    driver = driver::QueueDriver::Create(arena, &*native, this, objects);
  }
  ~Driver() override {
    native.reset();  // as if it were killed: nothing of it gives orders any more
    driver.reset();
    for (auto& queue : objects->completion_queues) (void)queue.release();
    for (auto& queue : objects->shared_receive_queues) (void)queue.release();
    (void)objects->buffers.release();
    (void)objects->spares.release();
  }

  void OnConnectionState(uint32_t, std::string_view what) override { states.emplace_back(what); }
  void OnRefusedConnection(std::string_view why) override { states.emplace_back(why); }
  void OnSlotFree(uint32_t connection) override { freed.push_back(native->FreeSlot(connection)); }

  std::vector<uint32_t> AllConnections() const {
    std::vector<uint32_t> all(objects->connections.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  absl::Status Adopt(const std::vector<uint32_t>& adopted) {
    native->Restore(adopted, AllConnections());
    shards = adopted;
    return driver->Adopt(adopted);
  }
  void Turn() {
    uint32_t shard;
    while (driver->HandleEvent(&shard) || driver->HandleDeviceEvent(&shard)) {
    }
    for (const uint32_t one : shards) ASSERT_TRUE(driver->PollCompletions(one).ok());
  }

  uint32_t resets = 0;
  QueuePairPool pool;
  std::shared_ptr<driver::DeviceObjects> objects;
  std::vector<uint32_t> shards;
  std::optional<NativeDevice> native;
  std::unique_ptr<driver::QueueDriver> driver;
  std::vector<std::string> states, told;
  std::vector<absl::Status> freed;

 private:
  static void Borrow(driver::DeviceObjects* from, driver::DeviceObjects* to) {
    to->has_forked_drivers = from->has_forked_drivers;
    to->buffers.reset(from->buffers.get());
    to->spares.reset(from->spares.get());
    for (auto& queue : from->completion_queues) to->completion_queues.emplace_back(queue.get());
    for (auto& queue : from->shared_receive_queues) {
      to->shared_receive_queues.emplace_back(queue.get());
    }
  }
};

// A service with one shard, whose owner is a Driver.
class ManagerFixture : public ::testing::Test, private ConnectionObserver {
 protected:
  void SetUp() override { Make(driver::testing::TestShape(1)); }
  void Make(arena::Shape shape, uint32_t pool = kPool) {
    shape.pooled_queue_pairs = pool;
    shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
    if (!device) device = verbs::testing::OpenDevice(fabric).value();
    arena.emplace(arena::Arena::Create(shape, "kv").value());
    manager =
        ConnectionManager::Create(&*arena, device.get(), this, Pools::kInAdvance, [](uint32_t) {
        }).value();
    port =
        driver::ListenOnce(device.get(), manager->objects().get(), {fabric.host, 0}).value().port;
    driver::Ownership(&*arena, 0).GiveTo(0, 1);
    writer.emplace(&*arena, 0);
    writer->Begin(1);
    Succeed();
  }
  void TearDown() override {
    owner.reset();
    other.reset();
    manager.reset();
  }

  void Die() { owner.reset(); }
  void Succeed() {
    owner = std::make_unique<Driver>(&*arena, device.get(), *manager);
    ASSERT_TRUE(owner->Adopt({0}).ok());
  }

  void Replace() {
    Die();
    Succeed();
  }

  virtual void TurnKeeper() {
    manager->Turn();
    for (driver::testing::RawPeer* peer : peers) peer->Turn();
  }
  void Turn() {
    TurnKeeper();
    owner->Turn();
    if (other) other->Turn();
  }
  bool Until(const std::function<bool()>& done) {
    return driver::testing::Pump([&] { Turn(); }, done);
  }
  bool KeeperUntil(const std::function<bool()>& done) {
    return driver::testing::Pump([&] { TurnKeeper(); }, done);
  }

  arena::CompletionEntry Next() {
    if (!Until([&] { return arena->shard(0).completion_tail > read; })) {
      ADD_FAILURE() << "no completion came";
      return {};
    }
    return arena->completion(0, read++);
  }
  arena::CompletionEntry NextOfKind(arena::CompletionKind kind) {
    const arena::CompletionEntry entry = Next();
    EXPECT_EQ(static_cast<int>(entry.kind), static_cast<int>(kind));
    return entry;
  }
  driver::CommitOutcome Commit() {
    writer->Publish();
    return owner->driver->ApplyNext(0, &error);
  }
  // Commits an acknowledgement of all that was read, with what is open.
  void AcknowledgeAll() {
    writer->Acknowledge(read);
    ASSERT_EQ(Commit(), driver::CommitOutcome::kApplied) << error;
  }
  void Ask(driver::testing::RawPeer& peer) {
    peers.push_back(&peer);
    peer.Connect(port, "");
  }
  uint32_t Requested(driver::testing::RawPeer& peer) {
    Ask(peer);
    return NextOfKind(arena::CompletionKind::kConnectRequest).connection;
  }
  void CommitAccept(uint32_t connection) {
    writer->Receive(connection, 0, 1024);
    writer->Accept(connection, 0, "welcome");
    AcknowledgeAll();
  }
  uint32_t Established(driver::testing::RawPeer& peer) {
    const uint32_t connection = Requested(peer);
    CommitAccept(connection);
    EXPECT_EQ(NextOfKind(arena::CompletionKind::kEstablished).connection, connection);
    EXPECT_TRUE(Until([&] { return peer.established; }));
    return connection;
  }
  void ExchangeAMessage(uint32_t connection, driver::testing::RawPeer& peer) {
    const size_t answers = peer.received.size();
    peer.Receive();
    peer.Send("ping");
    EXPECT_EQ(NextOfKind(arena::CompletionKind::kReceive).byte_len, 4u);
    writer->Send(connection, 2048, 5);
    writer->Receive(connection, 0, 1024);
    AcknowledgeAll();
    EXPECT_EQ(NextOfKind(arena::CompletionKind::kSend).status, 0u);
    ASSERT_TRUE(Until([&] { return peer.received.size() == answers + 1; }));
  }
  arena::ConnectionState state(uint32_t connection) {
    return arena::ConnectionState(arena->connection(connection).state);
  }
  uint64_t orders() { return arena->orders(0).tail; }
  bool notice_waits() { return !Mailbox::Notices(*arena, 0).empty(); }

  void OnFree(uint32_t) override {}
  void OnRefusedConnection(std::string_view why) override { refused.emplace_back(why); }
  void OnDeviceEvent(const verbs::DeviceEvent& event, uint32_t) override {
    told.push_back(event.text);
  }

  const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
  std::unique_ptr<verbs::Device> device;
  std::optional<arena::Arena> arena;
  std::unique_ptr<ConnectionManager> manager;
  std::unique_ptr<Driver> owner, other;
  std::optional<driver::testing::CommitWriter> writer;
  uint64_t read = 0;
  std::vector<driver::testing::RawPeer*> peers;
  std::vector<std::string> refused, told;
  uint16_t port = 0;
  absl::Status error;
};

}  // namespace baton::native::testing

#endif  // TESTS_LIB_NATIVE_MANAGER_FIXTURE_H_
