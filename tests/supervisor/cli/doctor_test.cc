// `baton doctor`, on the machine that runs the tests, whatever it has, and what it prints.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "supervisor/cli/cli.h"
#include "supervisor/cli/commands.h"
#include "supervisor/doctor/checks.h"
#include "tests/harness/temp_directory.h"

namespace baton {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class DoctorCommandTest : public testing::Test {
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

  // Made by this user, in a directory that everybody may write: nothing is wrong with it.
  std::vector<std::string> With(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"doctor", "--state-dir", directory_.File("state")});
    return arguments;
  }
  std::string Config(const std::string& text) {
    std::ofstream(directory_.File("conf")) << text;
    return directory_.File("conf");
  }

  const harness::TempDirectory directory_ = *harness::TempDirectory::Create();
};

TEST_F(DoctorCommandTest, ShouldNeedNoBatond) {
  const Result result = RunBaton(With({}));
  EXPECT_THAT(result.out, HasSubstr("state directory"));
  EXPECT_THAT(result.out, EndsWith(" ok\n"));
  EXPECT_EQ(result.code, result.out.find("\nPROBLEM ") == std::string::npos ? 0 : 1) << result.out;
}

TEST_F(DoctorCommandTest, ShouldPrintJson) {
  const Result result = RunBaton(With({"-o", "json"}));
  v1::DoctorReport report;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(result.out, &report).ok()) << result.out;
  EXPECT_GT(report.findings_size(), 3);
  EXPECT_EQ(result.code, report.problems() == 0 ? 0 : 1);
  EXPECT_THAT(result.out, HasSubstr("\"severity\": \"SEVERITY_"));
}

TEST_F(DoctorCommandTest, ShouldFailWhenThereIsAProblem) {
  std::ofstream(directory_.File("state")) << "in the way";
  const Result result = RunBaton(With({}));
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.out, HasSubstr("cure: rm " + directory_.File("state") + "\n"));
  EXPECT_THAT(result.err, StartsWith("error: "));
  EXPECT_THAT(result.err, HasSubstr(" found\n"));
}

TEST_F(DoctorCommandTest, ShouldLookAtTheServicesOfAConfiguration) {
  const std::string file = Config("state_dir: \"" + directory_.File("state") +
                                  "\" services { name: \"kv\" device { rdma { device: "
                                  "\"no-such-device\" } } }");
  const Result result = RunBaton({"doctor", "--config", file});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.out, HasSubstr("  kv: "));
}

TEST_F(DoctorCommandTest, ShouldCallAnInvalidConfigurationAndAnUnknownUserBadUsage) {
  Result result = RunBaton({"doctor", "--config", Config("no_such_field: 1")});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("no_such_field"));
  result = RunBaton({"doctor", "--config", directory_.File("none")});
  EXPECT_EQ(result.code, kExitUsage);
  result = RunBaton({"doctor", "--user", "no-such-user"});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("useradd --system no-such-user"));
  EXPECT_EQ(RunBaton({"doctor", "--no-such-flag"}).code, kExitUsage);
}

TEST(DoctorReportTest, ShouldPrintEachFindingWithItsCure) {
  doctor::Report report;
  report.Ok({"module"}, "all are loaded");
  report.Add(v1::SEVERITY_PROBLEM, {"port", "rxe0 port 1"},
             {"is DOWN", "nothing works", "ip link set eth0 up"});
  report.Add(v1::SEVERITY_WARNING, {"group"}, {"none\x1b[2J", "x", "y"});
  std::ostringstream out;
  PrintDoctorReport(out, report.report());
  EXPECT_EQ(out.str(),
            "OK       module  all are loaded\n"
            "PROBLEM  port    rxe0 port 1: is DOWN\n"
            "                 so:   nothing works\n"
            "                 cure: ip link set eth0 up\n"
            "WARNING  group   none?[2J\n"
            "                 so:   x\n"
            "                 cure: y\n"
            "\n"
            "1 problem, 1 warning, 1 ok\n");
}

}  // namespace
}  // namespace baton
