// A control server in this process, in a state directory of its own, with fake keepers.
#ifndef TESTS_SUPERVISOR_CONTROL_CONTROL_FIXTURE_H_
#define TESTS_SUPERVISOR_CONTROL_CONTROL_FIXTURE_H_

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "supervisor/control/control_server.h"
#include "tests/supervisor/control/fakes.h"

namespace baton {

// A service "kv" with two shards, two workers and three connections. All numbers are fixed.
internal::Description KvDescription();
std::vector<v1::Connection> KvConnections();
// From version 1.0 to 1.1, with its times and what follows from `phase`.
v1::Upgrade KvUpgrade(uint64_t id, v1::UpgradePhase phase);
v1::Event KvEvent(uint64_t sequence, const std::string& kind, const std::string& message);

// A token as keepers make them, of 16 bytes, that begins with `name`.
std::string WorkerToken(const std::string& name);

class ControlFixture : public ::testing::Test {
 protected:
  // Services "kv", with a keeper, and "nvme", whose keeper is not there.
  void SetUp() override;
  void TearDown() override;

  void StartControl();

  std::string state_dir_;
  internal::ControlConfig config_;
  std::unique_ptr<FakeKeeper> keeper_;
  FakeBatond batond_;
  std::unique_ptr<ControlServer> control_;
};

}  // namespace baton

#endif  // TESTS_SUPERVISOR_CONTROL_CONTROL_FIXTURE_H_
