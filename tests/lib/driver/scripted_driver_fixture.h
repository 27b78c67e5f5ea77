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
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/scripted_device.h"

namespace baton::driver::testing {

class StateObserver : public DriverObserver {
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
    driver.reset();
    read = 0;
    arena.emplace(arena::Arena::Create(shape, "kv").value());
    driver = QueueDriver::Create(&*arena, &device, &observer).value();
    Ownership(&*arena, 0).GiveTo(0, 1);
    writer.emplace(&*arena, 0);
    writer->Begin(1);
  }

  uint32_t Established() {
    const uint32_t index = driver->Connect(0, {"10.0.0.2", 2}, "", 7).value();
    Handle(index, verbs::CmEventType::kEstablished);
    EXPECT_EQ(arena->shard(0).completion_tail, read + 1);
    const arena::CompletionEntry& entry = arena->completion(0, read++);
    EXPECT_EQ(arena::CompletionKind(entry.kind), arena::CompletionKind::kEstablished);
    EXPECT_EQ(entry.connection, index);
    return index;
  }
  void Handle(uint32_t index, verbs::CmEventType event) {
    device.Report(event, driver->objects()->connections[index].id.get());
    uint32_t shard;
    EXPECT_TRUE(driver->HandleEvent(&shard));
  }

  CommitOutcome Apply() { return driver->ApplyNext(0, &error); }
  void Poll() { ASSERT_TRUE(driver->PollCompletions(0).ok()); }
  void DiePolling(PollDeath death) {
    device.die_polling = death;
    EXPECT_THROW(driver->PollCompletions(0).status().IgnoreError(), DriverDied);
  }
  // The driver is dead: another takes its place.
  void Recover() {
    const std::shared_ptr<DeviceObjects> objects = driver->objects();
    driver.reset();
    driver = QueueDriver::Recover(&*arena, &device, &observer, objects).value();
  }

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
  std::unique_ptr<QueueDriver> driver;
  std::optional<CommitWriter> writer;
  uint64_t read = 0;
  absl::Status error;
};

}  // namespace baton::driver::testing

#endif  // TESTS_LIB_DRIVER_SCRIPTED_DRIVER_FIXTURE_H_
