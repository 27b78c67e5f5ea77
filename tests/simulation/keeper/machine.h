// A machine whose processes and time are simulated, under code that asks the kernel for them: while
// one lives, what its thread asks libc about processes, time and events is answered here. Sockets,
// pipes and files are the kernel's.
#ifndef TESTS_SIMULATION_KEEPER_MACHINE_H_
#define TESTS_SIMULATION_KEEPER_MACHINE_H_

#include <sys/epoll.h>
#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "tests/harness/stopped_clock.h"

namespace baton::simulation {

struct Process {
  pid_t pid = 0;
  internal::Program program;
  pid_t reads = 0;        // a baton-launch that reads what this process runs; 0: it is none
  FileDescriptor result;  // that it writes then
  uint64_t parent = 0;    // the keeper that has started it, by number; 0: none
  FileDescriptor reader;  // readable when it has ended: its pidfds are copies of this
  FileDescriptor writer;
  bool alive = true;
  int asked = 0;  // the worst signal that it was sent
};

class Machine {
 public:
  // What the simulation makes of the machine's events.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnStarted(Process& process) = 0;
    virtual void OnSignal(Process& process, int signal) = 0;
    // The thread's loop looks for events. `timeout_ms`: as epoll_wait's, 0 if there were some. May
    // throw.
    virtual void OnLook(int timeout_ms) = 0;
  };

  explicit Machine(Listener& listener);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Numbers the keepers: a process is reaped by the one that has started it.
  void SetKeeper(uint64_t number) { keeper_ = number; }

  Process& Start(internal::Program program);
  void End(Process& process);
  Process* Find(pid_t pid);
  // The readings that have not ended.
  std::vector<Process*> Readings();
  // Returns the processes whose pidfds are open in this process; those of living ones always are.
  std::vector<pid_t> OpenPidfds() const;

  void Pass(uint64_t milliseconds) { clock_.Pass(milliseconds * 1'000'000); }
  // Binds `socket` to a name that says whose it is: its peer sees process `pid`.
  void Name(int socket, pid_t pid);

  // ---- In the place of libc's.
  int Wait(int epoll, epoll_event* events, int most, int timeout_ms);
  pid_t Spawn(char* const arguments[]);
  int OpenPidfd(pid_t pid);
  int Signal(int pidfd, int signal);
  int Reap(int pidfd, siginfo_t* info);
  pid_t PeerOf(int socket) const;  // 0: it is not simulated
  void NoteMemoryFile(int file) { last_memory_file_ = file; }

 private:
  Process* Of(int pidfd);
  Process& Add(Process process);

  Listener& listener_;
  harness::StoppedClock clock_;
  const std::string names_;  // how the names of its sockets begin
  std::map<pid_t, Process> processes_;
  std::map<ino_t, pid_t> by_inode_;
  pid_t last_pid_ = 100'000'000;  // no process of the real machine has such a number
  uint64_t last_name_ = 0;
  uint64_t keeper_ = 0;
  int last_memory_file_ = -1;
};

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_KEEPER_MACHINE_H_
