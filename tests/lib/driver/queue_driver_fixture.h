// A driver on the device under test, an owner of all its shards, and peers.
#ifndef TESTS_LIB_DRIVER_QUEUE_DRIVER_FIXTURE_H_
#define TESTS_LIB_DRIVER_QUEUE_DRIVER_FIXTURE_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/driver/device_objects.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "lib/driver/regions.h"
#include "lib/native/local_driver.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::driver::testing {

class RecordingObserver : public native::LocalObserver {
 public:
  void OnConnectionState(uint32_t connection, std::string_view what) override {
    states.push_back(absl::StrCat(connection, " ", absl::string_view(what.data(), what.size())));
  }
  void OnRefusedConnection(std::string_view why) override { refused.emplace_back(why); }

  std::vector<std::string> states, refused;
};

// A driver, an owner of all its shards, and peers, all turned by the test's thread.
class QueueDriverTest : public ::testing::Test {
 protected:
  void SetUp() override { Make(TestShape()); }

  void Make(const arena::Shape& shape) {
    local.reset();
    writers.clear();
    read.assign(shape.shards, 0);
    device = verbs::testing::OpenDevice(fabric).value();
    arena.emplace(arena::Arena::Create(shape, "kv").value());
    local = native::LocalDriver::Create(&*arena, device.get(), &observer).value();
    driver = &local->driver();
    for (uint32_t i = 0; i < shape.shards; ++i) {
      Ownership(&*arena, i).GiveTo(0, 1);
      writers.emplace_back(&*arena, i);
      writers.back().Begin(1);
    }
    port = Listen({fabric.host, 0}).value().port;
  }
  absl::StatusOr<verbs::Address> Listen(const verbs::Address& address) {
    return ListenOnce(device.get(), local->objects(), address);
  }
  absl::StatusOr<uint32_t> Connect(const verbs::Address& address, std::string_view private_data,
                                   uint64_t tag) {
    auto connection = local->manager().Connect(0, address, private_data, tag);
    HandleNotices();
    return connection;
  }
  uint32_t connection_count() const { return local->manager().connection_count(); }

  void HandleNotices() {
    uint32_t shard;
    while (local->HandleNotice(&shard)) {
    }
  }
  void Turn() {
    local->TurnManager();
    HandleNotices();
    for (uint32_t i = 0; i < arena->shape().shards; ++i) {
      ASSERT_TRUE(driver->PollCompletions(i).ok());
    }
    for (RawPeer* peer : peers) peer->Turn();
  }
  // The driver is dead: another takes its place.
  void Recover() {
    local->Follow(local->MakeSuccessor().value());
    driver = &local->driver();
  }
  bool Until(const std::function<bool()>& done) {
    return Pump([&] { Turn(); }, done);
  }

  // Publishes what `writer` has open, and applies it.
  CommitOutcome Commit(uint32_t shard = 0) {
    writers[shard].Publish();
    return driver->ApplyNext(shard, &error);
  }
  CommitWriter& writer(uint32_t shard = 0) { return writers[shard]; }
  // Commits an acknowledgement of all that was read, with what is open.
  void AcknowledgeAll(uint32_t shard = 0) {
    writer(shard).Acknowledge(read[shard]);
    ASSERT_EQ(Commit(shard), CommitOutcome::kApplied) << error;
  }

  // The next entry of the completion log, awaited.
  arena::CompletionEntry Next(uint32_t shard = 0) {
    if (!Until([&] { return arena->shard(shard).completion_tail > read[shard]; })) {
      ADD_FAILURE() << "no completion came";
      return {};
    }
    return arena->completion(shard, read[shard]++);
  }
  arena::CompletionEntry NextOfKind(arena::CompletionKind kind, uint32_t shard = 0) {
    const arena::CompletionEntry entry = Next(shard);
    EXPECT_EQ(static_cast<int>(entry.kind), static_cast<int>(kind));
    return entry;
  }
  uint64_t unread(uint32_t shard = 0) { return arena->shard(shard).completion_tail - read[shard]; }
  arena::ConnectionState state(uint32_t connection) {
    return arena::ConnectionState(arena->connection(connection).state);
  }

  static constexpr uint64_t kHeld = 9;  // number of the descriptor of each region
  // Registers a region, and returns its number.
  absl::StatusOr<uint32_t> Register(int memfd, uint64_t offset, uint64_t length,
                                    uint32_t access = 0) {
    DeviceObjects* const objects = driver->objects().get();
    absl::StatusOr<uint32_t> place = ReserveRegion(
        objects,
        {offset, length, access, kHeld, std::make_shared<const FileDescriptor>(CopyOf(memfd))});
    if (!place.ok()) return place;
    const absl::Status registered = RegisterGrant(*arena, device.get(), objects, *place);
    if (!registered.ok()) return registered;
    return arena::RegionOfGrant(*place);
  }
  absl::StatusOr<uint32_t> Grant(uint64_t offset, uint64_t length) {
    DeviceObjects* const objects = driver->objects().get();
    absl::StatusOr<uint32_t> grant =
        ReserveGrant(*arena, *device, objects, offset, length, verbs::kRemoteRead);
    if (!grant.ok()) return grant;
    const absl::Status registered = RegisterGrant(*arena, device.get(), objects, *grant);
    return registered.ok() ? grant : registered;
  }
  absl::Status Revoke(uint32_t grant) {
    return RevokeGrant(*arena, driver->objects().get(), grant);
  }

  // A request of `peer` has come; its connection is returned.
  uint32_t Requested(RawPeer& peer, std::string_view private_data = {}) {
    peers.push_back(&peer);
    peer.Connect(port, private_data);
    return NextOfKind(arena::CompletionKind::kConnectRequest).connection;
  }
  uint32_t Established(RawPeer& peer, int receives = 0) {
    const uint32_t connection = Requested(peer);
    for (int i = 0; i < receives; ++i) writer().Receive(connection, Offset(i), 1024);
    writer().Accept(connection, 0);
    EXPECT_EQ(Commit(), CommitOutcome::kApplied) << error;
    EXPECT_EQ(NextOfKind(arena::CompletionKind::kEstablished).connection, connection);
    EXPECT_TRUE(Until([&] { return peer.established; }));
    return connection;
  }
  static uint64_t Offset(int index) { return static_cast<uint64_t>(index) * 1024; }
  void Put(uint64_t offset, std::string_view text) {
    std::copy(text.begin(), text.end(), arena->buffers() + offset);
  }
  std::string Text(uint64_t offset, size_t length) {
    return std::string(reinterpret_cast<const char*>(arena->buffers()) + offset, length);
  }

  const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
  RecordingObserver observer;
  std::unique_ptr<verbs::Device> device;
  std::optional<arena::Arena> arena;
  std::unique_ptr<native::LocalDriver> local;
  QueueDriver* driver = nullptr;  // that of `local`
  std::vector<CommitWriter> writers;
  std::vector<uint64_t> read;
  std::vector<RawPeer*> peers;
  uint16_t port = 0;
  absl::Status error;
};

}  // namespace baton::driver::testing

#endif  // TESTS_LIB_DRIVER_QUEUE_DRIVER_FIXTURE_H_
