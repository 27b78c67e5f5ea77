// `baton inspect` and `baton snapshot`: their tables, JSON and errors, word by word.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/inspect.pb.h"
#include "supervisor/cli/cli.h"
#include "tests/harness/temp_directory.h"
#include "tests/supervisor/inspect/known_arena.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class InspectTest : public testing::Test {
 protected:
  struct Result {
    int code;
    std::string out;
    std::string err;
  };

  static Result RunBaton(std::vector<std::string> arguments) {
    std::istringstream in;
    std::ostringstream out, err;
    const int code = RunCli(std::move(arguments), Console{.in = in, .out = out, .err = err});
    return {code, out.str(), err.str()};
  }
  // In this process, which has the arena open.
  Result Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--state-dir", directory_.File("state")});
    return RunBaton(std::move(arguments));
  }
  Result Look(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"inspect", "kv", "--pid", std::to_string(getpid())};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(std::move(arguments));
  }
  // What is of this run alone has a name.
  std::string Named(std::string text) const {
    text = absl::StrReplaceAll(
        text, {{absl::StrCat("process ", getpid()), "process PID"}, {directory_.path(), "DIR"}});
    text = std::regex_replace(text, std::regex("(Age: +)[0-9a-z]+"), "$1AGE");
    text = std::regex_replace(text, std::regex("saved [0-9][-0-9T:.]+Z"), "saved TIME");
    return std::regex_replace(text, std::regex("PID \\([^)]*\\)"), "PID (PROGRAM)");
  }
  // Expects that `arguments` print the arena and then exactly `golden`, and nothing else.
  void Expect(std::vector<std::string> arguments, const std::string& golden) {
    const Result result = Look(std::move(arguments));
    EXPECT_EQ(result.code, kExitOk);
    EXPECT_EQ(Named(result.out), golden);
    EXPECT_EQ(result.err, "");
  }

  const harness::TempDirectory directory_ = *harness::TempDirectory::Create();
  const arena::Arena arena_ = inspect::testing::KnownArena();
};

constexpr char kArena[] = R"(Service:       kv
Arena of:      process PID (PROGRAM)
Layout:        version 2, read from version 1
Kind:          brokered
Age:           AGE
Queue depths:  sends 8, receives 8
Buffers:       64KiB
Shards:        1 of 2 owned
Connections:   2 of 8
Transactions:  33
Completions:   21, 4 not acknowledged
)";
constexpr char kShardZero[] = R"(
Shards:
SHARD  EPOCH  OWNER             COMMITS  COMPLETIONS  STATE  NOTE
    0      3  worker 7, slot 1       33        17/21  5B v4  -

Last cut:        of epoch 2 after 11 entries
Release:         not asked for
Commit log:      40 entries applied of 42 published
Completion log:  17 acknowledged of 21, looked at up to 20
In a handler:    of completion 19

Workers:
SLOT  HEARTBEATS  THREADS              NOTE
   1          99  1234, 1 of the dead  sleeping

Connections:
CONNECTION  SHARD  STATE        PEER           SENDS  RECEIVES  NOTE
         2      0  established  10.0.0.2:4000      3         2  -
         5      0  closed       -                  0         0  poisoned, flushed
)";

TEST_F(InspectTest, ShouldPrintMetricsForPrometheus) {
  const Result result = Look({"--metrics"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.out, StartsWith("# HELP baton_"));
  EXPECT_THAT(result.out, HasSubstr("\nbaton_service_connections{service=\"kv\"} 2\n"));
  EXPECT_THAT(result.out, HasSubstr("\nbaton_shard_owned{service=\"kv\",shard=\"0\"} 1\n"));
}

TEST_F(InspectTest, ShouldSumUp) {
  Expect({}, absl::StrCat(kArena, R"(
Shards:
SHARD  EPOCH  OWNER             COMMITS  COMPLETIONS  STATE  NOTE
    0      3  worker 7, slot 1       33        17/21  5B v4  -
    1      1  -                       0          0/0  -      -

Workers:
SLOT  HEARTBEATS  THREADS              NOTE
   1          99  1234, 1 of the dead  sleeping
)"));
}

TEST_F(InspectTest, ShouldShowMoreWhereItIsWide) {
  const std::string wide = Look({"--shard", "0", "--queues", "-o", "wide"}).out;
  EXPECT_THAT(wide, HasSubstr("OWNER             HEIR      CONNECTIONS  COMMITS  ENTRIES"));
  EXPECT_THAT(wide, HasSubstr("STATE        QP  PEER           SENDS  RECEIVES  STATE  NOTE\n"));
  EXPECT_THAT(wide, HasSubstr("COMMITTED  MARKERS\n"));
}

TEST_F(InspectTest, ShouldShowAShard) {
  Expect({"--shard", "0"}, absl::StrCat(kArena, kShardZero));
}

TEST_F(InspectTest, ShouldShowHeaps) {
  const arena::Arena arena = inspect::testing::ArenaWithHeaps("heaps");
  const auto look = [&] { return Run({"inspect", "heaps", "--pid", std::to_string(getpid())}); };
  std::string text = look().out;
  EXPECT_THAT(text, HasSubstr("\nBuffers:       64KiB and 2 heaps of 256KiB\n"));
  EXPECT_THAT(text, HasSubstr(R"(
Heaps:
SHARD  ALLOCATIONS     KEPT      FREE  LARGEST FREE  FRAGMENTED  SCRATCH    HELD  NOTE
    0            3  15.5KiB  239.5KiB        208KiB         13%     4KiB  256KiB  -
    1            0       0B    256KiB        256KiB          0%        -       -  -

Workers:
)"));
  EXPECT_THAT(Look({}).out, testing::Not(HasSubstr("Heaps:")));
  // The report counts nothing that is damaged.
  arena.heap(0)[4] = {1, 0, 1};
  text = look().out;
  EXPECT_THAT(text,
              testing::ContainsRegex("\n +0 +- +- +- +- +- +4KiB +256KiB +damaged at page 4: "));
  EXPECT_THAT(text, HasSubstr("\n  invalid: shard 0: heap: damaged at page 4: a block of 1 pages"));
}

TEST_F(InspectTest, ShouldShowQueues) {
  Expect({"--shard", "0", "--queues"}, absl::StrCat(kArena, kShardZero, R"(
Queues:
CONNECTION  QUEUE    ACKNOWLEDGED  COMPLETED  POSTED  ATTEMPTED  COMMITTED
         2  send              100        102     103        104        105
         2  receive            10         10      12         12         12
         5  send                0          0       0          0          0
         5  receive             0          0       0          0          0
)"));
}

TEST_F(InspectTest, ShouldShowWorkRequests) {
  Expect(
      {"--connection", "2", "--work-requests"},
      absl::StrCat(
          kArena,
          R"(
Connections:
CONNECTION  SHARD  STATE        PEER           SENDS  RECEIVES  NOTE
         2      0  established  10.0.0.2:4000      3         2  -

Outstanding work requests:
OF            QUEUE    SEQUENCE  STATE         OPCODE            BUFFERS        TAG  DETAILS
connection 2  send          100  completed     SEND              0+64             1  -
connection 2  send          101  completed     SEND              64+64            2  -
)"
          "connection 2  send          102  posted        WRITE_WITH_IMM    128+32 4096+8    3  "
          "fence, solicited, remote 0x7f0000001000 rkey 0x1234, imm 0xabcd\n"
          "connection 2  send          103  maybe posted  COMPARE_AND_SWAP  256+8            4  "
          "remote 0x1000 rkey 0x99, compares 0x5 swaps 0x6\n"
          "connection 2  send          104  committed     SEND_WITH_INV     0+0              5  "
          "invalidates 0x77\n"
          R"(connection 2  receive        10  posted        RECEIVE           1024+512         8  -
connection 2  receive        11  posted        RECEIVE           1536+512         9  -
)"));
}

TEST_F(InspectTest, ShouldShowState) {
  Expect({"--connection", "2", "--state"}, absl::StrCat(kArena, R"(
Connections:
CONNECTION  SHARD  STATE        PEER           SENDS  RECEIVES  NOTE
         2      0  established  10.0.0.2:4000      3         2  -

State of connection 2:
  slot 0: committed, version 1, 4 bytes
    00000000  61 63 63 74                                      acct
  slot 1: not committed; what was before, or is being written
    00000000  00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  ................
    *
)"));
}

TEST_F(InspectTest, ShouldShowWhatADecoderPrints) {
  const std::string decoder = directory_.File("decoder");
  std::ofstream(decoder) << "#!/bin/sh\necho \"$BATON_STATE_KIND of $BATON_SERVICE: $(cat)\"\n";
  ASSERT_EQ(chmod(decoder.c_str(), 0755), 0);
  const Result result = Look({"--connection", "2", "--state", "--decoder", decoder});
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_THAT(result.out, testing::EndsWith("\nState of connection 2:\n  version 1, 4 bytes:\n"
                                            "    connection of kv: acct\n"));
  // The failure of a decoder is shown, with the bytes.
  const Result failed = Look({"--connection", "2", "--state", "--decoder", "/bin/false"});
  EXPECT_EQ(failed.code, kExitOk);
  EXPECT_THAT(failed.out,
              HasSubstr("\nState of connection 2:\n  not decoded: /bin/false has ended with status "
                        "1\n  slot 0: committed, version 1, 4 bytes\n"));
}

TEST_F(InspectTest, ShouldSayWhatIsNotShown) {
  const Result result = Look({"--queues", "--limit", "1"});
  EXPECT_THAT(result.out, testing::EndsWith("\n1 connection is not shown; --start 5 goes on\n"));
  EXPECT_THAT(Look({"--queues", "--start", "5"}).out, HasSubstr("\n         5      0  closed "));
}

TEST_F(InspectTest, ShouldSayWhatIsInvalid) {
  arena_.connection(2).state = 77;
  arena_.send_request(2, 100).opcode = 9;
  const Result result = Look({"--connection", "2", "--work-requests"});
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_THAT(result.out, HasSubstr("\n         2      0  invalid: 77  10.0.0.2:4000 "));
  EXPECT_THAT(result.out, HasSubstr("  completed     invalid: 9        0+64 "));
  EXPECT_THAT(result.out, testing::EndsWith("\nInvalid:\n  invalid: connection 2: state: 77\n"
                                            "  invalid: connection 2, send 100: opcode: 9\n"));
}

TEST_F(InspectTest, ShouldPrintTheMessageAsJson) {
  const Result result = Look({"--connection", "5", "-o", "json"});
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_EQ(result.err, "");
  std::string json =
      std::regex_replace(result.out, std::regex("(\"age_seconds\": )[0-9.e-]+"), "$1AGE");
  json = std::regex_replace(json, std::regex("(\"pid\": )[0-9]+"), "$1PID");
  json = std::regex_replace(json, std::regex("(\"program\": )\"[^\"]*\""), "$1PROGRAM");
  EXPECT_EQ(json, R"({
 "service": "kv",
 "source": {
  "kind": "process",
  "pid": PID,
  "program": PROGRAM,
  "file": "",
  "saved_unix_micros": "0",
  "release": "",
  "decoder": "",
  "buffers": true
 },
 "layout_version": 2,
 "oldest_reader": 1,
 "native": false,
 "age_seconds": AGE,
 "shape": {
  "shards": 2,
  "connections": 8,
  "send_queue_depth": 8,
  "receive_queue_depth": 8,
  "shared_receive_queue_depth": 0,
  "completion_log_entries": 512,
  "connection_state_bytes": 64,
  "shard_state_bytes": 128,
  "workers": 4,
  "buffer_bytes": "65536",
  "max_inline_bytes": 0,
  "pooled_queue_pairs": 0,
  "shard_heap_bytes": "0"
 },
 "totals": {
  "shards_owned": 1,
  "connections": "2",
  "transactions": "33",
  "completions": "21",
  "completions_unacknowledged": "4"
 },
 "shards": [],
 "workers": [],
 "connections": [
  {
   "index": 5,
   "generation": 2,
   "shard": 0,
   "state": "closed",
   "qp_number": 0,
   "local_address": "",
   "peer_address": "",
   "listener_port": 0,
   "tag": "0",
   "send": {
    "committed": "0",
    "posted": "0",
    "attempted": "0",
    "completed": "0",
    "acknowledged": "0",
    "markers_begun": 0,
    "markers_confirmed": 0,
    "markers_completed": 0
   },
   "receive": {
    "committed": "0",
    "posted": "0",
    "attempted": "0",
    "completed": "0",
    "acknowledged": "0",
    "markers_begun": 0,
    "markers_confirmed": 0,
    "markers_completed": 0
   },
   "bytes_received": "0",
   "last_status": "flushed",
   "poison": "silent",
   "arriving": false,
   "answered": false,
   "was_established": false,
   "abandoned": false,
   "initiator_depth": 0,
   "responder_resources": 0,
   "private_data": "",
   "application_state": {
    "version": 0,
    "length": 0,
    "slot": 0,
    "changing": false,
    "slots": [],
    "decoded": "",
    "decoder_error": ""
   },
   "work_requests": [],
   "changing": false,
   "invalid": []
  }
 ],
 "connections_left_out": "0",
 "next_connection": 0,
 "work_requests_left_out": "0",
 "invalid": []
}
)");
}

TEST_F(InspectTest, ShouldPrintWorkRequestsAndStateAsJson) {
  const Result result = Look({"--connection", "2", "--work-requests", "--state", "-o", "json"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  v1::Inspection inspection;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(result.out, &inspection).ok());
  EXPECT_EQ(inspection.service(), "kv");
  EXPECT_EQ(inspection.source().pid(), getpid());
  ASSERT_EQ(inspection.connections_size(), 1);
  EXPECT_EQ(inspection.connections(0).work_requests_size(), 7);
  EXPECT_EQ(inspection.connections(0).application_state().slots(0).content(), "acct");
  EXPECT_THAT(result.out, HasSubstr(R"(    {
     "queue": "send",
     "sequence": "102",
     "state": "posted",
     "opcode": "WRITE_WITH_IMM",
     "flags": [
      "fence",
      "solicited"
     ],
     "buffers": [
      {
       "offset": "128",
       "length": 32
      },
      {
       "offset": "4096",
       "length": 8
      }
     ],
     "tag": "3",
     "immediate": 43981,
     "remote_address": "139637976731648",
     "rkey": 4660,
     "invalidate_rkey": 0,
     "compare_add": "0",
     "swap": "0",
     "invalid": []
    },
)"));
}

TEST_F(InspectTest, ShouldShowASnapshotAsItShowsTheArena) {
  const std::string file = directory_.File("kv.snapshot");
  const Result saved =
      Run({"snapshot", "kv", file, "--pid", std::to_string(getpid()), "--buffers"});
  EXPECT_EQ(saved.code, kExitOk);
  EXPECT_EQ(saved.out, "");
  EXPECT_THAT(Named(saved.err),
              testing::MatchesRegex("saved DIR/kv.snapshot: [0-9.]+MiB of service kv from process "
                                    "PID \\(PROGRAM\\); what went on meanwhile is not of one "
                                    "instant\n"));
  const std::string live = Named(Look({"--shard", "0", "--work-requests", "--state"}).out);
  const Result offline =
      Run({"inspect", "--offline", file, "--shard", "0", "--work-requests", "--state"});
  EXPECT_EQ(offline.code, kExitOk) << offline.err;
  EXPECT_EQ(absl::StrReplaceAll(
                Named(offline.out),
                {{"DIR/kv.snapshot, saved TIME by baton 0.1.0 from process PID", "process PID"}}),
            live);
}

// ---------------------------------------------------------------- errors

TEST_F(InspectTest, ShouldSayWhyItCannot) {
  const auto expect = [&](std::vector<std::string> arguments, int code, const std::string& error) {
    const Result result = Run(std::move(arguments));
    EXPECT_EQ(result.code, code) << error;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(Named(result.err), absl::StrCat("error: ", error, "\n"));
  };
  const std::string pid = std::to_string(getpid());
  expect({"inspect"}, kExitUsage,
         "name a service: DIR/state, which would tell, cannot be read (No such file or directory); "
         "--state-dir names another directory");
  expect({"inspect", "none-such"}, kExitNotFound,
         "no batond runs with state directory DIR/state, and no process has an arena of service "
         "\"none-such\" any more: --offline reads what `baton snapshot` has saved, --state-dir "
         "chooses another batond");
  expect({"inspect", "nvme", "--pid", pid}, kExitNotFound,
         "process PID has the arenas of kv, not of nvme");
  expect({"inspect", "--pid", pid, "--shard", "2"}, kExitNotFound,
         "shard 2: the service has 2, from 0");
  expect({"inspect", "--pid", "4194304"}, kExitNotFound, "there is no process 4194304");
  const std::string file = directory_.File("file");
  expect({"inspect", "--offline", file}, kExitNotFound,
         "DIR/file: No such file or directory (errno 2)");
  std::ofstream(file) << "something else";
  expect({"inspect", "--offline", file}, kExitFailed,
         "DIR/file is not a snapshot, or is damaged: it is shorter than a header");
  expect({"snapshot", "kv", file, "--pid", pid}, kExitFailed,
         "DIR/file is there already: --force overwrites it");
  expect({"snapshot", "kv", "/dev/null", "--pid", pid, "--force"}, kExitUsage,
         "/dev/null is there and is no regular file");
}

TEST_F(InspectTest, ShouldRefuseBadUsage) {
  const auto refused = [&](std::vector<std::string> arguments) {
    const Result result = Run(std::move(arguments));
    EXPECT_EQ(result.code, kExitUsage);
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  EXPECT_EQ(refused({"inspect", "kv", "--offline", "x", "--pid", "1"}),
            "error: --pid and --offline: only one of them is possible\n");
  EXPECT_EQ(refused({"inspect", "kv", "--shard", "1", "--connection", "1"}),
            "error: --shard and --connection: only one of them is possible\n");
  EXPECT_THAT(refused({"inspect", "kv", "--limit", "0"}), HasSubstr("--limit"));
  EXPECT_THAT(refused({"inspect", "kv", "--pid", "-1"}), HasSubstr("--pid"));
  EXPECT_THAT(refused({"snapshot"}), HasSubstr("name the FILE"));
}

TEST_F(InspectTest, ShouldTakeTheOnlyServiceOfTheStateDirectory) {
  // Other processes of the machine may have arenas of a service "kv".
  const std::string name = absl::StrCat("a", getpid());
  const auto arena = arena::Arena::Create(arena_.shape(), name);
  ASSERT_TRUE(arena.ok()) << arena.status();
  std::filesystem::create_directory(directory_.File("state"));
  std::ofstream(directory_.File(absl::StrCat("state/", name, ".keeper.sock"))) << "";
  std::ofstream(directory_.File(absl::StrCat("state/", name, ".sock"))) << "";
  const Result chosen = Run({"inspect"});
  EXPECT_EQ(chosen.code, kExitOk) << chosen.err;
  // A word that is the service's name is not the file that somebody forgot to name.
  EXPECT_THAT(Run({"snapshot", name}).err, HasSubstr("name the FILE"));
  std::ofstream(directory_.File("state/nvme.keeper.sock")) << "";
  const std::string several = absl::StrCat("error: name a service: there are ", name, ", nvme\n");
  EXPECT_EQ(Run({"inspect"}).err, several);
  EXPECT_EQ(Run({"snapshot", "file"}).err, several);
}

TEST_F(InspectTest, ShouldExplainItselfOnOneScreen) {
  for (const char* command : {"inspect", "snapshot"}) {
    const Result result = RunBaton({command, "--help"});
    EXPECT_EQ(result.code, kExitOk);
    EXPECT_THAT(result.out, HasSubstr(command == std::string("inspect") ? "\nLook" : "\nSave"));
    std::istringstream lines(result.out);
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      EXPECT_LE(line.size(), 80u) << line;
    }
    EXPECT_LE(count, 24) << result.out;
  }
}

}  // namespace
}  // namespace baton
