// What Baton's processes log: as JSON, each event once, with the trace of who caused it, and
// without secrets.
#include <signal.h>

#include <algorithm>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "lib/arena/layout.h"
#include "lib/base/version.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/file_content.h"
#include "tests/harness/wait_until.h"

namespace baton {
namespace {

using google::protobuf::Struct;
using harness::Cluster;
using harness::ClusterOptions;
using harness::ReadFile;
using testing::HasSubstr;
using testing::Not;

constexpr char kTrace[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

Struct Parsed(const std::string& line) {
  Struct object;
  const auto status = google::protobuf::util::JsonStringToMessage(line, &object);
  EXPECT_TRUE(status.ok()) << status.ToString() << ": " << line;
  return object;
}

std::vector<Struct> ParsedLines(const std::string& text) {
  std::vector<Struct> objects;
  for (const auto line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    // Skips lines of a worker's program, which are not JSON.
    if (absl::StartsWith(line, "ledger ready ") || absl::StrContains(line, "] [ledger-v2] [")) {
      continue;
    }
    objects.push_back(Parsed(std::string(line)));
  }
  return objects;
}

std::string Text(const Struct& object, const std::string& field) {
  const auto found = object.fields().find(field);
  return found == object.fields().end() ? "" : found->second.string_value();
}

// What `baton` prints.
std::string Baton(const Cluster& cluster, const std::vector<std::string>& arguments,
                  const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  const harness::CommandResult result = harness::RunBaton(cluster, arguments, environment);
  EXPECT_EQ(result.status, 0) << result.err;
  return result.out;
}

// Kinds and messages.
using Told = std::multimap<std::string, std::string>;

class Logs : public harness::ClusterFixture {
 protected:
  // Its lines are JSON.
  void StartWithStandby() {
    ClusterOptions options;
    options.batond_arguments = {"--log-format", "json"};
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(options));
    ASSERT_OK_AND_ASSIGN(owner_, cluster_->StartLedger(1));
    ASSERT_OK_AND_ASSIGN(standby_, cluster_->StartLedger(2));
  }

  std::unique_ptr<harness::LedgerWorker> owner_, standby_;
};

TEST_F(Logs, shouldBeAnObjectALineAndTellEachEventOnce) {
  ASSERT_NO_FATAL_FAILURE(StartWithStandby());
  ASSERT_OK(cluster_->Handoff(standby_->id));
  ASSERT_OK(standby_->process->Kill());
  ASSERT_OK(cluster_->WaitUntilOwner(owner_->id));
  ASSERT_OK(cluster_->WaitUntilGone(standby_->id));
  const auto status = cluster_->operators().GetStatus();
  ASSERT_OK(status);
  ASSERT_EQ(kill(status->control_pid(), SIGKILL), 0);
  Told events;
  for (const Struct& event : ParsedLines(Baton(*cluster_, {"-o", "json", "events", "ledger"}))) {
    if (Text(event, "kind") == "change") continue;  // control's own
    events.emplace(Text(event, "kind"), Text(event, "message"));
  }
  EXPECT_GT(events.count("worker_ready"), 1u);
  const std::string log = cluster_->batond().log_path();
  ASSERT_OK(owner_->process->Kill());
  ASSERT_OK(cluster_->WaitUntilGone(owner_->id));
  ASSERT_OK(cluster_->Stop());

  Told lines;
  std::map<std::string, int> of_process;
  for (const Struct& line : ParsedLines(ReadFile(log))) {
    ++of_process[Text(line, "process")];
    EXPECT_EQ(Text(line, "time").size(), 27u);
    EXPECT_NE(Text(line, "level"), "");
    EXPECT_NE(Text(line, "message"), "");
    if (Text(line, "kind") == "control_followed") {
      EXPECT_EQ(Text(line, "process"), "batond");
      EXPECT_EQ(Text(line, "service"), "");
      continue;
    }
    if (Text(line, "kind").empty()) continue;
    EXPECT_EQ(Text(line, "process"), "keeper");
    EXPECT_EQ(Text(line, "service"), "ledger");
    lines.emplace(Text(line, "kind"), Text(line, "message"));
  }
  EXPECT_EQ(of_process.size(), 4u);
  for (const char* process : {"batond", "keeper", "control"}) EXPECT_GT(of_process[process], 1);
  EXPECT_GT(of_process["driver"], 0);
  for (auto event = events.begin(); event != events.end(); ++event) {
    EXPECT_EQ(std::count(lines.begin(), lines.end(), *event),
              std::count(events.begin(), events.end(), *event))
        << event->first << ": " << event->second;
  }
}

TEST_F(Logs, shouldHaveTheTraceOfWhatAnOperatorAsksFor) {
  ASSERT_NO_FATAL_FAILURE(StartWithStandby());
  Baton(*cluster_, {"handoff", "ledger"}, {{"TRACEPARENT", kTrace}});
  Baton(*cluster_, {"worker", "kill", "ledger", absl::StrCat(owner_->id), "--yes"},
        {{"TRACEPARENT", kTrace}});
  auto again = cluster_->StartLedger(1);
  ASSERT_OK(again);
  const std::string program = harness::Binaries().Find("ledger-v2").value();
  Baton(*cluster_, {"upgrade", "ledger", "--exec", program, "--watch-window", "0.1"},
        {{"TRACEPARENT", kTrace}});
  // One that is none is nowhere, and keeps nobody from anything.
  auto last = cluster_->StartLedger(1);
  ASSERT_OK(last);
  Baton(*cluster_, {"worker", "kill", "ledger", absl::StrCat((*last)->id), "--yes"},
        {{"TRACEPARENT", "00-not-a-trace"}});
  const std::string log = cluster_->batond().log_path();
  ASSERT_OK(cluster_->Stop());

  std::vector<std::string> traced;
  for (const Struct& line : ParsedLines(ReadFile(log))) {
    if (Text(line, "trace_parent").empty()) continue;
    EXPECT_EQ(Text(line, "trace_parent"), kTrace);
    traced.push_back(
        absl::StrCat(Text(line, "process"), ": ", Text(line, "kind"), ": ", Text(line, "message")));
  }
  EXPECT_THAT(
      traced,
      testing::IsSupersetOf(
          {HasSubstr("Handoff asked by uid"), HasSubstr("keeper: : control asks: handoff"),
           HasSubstr("keeper: : handoff: done"), HasSubstr("keeper: upgrade_started: upgrade 1: "),
           HasSubstr("keeper: upgrade_completed: upgrade 1: "),
           HasSubstr("keeper: : control asks: kill_worker"),
           HasSubstr(absl::StrCat("keeper: worker_killed: worker ", owner_->id))}));
  EXPECT_THAT(ReadFile(log), Not(HasSubstr("not-a-trace")));
}

// Its number and those of what it has started.
std::vector<int> ProcessesOf(Cluster& cluster) {
  std::vector<int> pids = {cluster.batond().pid()};
  for (size_t i = 0; i < pids.size(); ++i) {
    for (const pid_t child : harness::ChildrenOf(pids[i])) pids.push_back(child);
  }
  return pids;
}

TEST_F(Logs, shouldHaveNoTokenAnywhere) {
  ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(ClusterOptions()));
  auto ledger = cluster_->StartLedger(1);  // its stream to control took a token
  ASSERT_OK(ledger);
  auto socket = ConnectUnix(cluster_->SocketPath());
  ASSERT_OK(socket);
  MessageChannel worker(*std::move(socket));
  internal::WorkerRequest request;
  request.mutable_attach()->set_protocol_version(kProtocolVersion);
  request.mutable_attach()->set_layout_version(arena::kLayoutVersion);
  request.mutable_attach()->set_name("nosy");
  request.mutable_attach()->set_version("1");
  request.mutable_attach()->set_service("ledger");
  internal::WorkerReply reply;
  std::vector<FileDescriptor> descriptors;
  ASSERT_TRUE(worker.Send(request).ok());
  ASSERT_TRUE(worker.Receive(&reply, -1, &descriptors).ok());
  ASSERT_TRUE(reply.has_attached()) << reply.status_message();
  std::vector<std::string> tokens = {reply.attached().token()};
  request.Clear();
  request.mutable_new_token();
  ASSERT_TRUE(worker.Send(request).ok());
  ASSERT_TRUE(worker.Receive(&reply, -1).ok());
  tokens.push_back(reply.token().token());

  std::vector<std::pair<std::string, std::string>> places = {
      {"events", Baton(*cluster_, {"-o", "json", "events"})},
      {"workers", Baton(*cluster_, {"-o", "json", "worker", "list"})}};
  std::vector<int> pids = ProcessesOf(*cluster_);
  pids.push_back((*ledger)->process->pid());
  for (const int pid : pids) {
    ASSERT_GT(pid, 0);
    for (const char* file : {"environ", "cmdline"}) {
      const std::string path = absl::StrCat("/proc/", pid, "/", file);
      places.emplace_back(path, ReadFile(path));
      EXPECT_FALSE(places.back().second.empty()) << path;
    }
  }
  const std::string log = cluster_->batond().log_path();
  ASSERT_OK(cluster_->Stop());
  places.emplace_back("log", ReadFile(log));
  EXPECT_THAT(places.back().second, HasSubstr("nosy"));  // it has what is told of that worker
  for (const std::string& token : tokens) {
    ASSERT_EQ(token.size(), 16u);
    for (const auto& [place, text] : places) {
      for (const std::string& form :
           {token, absl::BytesToHexString(token), absl::Base64Escape(token), absl::CEscape(token),
            absl::CHexEscape(token), absl::Utf8SafeCEscape(token)}) {
        EXPECT_EQ(text.find(form), std::string::npos) << place;
      }
    }
  }
}

}  // namespace
}  // namespace baton
