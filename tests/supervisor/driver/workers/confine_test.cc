#include "supervisor/driver/workers/confine.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/process_limits.h"

namespace baton::driver_process {
namespace {

using ::testing::ExitedWithCode;

std::vector<int> OpenDescriptors() {
  std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir("/proc/self/fd"), closedir);
  std::vector<int> numbers;
  while (const dirent* const entry = readdir(entries.get())) {
    const int number = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && number != dirfd(entries.get())) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// What the kernel says of this process.
std::string StatusField(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) != 0) continue;
    line.erase(0, name.size() + 1);
    line.erase(0, line.find_first_not_of("\t "));
    line.erase(line.find_last_not_of("\t ") + 1);
    return line;
  }
  return "not there";
}

// Ends the process with 0 when all is as it should be.
class Findings {
 public:
  template <typename Value>
  void Expect(const char* what, const Value& value, const Value& wanted) {
    if (value == wanted) return;
    std::fprintf(stderr, "%s is wrong\n", what);
    good_ = false;
  }
  void ExpectField(const char* name, const std::string& wanted) {
    const std::string value = StatusField(name);
    if (value == wanted) return;
    std::fprintf(stderr, "%s is %s\n", name, value.c_str());
    good_ = false;
  }
  void ExpectOk(const absl::Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    good_ = false;
  }
  [[noreturn]] void End() const { _exit(good_ ? 0 : 1); }

 private:
  bool good_ = true;
};

std::string LinkOf(int fd) {
  char target[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return readlink(link.c_str(), target, sizeof(target) - 1) > 0 ? target : "nothing";
}

// Makes standard output a pipe, and keeps no other descriptor of it.
bool GiveOutputAPipe() {
  int ends[2];
  return pipe(ends) == 0 && dup2(ends[1], STDOUT_FILENO) == STDOUT_FILENO && close(ends[0]) == 0 &&
         close(ends[1]) == 0;
}

[[noreturn]] void KeepTwo() {
  Findings findings;
  const int first = eventfd(0, 0), unlisted = eventfd(0, 0);
  findings.Expect("a pipe for output", GiveOutputAPipe(), true);
  findings.Expect("a far descriptor", dup2(unlisted, 200), 200);
  findings.Expect("the farthest descriptor", dup2(unlisted, 201), 201);
  findings.ExpectOk(KeepOnly({200, -1, STDERR_FILENO, first, 200}));
  findings.Expect("what is open", OpenDescriptors(), {0, 1, 2, first, 200});
  findings.Expect("standard input", LinkOf(STDIN_FILENO), std::string("/dev/null"));
  findings.Expect("standard output", LinkOf(STDOUT_FILENO), LinkOf(STDERR_FILENO));
  findings.End();
}

TEST(ConfineTest, shouldCloseAllButTheListedDescriptors) {
  EXPECT_EXIT(KeepTwo(), ExitedWithCode(0), "");
}

[[noreturn]] void ForgetVariables() {
  setenv("BATON_READY_FD", "7", 1);
  setenv("BATON_LOCK_FD", "8", 1);
  setenv("NOTIFY_SOCKET", "/run/notify", 1);
  setenv("BATON_OF_THE_SERVICE", "stays", 1);
  ForgetKeepersVariables();
  Findings findings;
  for (const char* const name : {"BATON_READY_FD", "BATON_LOCK_FD", "NOTIFY_SOCKET"}) {
    findings.Expect(name, std::getenv(name) == nullptr, true);
  }
  findings.Expect("another", std::string(std::getenv("BATON_OF_THE_SERVICE")),
                  std::string("stays"));
  findings.End();
}

TEST(ConfineTest, shouldForgetWhatWasMeantForTheKeeperAlone) {
  EXPECT_EXIT(ForgetVariables(), ExitedWithCode(0), "");
}

void ExpectNoCapabilities(Findings& findings) {
  for (const char* const set : {"CapInh", "CapPrm", "CapEff", "CapAmb"}) {
    findings.ExpectField(set, "0000000000000000");
  }
  findings.ExpectField("NoNewPrivs", "1");
}

[[noreturn]] void StayAndConfine() {
  const uid_t uid = getuid();
  Findings findings;
  findings.ExpectOk(Confine({}));
  ExpectNoCapabilities(findings);
  findings.Expect("the user", getuid(), uid);
  findings.Expect("real-time priority", UseRealtimePriority(1).ok(), false);
  findings.End();
}

TEST(ConfineTest, shouldGiveUpCapabilitiesWhoeverItIs) {
  EXPECT_EXIT(StayAndConfine(), ExitedWithCode(0), "");
}

// Only root can become another user. Others are refused.
[[noreturn]] void BecomeAnother() {
  Findings findings;
  const bool root = geteuid() == 0;
  const absl::Status status = Confine({4321, 1234, 7});
  findings.Expect("the outcome", status.ok(), root);
  if (!root) findings.End();
  ExpectNoCapabilities(findings);
  // Real, effective, saved, of file systems.
  findings.ExpectField("Uid", "4321\t4321\t4321\t4321");
  findings.ExpectField("Gid", "1234\t1234\t1234\t1234");
  findings.ExpectField("Groups", "");
  findings.Expect("becoming root again", setuid(0), -1);
  rlimit limit = {};
  findings.Expect("the limit", getrlimit(RLIMIT_RTPRIO, &limit), 0);
  findings.Expect("the limit", limit.rlim_max <= 7, true);
  findings.Expect("its priority", UseRealtimePriority(8).ok(), false);
  findings.End();
}

TEST(ConfineTest, shouldBecomeTheUserWithoutAnyGroupOfTheKeeper) {
  EXPECT_EXIT(BecomeAnother(), ExitedWithCode(0), "");
}

[[noreturn]] void BecomeWhoItIs() {
  const uid_t uid = getuid();
  Findings findings;
  findings.ExpectOk(Confine({uid, getgid()}));
  ExpectNoCapabilities(findings);
  findings.Expect("the user", getuid(), uid);
  if (uid == 0) findings.ExpectField("Groups", "");
  findings.End();
}

// A configuration has to name the user, and only root can drop groups.
TEST(ConfineTest, shouldBecomeItsOwnUserWhoeverThatIs) {
  EXPECT_EXIT(BecomeWhoItIs(), ExitedWithCode(0), "");
}

// A child tries to trace this process and to open its memory. Any program of the same user could
// try that, and so could a worker of another service.
[[noreturn]] void BeLookedInto() {
  Findings findings;
  findings.Expect("a core file that others read", prctl(PR_GET_DUMPABLE), 1);
  findings.ExpectOk(Confine({4321, 1234, 7}));
  findings.Expect("a core file that others read", prctl(PR_GET_DUMPABLE) == 1, false);
  const std::string memory = "/proc/" + std::to_string(getpid()) + "/mem";
  const pid_t other = fork();
  if (other == 0) {
    const bool traces = ptrace(PTRACE_SEIZE, getppid(), nullptr, nullptr) == 0;
    _exit(traces || open(memory.c_str(), O_RDONLY | O_CLOEXEC) >= 0 ? 1 : 0);
  }
  int status = -1;
  findings.Expect("the other", waitpid(other, &status, 0), other);
  findings.Expect("what the other could do", status, 0);
  findings.End();
}

TEST(ConfineTest, shouldNotBeLookedIntoByOthersOfItsUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  EXPECT_EXIT(BeLookedInto(), ExitedWithCode(0), "");
}

}  // namespace
}  // namespace baton::driver_process
