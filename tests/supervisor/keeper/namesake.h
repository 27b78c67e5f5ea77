// A process that has the number of one that is dead.
#ifndef TESTS_SUPERVISOR_KEEPER_NAMESAKE_H_
#define TESTS_SUPERVISOR_KEEPER_NAMESAKE_H_

#include <linux/sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

namespace baton::keeper::testing {

class Namesake {
 public:
  explicit Namesake(pid_t pid) {
    clone_args arguments = {};
    arguments.exit_signal = SIGCHLD;
    arguments.set_tid = reinterpret_cast<uint64_t>(&pid);
    arguments.set_tid_size = 1;
    pid_ = static_cast<pid_t>(syscall(SYS_clone3, &arguments, sizeof(arguments)));
    if (pid_ == 0) {
      for (;;) pause();
    }
  }
  ~Namesake() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Namesake(const Namesake&) = delete;
  Namesake& operator=(const Namesake&) = delete;

  bool exists() const { return pid_ > 0; }  // false: no right to choose a process's number
  bool alive() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }

 private:
  pid_t pid_;
};

}  // namespace baton::keeper::testing

#endif  // TESTS_SUPERVISOR_KEEPER_NAMESAKE_H_
