#include "supervisor/batond/orphans.h"

#include <sys/wait.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/native/unmapper.h"

namespace baton {

void ReapOrphans() {
  for (;;) {
    siginfo_t ended = {};
    if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
    std::string name;
    std::getline(std::ifstream(absl::StrCat("/proc/", ended.si_pid, "/comm")), name);
    // The next look comes when whoever waits for this one has reaped it.
    if (name != native::kUnmapperName) return;
    waitpid(ended.si_pid, nullptr, WNOHANG);
  }
}

}  // namespace baton
