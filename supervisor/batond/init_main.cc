// baton-init PROGRAM [ARGUMENT...]: the first process of a container, in which every process ends
// with the first one. Runs batond, starts it again when it dies, passes signals on to it, and reaps
// orphans. Services do not notice that batond has died, because their drivers outlive it.
//
// Kills a batond that hangs, as systemd does for WatchdogSec=. batond shows that it lives with
// sd_notify(3). It hangs if it has shown no life for WATCHDOG_USEC of the environment [60 s; 0: it
// is never killed]. If the environment has a NOTIFY_SOCKET, whoever made that watches batond, and
// this process does not.
//
// Before it ends it kills every process below it, as the end of a container does. In the machine's
// process namespace (hostPID) the kernel does not.
//
// Exit code: batond's, if it was told to stop, or ended with 0 or 2 (a wrong command line or
// configuration, which no restart heals); 128 plus the signal, if batond was killed while it was to
// stop; 1, if told to stop while batond is dead; 126, if PROGRAM cannot be run at the first start.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "lib/base/program_start.h"
#include "supervisor/batond/life_signs.h"

namespace baton {
namespace {

constexpr int kWrongConfiguration = 2;
constexpr int kCannotRun = 126;
// Pauses before a start double from the first to the longest, and begin anew after a life of that
// length.
constexpr time_t kFirstPauseMs = 100, kLongestPauseMs = 5'000, kHealthyMs = 10'000;

class Init {
 public:
  explicit Init(char** program) : program_(program) {
    sigemptyset(&signals_);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGIO}) {
      sigaddset(&signals_, signal);
    }
    signal(SIGCHLD, SIG_DFL);  // an ancestor may have set it to be ignored, which would hide ends
    sigprocmask(SIG_BLOCK, &signals_, &before_);  // sigtimedwait takes them
    prctl(PR_SET_CHILD_SUBREAPER, 1);             // needed where this is not process 1
    signs_.Listen();
  }

  // Returns the exit code.
  int Run() {
    Start();
    while (!ended_) {
      signs_.Take(child_);
      LookForHang();
      siginfo_t signal = {};
      const time_t pause = child_ > 0 ? PauseOfLife() : start_at_ms_ - Milliseconds();
      if (pause <= 0) {
        Start();
        continue;
      }
      const timespec limit = {pause / 1000, pause % 1000 * 1'000'000};
      if (sigtimedwait(&signals_, &signal, &limit) < 0) continue;
      if (signal.si_signo == SIGCHLD) {
        Reap();
      } else if (signal.si_signo != SIGIO) {
        PassOn(signal);
      }
    }
    KillWhatIsLeft();
    return exit_code_;
  }

 private:
  void Start() {
    started_ms_ = Milliseconds();
    ++starts_;
    child_ = fork();
    if (child_ < 0) return PlanStart("cannot be forked", errno);
    if (child_ > 0) return signs_.Expect();
    sigprocmask(SIG_SETMASK, &before_, nullptr);
    signs_.SetEnvironment();
    if (!former_end_.empty()) setenv(kFormerEndVariable, former_end_.c_str(), /*overwrite=*/1);
    execv(program_[0], program_);
    std::fprintf(stderr, "baton-init: cannot run %s: %s\n", program_[0], std::strerror(errno));
    _exit(kCannotRun);
  }

  time_t PauseOfLife() const {
    return hung_ ? kLongestPauseMs : std::min(kLongestPauseMs, signs_.MillisecondsLeft());
  }

  void LookForHang() {
    if (child_ <= 0 || hung_ || !signs_.HaveStopped()) return;
    hung_ = true;
    std::fprintf(stderr,
                 "baton-init: %s (pid %d) has shown no sign of life for %lld ms: it is stopped, or "
                 "waits for what does not come; it is killed\n",
                 program_[0], static_cast<int>(child_), static_cast<long long>(signs_.limit_ms()));
    kill(child_, SIGKILL);
  }

  void PlanStart(const char* how, int number) {
    child_ = 0;
    former_end_ = std::string(hung_ ? "hung, and " : "") + how + " " + std::to_string(number);
    hung_ = false;
    if (Milliseconds() - started_ms_ >= kHealthyMs) pause_ms_ = kFirstPauseMs;
    start_at_ms_ = Milliseconds() + pause_ms_;
    std::fprintf(stderr, "baton-init: %s %s; it is started again in %lld ms\n", program_[0],
                 former_end_.c_str(), static_cast<long long>(pause_ms_));
    pause_ms_ = std::min(2 * pause_ms_, kLongestPauseMs);
  }

  void Reap() {
    int status = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid == child_) OnEnd(status);
    }
  }

  void OnEnd(int status) {
    const bool killed = WIFSIGNALED(status);
    const int number = killed ? WTERMSIG(status) : WEXITSTATUS(status);
    const char* how = killed ? "was killed by signal" : "ended with exit code";
    const bool final =
        number == 0 || number == kWrongConfiguration || (number == kCannotRun && starts_ == 1);
    if (!stopping_ && (killed || !final)) return PlanStart(how, number);
    ended_ = true;
    exit_code_ = killed ? 128 + number : number;
    if (exit_code_ == 0) return;
    std::fprintf(stderr, "baton-init: %s %s %d; what it has left is killed\n", program_[0], how,
                 number);
  }

  void PassOn(const siginfo_t& signal) {
    const bool stops = signal.si_signo == SIGTERM || signal.si_signo == SIGINT;
    stopping_ = stopping_ || stops;
    if (child_ > 0) {
      // A terminal's signal comes from the kernel and has reached batond, too. A second one would
      // make batond kill what is left.
      if (signal.si_code != SI_KERNEL) kill(child_, signal.si_signo);
    } else if (stops) {
      std::fprintf(stderr,
                   "baton-init: told to stop while %s is dead; what it has left is killed\n",
                   program_[0]);
      ended_ = true;
    }
  }

  // When a process can be waited for, its children are already this process's. Returns when there
  // is no child left, or none that may be killed.
  static void KillWhatIsLeft() {
    for (bool killed = true; killed;) {
      killed = false;
      std::ifstream children("/proc/self/task/" + std::to_string(getpid()) + "/children");
      for (pid_t child = 0; children >> child;) {
        if (kill(child, SIGKILL) == 0 && waitpid(child, nullptr, 0) == child) killed = true;
      }
    }
  }

  char** const program_;
  LifeSigns signs_;
  std::string former_end_;  // how the last child ended; empty: there was none
  bool hung_ = false;       // the child was killed because it hung
  sigset_t signals_, before_;
  pid_t child_ = 0;  // 0: the next is started at start_at_ms_
  time_t started_ms_ = 0, start_at_ms_ = 0, pause_ms_ = kFirstPauseMs;
  bool stopping_ = false, ended_ = false;
  int starts_ = 0, exit_code_ = 1;
};

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: baton-init PROGRAM [ARGUMENT...]\n");
    return baton::kWrongConfiguration;
  }
  return baton::Init(argv + 1).Run();
}
