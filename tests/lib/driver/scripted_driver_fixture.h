// A driver on a scripted device, which dies when its test says so, and the owner of its one shard.
#ifndef TESTS_LIB_DRIVER_SCRIPTED_DRIVER_FIXTURE_H_
#define TESTS_LIB_DRIVER_SCRIPTED_DRIVER_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/local_driver.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/scripted_device.h"

namespace baton::driver::testing {

class StateObserver : public native::LocalObserver {
 public:
  void OnConnectionState(uint32_t, std::string_view what) override { states.emplace_back(what); }
  void OnRefusedConnection(std::string_view) override {}
  void OnDeviceEvent(const verbs::DeviceEvent& event, uint32_t) override {
    events.push_back(event.text);
  }

  std::vector<std::string> states, events;
};

class ScriptedDriverTest : public ::testing::Test {
 protected:
  using PollDeath = ScriptedDevice::PollDeath;

  // Returns an entry of the completion log in words. `status`: what went wrong, after a blank.
  virtual std::string Describe(const arena::CompletionEntry& entry,
                               const std::string& status) const {
    switch (arena::CompletionKind(entry.kind)) {
      case arena::CompletionKind::kSend:
        return absl::StrCat("send ", entry.sequence, status);
      case arena::CompletionKind::kReceive:
        return absl::StrCat("receive ", entry.sequence, " of ", entry.byte_len, status);
      case arena::CompletionKind::kEstablished:
        return "established";
      case arena::CompletionKind::kConnectFailed:
        return absl::StrCat("not established", status);
      default:
        return absl::StrCat("ended", status);
    }
  }

  void Start(const arena::Shape& shape) {
    local.reset();
    read = 0;
    arena.emplace(arena::Arena::Create(shape, "kv").value());
    local = native::LocalDriver::Create(&*arena, &device, &observer).value();
    driver = &local->driver();
    Ownership(&*arena, 0).GiveTo(0, 1);
    writer.emplace(&*arena, 0);
    writer->Begin(1);
  }

  uint32_t Established() {
    const uint32_t index = Connect().value();
    Handle(index, verbs::CmEventType::kEstablished);
    EXPECT_EQ(arena->shard(0).completion_tail, read + 1);
    const arena::CompletionEntry& entry = arena->completion(0, read++);
    EXPECT_EQ(arena::CompletionKind(entry.kind), arena::CompletionKind::kEstablished);
    EXPECT_EQ(entry.connection, index);
    return index;
  }
  // The driver knows of the connection.
  absl::StatusOr<uint32_t> Connect() {
    absl::StatusOr<uint32_t> index = local->manager().Connect(0, {"10.0.0.2", 2}, "", 7);
    if (index.ok()) EXPECT_EQ(HandleNotices(), 1);
    return index;
  }
  void Handle(uint32_t index, verbs::CmEventType event) {
    device.Report(event, device.IdOf(index));
    local->TurnManager();
    EXPECT_EQ(HandleNotices(), 1);
  }
  // Returns how many there were.
  int HandleNotices() {
    int handled = 0;
    uint32_t shard;
    while (local->HandleNotice(&shard)) ++handled;
    return handled;
  }

  CommitOutcome Apply() { return driver->ApplyNext(0, &error); }
  void Poll() { ASSERT_TRUE(driver->PollCompletions(0).ok()); }
  void DiePolling(PollDeath death) {
    device.die_polling = death;
    EXPECT_THROW(driver->PollCompletions(0).status().IgnoreError(), DriverDied);
  }
  // The driver is dead: another takes its place.
  void Recover() {
    local->Follow(local->MakeSuccessor().value());
    driver = &local->driver();
  }
  void DieRecovering() { EXPECT_THROW(local->MakeSuccessor().status().IgnoreError(), DriverDied); }

  // Returns the next entry of the completion log in words. Empty: there is none.
  std::string Read() {
    if (read == arena->shard(0).completion_tail) return "";
    const arena::CompletionEntry& entry = arena->completion(0, read++);
    const std::string name(verbs::CompletionStatusName(verbs::CompletionStatus(entry.status)));
    return Describe(entry, entry.status == 0 ? "" : " " + name);
  }
  std::vector<std::string> ReadAll() {
    std::vector<std::string> all;
    for (std::string one = Read(); !one.empty(); one = Read()) all.push_back(one);
    return all;
  }

  StateObserver observer;
  ScriptedDevice device;
  std::optional<arena::Arena> arena;
  std::unique_ptr<native::LocalDriver> local;
  QueueDriver* driver = nullptr;  // that of `local`
  std::optional<CommitWriter> writer;
  uint64_t read = 0;
  absl::Status error;
};

}  // namespace baton::driver::testing

#endif  // TESTS_LIB_DRIVER_SCRIPTED_DRIVER_FIXTURE_H_
