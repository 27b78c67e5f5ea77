// baton-init PROGRAM [ARGUMENT...]: the first process of a container, in which every process ends
// with the first one. Runs batond, starts it again when it dies, passes signals on to it, and reaps
// orphans. Services do not notice that batond has died, because their drivers outlive it.
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
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace {

constexpr int kWrongConfiguration = 2;
constexpr int kCannotRun = 126;
// Pauses before a start double from the first to the longest, and begin anew after a life of that
// length.
constexpr time_t kFirstPauseMs = 100, kLongestPauseMs = 5'000, kHealthyMs = 10'000;

time_t Milliseconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

class Init {
 public:
  explicit Init(char** program) : program_(program) {
    sigemptyset(&signals_);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) {
      sigaddset(&signals_, signal);
    }
    signal(SIGCHLD, SIG_DFL);  // an ancestor may have set it to be ignored, which would hide ends
    sigprocmask(SIG_BLOCK, &signals_, &before_);  // sigtimedwait takes them
    prctl(PR_SET_CHILD_SUBREAPER, 1);             // needed where this is not process 1
  }

  // Returns the exit code.
  int Run() {
    Start();
    while (!ended_) {
      siginfo_t signal = {};
      const time_t pause = child_ > 0 ? kLongestPauseMs : start_at_ms_ - Milliseconds();
      if (pause <= 0) {
        Start();
        continue;
      }
      const timespec limit = {pause / 1000, pause % 1000 * 1'000'000};
      if (sigtimedwait(&signals_, &signal, &limit) < 0) continue;
      if (signal.si_signo == SIGCHLD) {
        Reap();
      } else {
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
    if (child_ > 0) return;
    sigprocmask(SIG_SETMASK, &before_, nullptr);
    execv(program_[0], program_);
    std::fprintf(stderr, "baton-init: cannot run %s: %s\n", program_[0], std::strerror(errno));
    _exit(kCannotRun);
  }

  void PlanStart(const char* how, int number) {
    child_ = 0;
    if (Milliseconds() - started_ms_ >= kHealthyMs) pause_ms_ = kFirstPauseMs;
    start_at_ms_ = Milliseconds() + pause_ms_;
    std::fprintf(stderr, "baton-init: %s %s %d; it is started again in %lld ms\n", program_[0], how,
                 number, static_cast<long long>(pause_ms_));
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
  sigset_t signals_, before_;
  pid_t child_ = 0;  // 0: the next is started at start_at_ms_
  time_t started_ms_ = 0, start_at_ms_ = 0, pause_ms_ = kFirstPauseMs;
  bool stopping_ = false, ended_ = false;
  int starts_ = 0, exit_code_ = 1;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: baton-init PROGRAM [ARGUMENT...]\n");
    return kWrongConfiguration;
  }
  return Init(argv + 1).Run();
}
