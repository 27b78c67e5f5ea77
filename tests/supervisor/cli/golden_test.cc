// What every command prints, as tests/supervisor/cli/golden.txt has it: as a table, wide, as
// JSON, and when it fails. After a change that is meant, write it anew, and read the difference:
//
//   BATON_UPDATE_GOLDEN=1 bazel run --config=run //tests/supervisor/cli:golden_test && git diff
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <ostream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "supervisor/cli/command_line.h"
#include "supervisor/cli/description.h"
#include "supervisor/doctor/machine.h"
#include "tests/supervisor/cli/cli_fixture.h"
#include "tests/supervisor/control/control_fixture.h"
#include "tests/supervisor/control/fakes.h"
#include "tests/supervisor/doctor/fake_machine.h"

namespace baton {
namespace {

// What a case may change before it is typed.
struct GoldenScene {
  FakeKeeper& keeper;
  doctor::FakeMachine& machine;
  std::function<void(const v1::Event&)> log;                 // waits until control knows of it
  std::function<void(const std::vector<std::string>&)> run;  // a command, unseen
  FakeBatond& batond;
  std::function<void()> stop_control;
  std::function<void()> end_worker_when_asked;  // worker 1, which has a stream from then on
};

struct GoldenCase {
  std::vector<std::string> arguments;  // "STATE" stands for the state directory
  std::string typed = {};              // at a terminal; empty: there is none
  std::function<void(GoldenScene&)> before = {};
};

struct GoldenSection {
  std::string name;
  std::vector<GoldenCase> cases;
};

void PrintTo(const GoldenSection& section, std::ostream* out) { *out << section.name; }

using Words = std::vector<std::string>;
using Before = std::function<void(GoldenScene&)>;

Words Plus(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The command three times: with a table, a wide one, and JSON.
std::vector<GoldenCase> Looks(const Words& command, const Before& before = {}) {
  return {{command, "", before}, {Plus(command, {"-o", "wide"})}, {Plus(command, {"-o", "json"})}};
}

std::vector<GoldenCase> Join(std::vector<GoldenCase> cases, const std::vector<GoldenCase>& more) {
  cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

const Words kNobody = {"--socket", "STATE/nowhere.sock", "--timeout", "0.1"};

void AddUpgrades(GoldenScene& scene) {
  v1::Upgrade back = KvUpgrade(3, v1::UPGRADE_PHASE_ROLLED_BACK);
  scene.keeper.SetUpgrades(
      {KvUpgrade(4, v1::UPGRADE_PHASE_WATCHING), back, KvUpgrade(2, v1::UPGRADE_PHASE_COMPLETED)});
}

void AnswerReload(GoldenScene& scene) {
  internal::BatondReply reply;
  reply.add_taken("operator_uids");
  reply.add_taken("operator_endpoint.crl_file");
  internal::Refused* refused = reply.add_refused();
  refused->set_field("services[kv].shards");
  refused->set_why(
      "it takes another driver, and that would end the service's connections: `baton reload "
      "--disconnect` does so");
  refused->set_ends_connections_of("kv");
  scene.batond.SetReply(reply);
}

void AnswerHandoff(GoldenScene& scene) {
  internal::ManagementReply reply;
  reply.mutable_handoff()->set_to_worker_id(2);
  reply.mutable_handoff()->add_shards(0);
  reply.mutable_handoff()->set_slowest_blackout_us(1234.5);
  scene.keeper.SetHandoff(reply);
}

void RefuseHandoff(GoldenScene& scene) {
  internal::ManagementReply reply;
  reply.set_status_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
  reply.set_status_message(
      "no other worker is ready to take over: start one and wait until it is ready");
  scene.keeper.SetHandoff(reply);
}

void BeUpgrading(GoldenScene& scene) {
  internal::Description description = KvDescription();
  *description.mutable_service()->mutable_upgrade() = KvUpgrade(4, v1::UPGRADE_PHASE_WATCHING);
  scene.keeper.SetDescription(description);
}

// With all that an operator can see of it.
void HavePolicy(GoldenScene& scene) {
  internal::Description description = KvDescription();
  v1::Policy& policy = *description.mutable_service()->mutable_policy();
  policy.mutable_service()->set_connections(64);
  policy.mutable_worker()->set_granted_bytes(1 << 20);
  policy.add_gids("10.0.0.1");
  v1::PortRange& ports = *policy.add_listen_ports();
  ports.set_first(7000);
  ports.set_last(7009);
  policy.set_on_hang(v1::ON_HANG_REPORT);
  scene.keeper.SetDescription(description);
}

// Its keeper and its driver are older than the files that are in place.
void BeOfTheReleaseBefore(GoldenScene& scene) {
  internal::Description description = KvDescription();
  description.mutable_service()->set_keeper_release("0.0.9");
  description.mutable_service()->set_driver_release("0.0.9");
  scene.keeper.SetDescription(description);
}

// Its keeper is, and its driver is not.
void HaveAKeeperOfTheReleaseBefore(GoldenScene& scene) {
  internal::Description description = KvDescription();
  description.mutable_service()->set_keeper_release("0.0.9");
  description.mutable_service()->set_driver_release("0.1.0");
  scene.keeper.SetDescription(description);
}

void RefusePolicy(GoldenScene& scene) {
  scene.keeper.RefusePolicies(absl::InvalidArgumentError(
      "policy.hot_standbys: 99 beside those that own shards are more than max_workers, 16; raise "
      "that, or lower this"));
}

void BeNearLimits(GoldenScene& scene) {
  internal::Description description = KvDescription();
  v1::Accounts& accounts = *description.mutable_service()->mutable_accounts();
  accounts.set_connections(3);
  accounts.set_queue_pairs(3);
  accounts.set_completion_queues(2);
  accounts.set_memory_regions(3);
  accounts.set_registered_bytes(17 << 20);
  accounts.set_grants(1);
  accounts.set_granted_bytes(1 << 20);
  accounts.add_warnings("policy.worker.grants: 1 of 1 in use by worker 1");
  scene.keeper.SetDescription(description);
}

void BeWithoutReadyWorkers(GoldenScene& scene) {
  internal::Description description = KvDescription();
  for (v1::Worker& worker : *description.mutable_workers()) {
    worker.set_state(v1::WORKER_STATE_ATTACHED);
  }
  scene.keeper.SetDescription(description);
}

void BeWithoutConnections(GoldenScene& scene) {
  internal::Description description = KvDescription();
  description.mutable_service()->set_connection_count(0);
  scene.keeper.SetDescription(description);
}

// 30 work requests were outstanding, of which the keeper has recorded 25.
void LeaveManyWorkRequests(GoldenScene& scene) {
  internal::Description described = KvDescription();
  v1::ReconciliationReport& report = *described.mutable_shards(0)->mutable_last_report();
  report.set_never_submitted(0);
  report.set_in_flight(30);
  report.set_delivered_uncommitted(0);
  report.clear_work_requests();
  for (uint64_t i = 0; i < 25; ++i) {
    v1::WorkRequestOutcome& outcome = *report.add_work_requests();
    outcome.set_connection(3);
    outcome.set_sequence(100 + i);
    outcome.set_opcode("RECEIVE");
    outcome.set_outcome("in_flight");
  }
  scene.keeper.SetDescription(described);
}

void AddShardMoves(GoldenScene& scene) {
  std::vector<v1::ShardMove> moves(2);
  for (size_t i = 0; i < moves.size(); ++i) {
    moves[i].set_shard(static_cast<uint32_t>(i));
    moves[i].set_planned(i == 0);
    v1::ReconciliationReport& report = *moves[i].mutable_report();
    report.set_epoch(4 - i);
    report.set_cause(i == 0 ? "handoff" : "crash");
    report.set_former_worker_id(1 + i);
    report.set_unix_micros(1738314900000000 - static_cast<int64_t>(i) * 1'000'000);
    report.set_in_flight(12);
  }
  moves[0].set_blackout_us(212);
  moves[0].mutable_report()->set_successor_worker_id(2);
  scene.keeper.SetShardMoves(moves);
}

// On record: one that went well, and one that did not.
void DoSomething(GoldenScene& scene) {
  AnswerHandoff(scene);
  scene.run({"handoff", "kv", "--reason", "the disk of host 7"});
  RefuseHandoff(scene);
  scene.run({"handoff", "kv"});
}

Before PlanUpgrade(std::vector<v1::Upgrade> course) {
  return [course = std::move(course)](GoldenScene& scene) { scene.keeper.PlanUpgrade(course); };
}

std::vector<GoldenSection> Nouns() {
  return {
      {"service_list",
       Join(Looks({"service", "list"}), {{{"service", "list", "--no-headers"}},
                                         {{"service", "list", "--service", "kv"}},
                                         {{"service", "list", "--state", "unreachable"}},
                                         {{"service", "list", "--service", "kw"}},
                                         {{"service", "list", "--state", "broken"}},
                                         {Plus({"service", "list"}, kNobody)}})},
      {"service_describe", Join(Looks({"service", "describe", "kv"}, BeUpgrading),
                                {{{"service", "describe", "kw"}},
                                 {{"service", "describe", "nvme"}},
                                 {{"service", "describe", "kv"}, "", BeNearLimits}})},
      {"service_policy",
       Join(Looks({"service", "policy", "kv"}, HavePolicy),
            {{{"service", "policy", "kw"}},
             {{"service", "policy", "kv", "--dry-run"}},
             {{"service", "policy", "kv", "--set", "STATE/none"}},
             {{"service", "policy", "kv", "--set", "-"}, "service { connections: 32 }\n"},
             {{"service", "policy", "kv", "--set", "-", "--dry-run"}, "on_hang: ON_HANG_REPORT\n"},
             {{"service", "policy", "kv", "--set", "-", "-o", "json"}, "hot_standbys: 1\n"},
             {{"service", "policy", "kv", "--set", "-"}, "service { conections: 32 }\n"},
             {{"service", "policy", "kv", "--set", "-"}, "hot_standbys: 99\n", RefusePolicy}})},
      {"worker_list",
       Join(Looks({"worker", "list"}), {{{"worker", "list", "kv", "--no-headers"}},
                                        {{"worker", "list", "kv", "--shard", "0"}},
                                        {{"worker", "list", "kv", "--state", "dying"}},
                                        {{"worker", "list", "kw"}},
                                        {{"worker", "list", "--owner", "1"}}})},
      {"worker_describe",
       Join(Looks({"worker", "describe", "kv", "1"}),
            {{{"worker", "describe", "kv", "77"}}, {{"worker", "describe", "kv", "one"}}})},
      {"shard_list",
       Join(Looks({"shard", "list", "kv"}), {{{"shard", "list", "kv", "--owner", "1"}},
                                             {{"shard", "list", "kv", "--state", "waiting"}},
                                             {{"shard", "list", "kv", "--owner", "9"}},
                                             {{"shard", "list"}},
                                             {{"shard", "list", "nvme"}}})},
      {"shard_describe", Join(Looks({"shard", "describe", "kv", "0"}),
                              {{{"shard", "describe", "kv", "1"}},
                               {{"shard", "describe", "kv", "2"}},
                               {{"shard", "describe", "kv", "0"}, "", LeaveManyWorkRequests},
                               {{"shard", "describe", "kv", "0", "-o", "wide"}}})},
      {"shard_history", Join(Looks({"shard", "history", "kv"}, AddShardMoves),
                             {{{"shard", "history", "kv", "--shard", "0", "--no-headers"}},
                              {{"shard", "history", "kw"}}})},
      {"connection_list", Join(Looks({"connection", "list", "kv"}),
                               {{{"connection", "list", "kv", "--shard", "1"}},
                                {{"connection", "list", "kv", "--owner", "1", "--no-headers"}},
                                {{"connection", "list", "kv", "--state", "closed"}},
                                {{"connection", "list", "kw"}}})},
      {"connection_describe", Join(Looks({"connection", "describe", "kv", "5"}),
                                   {{{"connection", "describe", "kv", "77"}}})},
  };
}

std::vector<GoldenSection> Changes() {
  return {
      {"worker_stop",
       {{{"worker", "stop", "kv", "1", "--dry-run"}},
        {{"worker", "stop", "kv", "1", "--dry-run", "-o", "json"}},
        {{"worker", "stop", "kv", "2", "--dry-run"}},
        {{"worker", "stop", "kv", "77", "--dry-run"}},
        {{"worker", "stop", "kv", "1"}},
        {{"worker", "stop", "kv", "1"}, "n\n"},
        {{"worker", "stop", "kv", "2", "--yes"}},
        {{"worker", "stop", "kv", "1"},
         "y\n",
         [](GoldenScene& scene) { scene.end_worker_when_asked(); }}}},
      {"worker_kill",
       {{{"worker", "kill", "kv", "1", "--dry-run"}},
        {{"worker", "kill", "kv", "2", "--dry-run", "-o", "json"}},
        {{"worker", "kill", "kv", "1"}},
        {{"worker", "kill", "kv", "1", "--yes"}},
        {{"worker", "kill", "kv", "1", "--yes", "-o", "json"}},
        {{"worker", "kill", "kv", "101", "--yes"}}}},
      {"handoff", Join(Looks({"handoff", "kv", "--shard", "0", "--to", "2"}, AnswerHandoff),
                       {{{"handoff", "kv", "--dry-run"}},
                        {{"handoff", "kv", "--shard", "0", "--to", "1", "--dry-run", "-o", "json"}},
                        {{"handoff", "kv", "--shard", "7", "--dry-run"}},
                        {{"handoff", "kv", "--to", "77", "--dry-run"}},
                        {{"handoff", "kv"}, "", RefuseHandoff},
                        {{"handoff", "kv", "--dry-run"}, "", BeWithoutReadyWorkers},
                        {{"handoff", "kv", "--dry-run"}, "", BeUpgrading}})},
  };
}

std::vector<GoldenSection> Upgrades() {
  const Words upgrade = {"upgrade", "kv", "--exec", "STATE/kv-1.1"};
  return {
      {"upgrade",
       {{Plus(upgrade, {"--dry-run"})},
        {Plus(upgrade, {"--dry-run", "--workers", "3", "--watch-window", "5", "--", "--fast"})},
        {Plus(upgrade, {"--dry-run", "-o", "json"})},
        {upgrade, "",
         PlanUpgrade({KvUpgrade(3, v1::UPGRADE_PHASE_STARTING),
                      KvUpgrade(3, v1::UPGRADE_PHASE_COMPLETED)})},
        {Plus(upgrade, {"-o", "json", "--no-wait"}), "",
         PlanUpgrade({KvUpgrade(4, v1::UPGRADE_PHASE_STARTING)})},
        {upgrade, "",
         PlanUpgrade({KvUpgrade(5, v1::UPGRADE_PHASE_STARTING),
                      KvUpgrade(5, v1::UPGRADE_PHASE_ROLLED_BACK)})},
        {{"upgrade", "kv", "--exec", "STATE/none"}},
        {Plus(upgrade, {"--dry-run", "--canary", "50%", "--pause-after-canary"})},
        {Plus(upgrade, {"--dry-run", "-o", "json", "--canary", "1", "--canary-window", "5",
                        "--max-blackout", "20", "--min-completions", "100"})},
        {Plus(upgrade, {"--canary", "half"})},
        {Plus(upgrade, {"--dry-run"}), "", BeUpgrading},
        {Plus(upgrade, {"--dry-run"}), "", BeWithoutReadyWorkers}}},
      {"upgrade_baton",
       {{{"upgrade", "--baton", "--dry-run"}, "", BeOfTheReleaseBefore},
        {{"upgrade", "kv", "--baton", "--dry-run"}, "", HaveAKeeperOfTheReleaseBefore},
        {{"upgrade", "kv", "--baton", "--dry-run", "-o", "json"}}}},
      {"upgrades_pause",
       {{{"upgrades", "pause", "kv"}},
        {{"upgrades", "pause", "kv", "--dry-run"}, "", AddUpgrades},
        {{"upgrades", "pause", "kv", "--reason", "pager is quiet, lunch"}},
        {{"upgrades", "pause", "kv", "-o", "json"}},
        {{"upgrades", "pause", "kv", "--reason", "caf\xc3\xa9"}}}},
      {"upgrades_resume",
       {{{"upgrades", "resume", "kv"}, "", AddUpgrades},
        {{"upgrades", "resume", "kv", "--dry-run", "-o", "json"}},
        {{"upgrades", "resume", "kv", "-o", "json"}},
        {{"upgrades", "resume", "kw"}}}},
  };
}

std::vector<GoldenSection> Ends() {
  return {
      {"drain",
       {{{"drain", "kv", "--dry-run"}},
        {{"drain", "kv", "--no-wait"}},
        {{"drain", "kv", "--deadline", "0.2"}},
        {{"drain", "--all", "--no-wait", "-o", "json"}},
        {{"drain", "kv", "--no-wait", "-o", "json"}},
        {{"drain", "kv", "--end"}},
        {{"drain", "kv", "--end"}},
        {{"drain", "--all", "--end", "--dry-run"}},
        {{"drain", "kv", "--deadline", "1", "--disconnect"}, "", BeWithoutConnections},
        {{"drain", "kv"}, "", [](GoldenScene& scene) { scene.keeper.EndDrains(true); }},
        {{"drain"}},
        {{"drain", "kv", "--disconnect"}},
        {{"drain", "kv", "--end", "--no-wait"}},
        {{"drain", "kw"}}}},
      {"reload",
       {{{"reload"}},
        {{"reload", "--dry-run"}},
        {{"reload"}, "", [](GoldenScene& scene) { scene.batond.SetReply({}); }},
        {{"reload"}, "", AnswerReload},
        {{"reload", "--dry-run"}},
        {{"reload", "-o", "json"}},
        {{"reload", "--disconnect"},
         "",
         [](GoldenScene& scene) {
           internal::BatondReply reply;
           reply.add_taken("services[kv].shards");
           reply.add_disconnected("kv");
           scene.batond.SetReply(reply);
         }},
        {{"reload", "kv"}}}},
      {"rollback",
       {{{"rollback", "kv", "--dry-run"}},
        {{"rollback", "kv", "--dry-run"},
         "",
         [](GoldenScene& scene) {
           scene.keeper.SetUpgrades({KvUpgrade(2, v1::UPGRADE_PHASE_COMPLETED)});
         }},
        {{"rollback", "kv", "--dry-run"}, "", AddUpgrades},
        {{"rollback", "kv", "--dry-run", "-o", "json"}},
        {{"rollback", "kv"},
         "",
         PlanUpgrade({KvUpgrade(4, v1::UPGRADE_PHASE_RETURNING),
                      KvUpgrade(4, v1::UPGRADE_PHASE_ROLLED_BACK)})},
        {{"rollback", "kw"}}}},
  };
}

std::vector<GoldenSection> Others() {
  return {
      {"status",
       Join(Looks({"status"}),
            {{{"status", "--no-headers"}}, {Plus({"status"}, kNobody)}, {{"status", "extra"}}})},
      {"version", Join(Looks({"version"}), {{Plus({"version"}, kNobody)}})},
      {"upgrades_list", Join(Looks({"upgrades", "list", "kv"}, AddUpgrades),
                             {{{"upgrades", "list", "kv", "--state", "running", "--no-headers"}},
                              {{"upgrades", "list", "kv", "--state", "failed"}},
                              {{"upgrades", "list", "kw"}}})},
      {"audit", Join(Looks({"audit"}, DoSomething), {{{"audit", "kv"}}, {{"audit", "kw"}}})},
      {"events", Join(Looks({"events", "kv"},
                            [](GoldenScene& scene) {
                              scene.log(KvEvent(1, "worker_attached", "kv-old"));
                              v1::Event other = KvEvent(2, "shard_moved", "to kv-new");
                              other.set_shard(1);
                              other.set_worker_id(2);
                              scene.log(other);
                            }),
                      {{{"events", "kv", "--shard", "1"}},
                       {{"events", "kv", "--owner", "1"}},
                       {{"events", "kv", "--kind", "shard_moved"}},
                       {{"events"}},
                       {{"events", "kw"}},
                       {{"events", "--no-reconnect"}}})},
      {"top", Join(Looks({"top", "--once"}, BeUpgrading), {{{"top", "--once", "--service", "nvme"}},
                                                           {{"top", "--once", "--service", "kw"}},
                                                           {Plus({"top"}, kNobody)}})},
      {"doctor", Join(Looks({"doctor"}),
                      {{{"doctor"},
                        "",
                        [](GoldenScene& scene) {
                          scene.machine.Put("/sys/class/infiniband/rxe0/ports/1/state", "1: DOWN");
                        }},
                       {{"doctor", "-o", "json"}},
                       {{"doctor", "--config", "STATE/none"}},
                       {{"doctor", "--user", "no-such-user"}}})},
      {"new_service",
       {{{"new", "service", "kv", "--directory", "STATE/kv"}},
        {{"new", "service", "kv", "--directory", "STATE/kv"}},
        {{"new", "service", "kv", "--directory", "STATE/other", "-o", "json"}},
        {{"new", "service", "KV"}}}},
      {"completion",
       {{{"completion", "bash"}},
        {{"completion", "zsh"}},
        {{"completion", "fish"}},
        {{"completion", "tcsh"}}}},
      {"bad_usage",
       {{{}},
        {{"sing"}},
        {{"serivce", "list"}},
        {{"worker", "stop", "kv", "1", "--ye"}},
        {{"-o", "yaml", "status"}},
        {{"--timeout", "0", "status"}},
        {{"status", "--watch=never"}},
        {{"rollback", "kv", "--", "extra"}}}},
  };
}

// What the test types: for each section of golden.txt some command lines, and what is so before
// each.
std::vector<GoldenSection> GoldenSections() {
  std::vector<GoldenSection> sections = Nouns();
  for (const auto& some : {Changes(), Upgrades(), Ends(), Others()}) {
    sections.insert(sections.end(), some.begin(), some.end());
  }
  return sections;
}

constexpr char kGolden[] = "tests/supervisor/cli/golden.txt";
constexpr std::string_view kHead = "==== ";  // before the name of a section, on a line of its own

using Sections = std::map<std::string, std::string>;

Sections ReadSections(const std::string& path) {
  Sections sections;
  std::string* section = nullptr;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kHead)) {
      section = &sections[line.substr(kHead.size())];
    } else if (section != nullptr) {
      absl::StrAppend(section, line, "\n");
    }
  }
  return sections;
}

void WriteSections(const std::string& path, const Sections& sections) {
  std::ofstream file(path);
  for (const auto& [name, text] : sections) file << kHead << name << "\n" << text;
}

// "diff -u" of the two.
std::string Difference(const std::string& golden, const std::string& actual) {
  const char* const temporary = std::getenv("TEST_TMPDIR");
  const std::string stem = absl::StrCat(temporary == nullptr ? "/tmp" : temporary, "/", getpid());
  const std::string then = stem + "-golden", now = stem + "-now";
  std::ofstream(then) << golden;
  std::ofstream(now) << actual;
  std::string text;
  FILE* const diff =
      popen(absl::StrCat("diff -u --label golden ", then, " --label now ", now).c_str(), "r");
  char part[4096];
  while (const size_t size = fread(part, 1, sizeof(part), diff)) text.append(part, size);
  pclose(diff);
  std::filesystem::remove(then);
  std::filesystem::remove(now);
  return text;
}

class GoldenTest : public CliFixture, public testing::WithParamInterface<GoldenSection> {
 protected:
  void SetUp() override {
    CliFixture::SetUp();
    std::ofstream(state_dir_ + "/kv-1.1") << "#!/bin/sh\n";
    ASSERT_EQ(chmod((state_dir_ + "/kv-1.1").c_str(), 0755), 0);
  }

  std::string RunCase(const GoldenCase& one) {
    GoldenScene scene{.keeper = *keeper_,
                      .machine = machine_,
                      .log = [this](const v1::Event& event) { LogAndAwait(event); },
                      .run = [this](const std::vector<std::string>& words) { (void)Run(words); },
                      .batond = batond_,
                      .stop_control = [this] { control_.reset(); },
                      .end_worker_when_asked = [this] { EndWorkerWhenAsked(); }};
    if (one.before) one.before(scene);
    std::vector<std::string> arguments;
    for (const std::string& word : one.arguments) {
      arguments.push_back(absl::StrReplaceAll(word, {{"STATE", state_dir_}}));
    }
    const std::vector<std::string> typed = arguments;
    const bool doctor = !arguments.empty() && arguments[0] == "doctor";
    arguments.insert(arguments.begin(), {"--state-dir", doctor ? "/run/baton" : state_dir_});
    std::istringstream in(one.typed);
    std::ostringstream out, err;
    const int code = RunCli(arguments, Console{.in = in,
                                               .out = out,
                                               .err = err,
                                               .interactive = !one.typed.empty(),
                                               .patience_seconds = 1e6,
                                               .machine = &machine_,
                                               .identity = &identity_});
    std::string text = absl::StrCat("$ baton ", absl::StrJoin(typed, " "),
                                    one.typed.empty() ? "" : "  # typed: ", one.typed);
    if (one.typed.empty()) text += '\n';
    absl::StrAppend(&text, "exit code ", code, "\n", Part("output", out.str()),
                    Part("messages", err.str()), "\n");
    return AsAlways(text);
  }

 private:
  static std::string Part(const std::string& name, const std::string& text) {
    if (text.empty()) return "";
    return absl::StrCat("--- ", name, "\n", text, text.ends_with("\n") ? "" : "\n");
  }

  // What is another every time, and no part of what is compared.
  std::string AsAlways(const std::string& text) const {
    std::string same = absl::StrReplaceAll(text, {{state_dir_, "STATE"}});
    for (const auto& [pattern, replacement] : std::vector<std::pair<const char*, const char*>>{
             {"(Control: +pid )[0-9]+, up [^ \n]+", "$1PID, up TIME"},
             {"(control \\(pid )[0-9]+", "$1PID"},
             {"(control pid )[0-9]+, up [^ ;\n]+", "$1PID, up TIME"},
             {"(\"control_pid\": )[0-9]+", "$1PID"},
             // These are times of what was recorded just now. Times that tests made up are older.
             {"20(2[6-9]|[3-9][0-9])-[-0-9]+T[0-9:.]+Z", "TIME"},
             {"(unix_micros\": ?\")(17[6-9]|1[89])[0-9]+", "$1TIME"},
             {"uid [0-9]+ pid [0-9]+  +", "uid UID pid PID  "},
             {"uid [0-9]+ pid [0-9]+", "uid UID pid PID"},
             {"(\"control_uptime_seconds\": )[-+.0-9e]+", "$1TIME"}}) {
      same = std::regex_replace(same, std::regex(pattern), replacement);
    }
    return same;
  }

  void LogAndAwait(const v1::Event& event) {
    keeper_->Log(event);
    ASSERT_TRUE(harness::WaitUntil(event.kind(), [&] {
                  return Run({"events", "kv"}).out.find(event.kind()) != std::string::npos;
                }).ok());
  }

  void EndWorkerWhenAsked() {
    stream_ = OpenStream(1);
    on_shutdown_ = [this] {
      internal::Description without = KvDescription();
      without.mutable_workers()->DeleteSubrange(0, 1);
      keeper_->SetDescription(without);
    };
  }

  doctor::FakeMachine machine_;
  const doctor::Identity identity_{"baton", 1000, 1000, {doctor::kRdmaGroup}, true};
  std::unique_ptr<ControlStream> stream_;
};

TEST_P(GoldenTest, ShouldPrintWhatIsRecorded) {
  std::string actual;
  for (const GoldenCase& one : GetParam().cases) actual += RunCase(one);
  const std::string& name = GetParam().name;
  if (std::getenv("BATON_UPDATE_GOLDEN") != nullptr) {
    const char* const tree = std::getenv("BUILD_WORKSPACE_DIRECTORY");
    ASSERT_NE(tree, nullptr) << "use bazel run, see the head of this test";
    const std::string path = absl::StrCat(tree, "/", kGolden);
    Sections sections = ReadSections(path);
    sections[name] = actual;
    WriteSections(path, sections);
    return;
  }
  const std::string golden = ReadSections(kGolden)[name];
  if (golden == actual) return;
  FAIL() << kGolden << " has something else of " << name
         << " (- golden, + now; the head of this test says how to write it anew):\n"
         << Difference(golden, actual);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest, testing::ValuesIn(GoldenSections()),
                         [](const auto& info) { return info.param.name; });

// ---------------------------------------------------------------- every command

class EveryCommandTest : public testing::Test {
 protected:
  std::vector<const CLI::App*> All(const CLI::App* from) {
    std::vector<const CLI::App*> all = {from};
    for (const CLI::App* one : SubcommandsOf(*from)) {
      for (const CLI::App* below : All(one)) all.push_back(below);
    }
    return all;
  }

  std::istringstream in_;
  std::ostringstream out_, err_;
  const Console console_{.in = in_, .out = out_, .err = err_};
  Invocation invocation_{.console = console_};
  const std::unique_ptr<CLI::App> app_ = MakeCommandLine(&invocation_);
};

TEST_F(EveryCommandTest, ShouldHaveAHelpThatFitsAScreen) {
  for (const CLI::App* command : All(app_.get())) {
    std::vector<std::string> words = absl::StrSplit(PathOf(*command), ' ');
    words.erase(words.begin());
    words.emplace_back("--help");
    std::istringstream in;
    std::ostringstream out, err;
    EXPECT_EQ(RunCli(words, Console{.in = in, .out = out, .err = err}), kExitOk)
        << PathOf(*command);
    std::vector<std::string> lines = absl::StrSplit(out.str(), '\n');
    EXPECT_EQ(lines.back(), "");
    lines.pop_back();
    EXPECT_LE(lines.size(), 23u) << out.str();  // a prompt follows
    for (const std::string& line : lines) EXPECT_LE(line.size(), 80u) << out.str();
    for (const CLI::Option* option : OptionsOf(*command)) {
      if (option->get_group() == kOverTls) continue;
      EXPECT_NE(out.str().find(LabelOf(*option)), std::string::npos) << LabelOf(*option);
    }
  }
}

// They look into arenas, and not at what control says: inspect_test.cc has what they print.
const std::set<std::string> kOfArenas = {"baton inspect", "baton snapshot"};

// The kinds of output of one command that golden.txt has.
struct Recorded {
  bool table = false;
  bool wide = false;
  bool json = false;
  bool error = false;
};

TEST_F(EveryCommandTest, ShouldBeGoldenAsATableWideAsJsonAndWhenItFails) {
  std::map<std::string, Recorded> recorded;
  for (const auto& [name, text] : ReadSections(kGolden)) {
    const std::regex run("\\$ (baton[^\n#]*)[^\n]*\nexit code ([0-9])");
    for (std::sregex_iterator one(text.begin(), text.end(), run), end; one != end; ++one) {
      std::string words = (*one)[1];
      const bool json = words.find(" -o json") != std::string::npos;
      const bool wide = words.find(" -o wide") != std::string::npos;
      for (const CLI::App* command : All(app_.get())) {
        const std::string path = PathOf(*command);
        if (!absl::StrCat(words, " ").starts_with(path + " ")) continue;
        Recorded& of = recorded[path];
        const bool failed = (*one)[2] != "0";
        of.error |= failed;
        of.json |= json && !failed;
        of.wide |= wide && !failed;
        of.table |= !json && !wide && !failed;
      }
    }
  }
  for (const CLI::App* command : All(app_.get())) {
    if (!SubcommandsOf(*command).empty()) continue;
    const std::string path = PathOf(*command);
    if (kOfArenas.count(path) > 0) continue;
    const Recorded& of = recorded[path];
    EXPECT_TRUE(of.table) << path;
    EXPECT_TRUE(of.error) << path;
    // Scripts are scripts.
    EXPECT_TRUE(of.json || path == "baton completion") << path;
    const bool lists = command->get_option_no_throw("--no-headers") != nullptr;
    EXPECT_TRUE(of.wide || !lists) << path;
  }
}

// The design promises that a command that looks can watch, and one that changes can be tried dry.
TEST_F(EveryCommandTest, ShouldHaveTheOptionsOfItsKind) {
  const std::set<std::string> changes = {"stop",  "kill",  "handoff", "upgrade", "rollback",
                                         "drain", "pause", "resume",  "reload"};
  for (const CLI::App* command : All(app_.get())) {
    const std::string name = command->get_name();
    const auto has = [&](const char* option) {
      return command->get_option_no_throw(option) != nullptr;
    };
    if (name == "list" || name == "status" || name == "history") {
      EXPECT_TRUE(has("--watch") && has("--no-headers")) << PathOf(*command);
    }
    if (name == "describe") {
      EXPECT_TRUE(has("--watch")) << PathOf(*command);
    }
    if (changes.count(name) > 0) {
      EXPECT_TRUE(has("--dry-run") && has("--yes")) << PathOf(*command);
    }
  }
}

}  // namespace
}  // namespace baton
