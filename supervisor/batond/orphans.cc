#include "supervisor/batond/orphans.h"

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/native/unmapper.h"

namespace baton {
namespace {

constexpr char kNicName[] = "baton-nic";  // of nic_main.cc

}  // namespace

void ReapOrphans() {
  siginfo_t ended = {};  // most often nobody has
  if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
  // proc(5): the children of a thread; orphans are the main thread's.
  std::ifstream children(absl::StrCat("/proc/self/task/", getpid(), "/children"));
  for (pid_t child = 0; children >> child;) {
    std::string name;
    std::getline(std::ifstream(absl::StrCat("/proc/", child, "/comm")), name);
    if (name == native::kUnmapperName || name == kNicName) waitpid(child, nullptr, WNOHANG);
  }
}

}  // namespace baton
