// An operator of a simulated service: asks its keeper for one thing after the other, and remembers
// what was promised.
#ifndef TESTS_SIMULATION_KEEPER_SIM_OPERATOR_H_
#define TESTS_SIMULATION_KEEPER_SIM_OPERATOR_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"
#include "tests/simulation/context.h"
#include "tests/simulation/keeper/sim_worker.h"

namespace baton::simulation {

class SimOperator {
 public:
  explicit SimOperator(Surroundings& around) : around_(around) {}

  // Reads an answer, or asks for something, if nothing is asked for. Returns false if it can do
  // neither.
  bool Step();
  // From now on it asks only what is left to do: upgrades are resumed, and looked at.
  void CalmDown() { calm_ = true; }
  void LookAgain() { looked_ = 0, has_looked_ = false; }
  // Asks that no worker is started any more.
  void EndStandbys() { ends_standbys_ = true; }

  // The workers that it may ask to be killed, or to take shards over.
  std::function<std::vector<SimWorker*>()> workers;

  // The policy that was promised last may be in force, and so may each that was asked for since
  // without an answer.
  bool MayBeInForce(uint32_t policy) const { return policies_.count(policy) != 0; }
  bool MayBeDrained(bool drained) const { return drains_.count(drained) != 0; }
  // No upgrade is under way, or can be.
  bool has_no_upgrade() const { return !upgrades_unknown_ && no_upgrade_; }
  // The latest answers were given after CalmDown, and nothing is under way.
  bool at_rest() const {
    return calm_ && !asked_ && looked_ >= 2 && no_upgrade_ && ends_standbys_ == standbys_ended_;
  }
  bool standbys_ended() const { return ends_standbys_ && standbys_ended_; }
  const std::vector<v1::Upgrade>& upgrades() const { return upgrades_; }  // as last seen
  const internal::Description& description() const { return description_; }

 private:
  bool Ask();
  void ChooseRequest(internal::ManagementRequest* request);
  void ChooseCalmRequest(internal::ManagementRequest* request);
  void ChoosePolicy(v1::Policy* policy);
  void ChoosePlan(v1::UpgradePlan* plan);
  bool Read();
  void OnReply(const internal::ManagementReply& reply);
  void OnUpgrades(const internal::ManagementReply& reply);

  Surroundings& around_;
  bool calm_ = false, ends_standbys_ = false, standbys_ended_ = false;
  std::optional<MessageChannel> channel_;
  std::optional<internal::ManagementRequest> asked_;
  uint64_t last_id_ = 0;
  int looked_ = 0;           // at rest, one after the other
  bool has_looked_ = false;  // since LookAgain
  std::set<uint32_t> policies_ = {0};
  uint32_t last_policy_ = 0;
  uint32_t last_program_ = 1;
  std::set<bool> drains_ = {false};
  std::set<uint64_t> accepted_;  // upgrades
  bool no_upgrade_ = true, upgrades_unknown_ = false;
  std::vector<v1::Upgrade> upgrades_;
  internal::Description description_;
};

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_KEEPER_SIM_OPERATOR_H_
