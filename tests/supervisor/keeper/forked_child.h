// Makes processes for tests: one that a test forks, and one that has the number of a dead one.
#ifndef TESTS_SUPERVISOR_KEEPER_FORKED_CHILD_H_
#define TESTS_SUPERVISOR_KEEPER_FORKED_CHILD_H_

#include <linux/sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>

#include "lib/base/file_descriptor.h"

namespace baton::keeper::testing {

// A process that a test forks before it has any thread, for what has to happen in another process.
class ForkedChild {
 public:
  // The child's side. Its body runs in the child; the child ends when it returns.
  class Parent {
   public:
    bool Await() const;  // until the test says Go; false when the test is over
    void Tell(const std::string& line) const;

   private:
    friend class ForkedChild;
    FileDescriptor in_, out_;
  };

  explicit ForkedChild(const std::function<void(const Parent&)>& body);
  // The child tells "no right" if it may not make a pid namespace; else `body` runs in the first
  // process of a new one, as in a container.
  static ForkedChild InPidNamespace(const std::function<void(const Parent&)>& body);
  ~ForkedChild();  // kills it

  void Go() const;
  std::string Hear() const;  // what the child told next; "" when it has ended
  int Wait();                // until it has ended; its wait status
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
  int status_ = -1;
  bool reaped_ = false;
  FileDescriptor in_, out_;
};

// A process that has the number of one that is dead.
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

#endif  // TESTS_SUPERVISOR_KEEPER_FORKED_CHILD_H_
