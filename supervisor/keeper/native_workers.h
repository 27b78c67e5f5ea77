// The processes of a native service: forks them, and others in the place of those that end. A
// program is a shared object with its arguments.
#ifndef SUPERVISOR_KEEPER_NATIVE_WORKERS_H_
#define SUPERVISOR_KEEPER_NATIVE_WORKERS_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/event_log.h"
#include "supervisor/keeper/fork_worker.h"
#include "supervisor/keeper/held_workers.h"
#include "supervisor/keeper/lifeline.h"
#include "supervisor/keeper/native_engine.h"
#include "supervisor/keeper/policies.h"
#include "supervisor/keeper/program.h"
#include "supervisor/keeper/restart_delay.h"
#include "supervisor/keeper/worker_sessions.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class NativeWorkers final : public WorkerPrograms {
 public:
  // All references outlive it. `lifeline`: what the workers' lives hang on. `output`: where they
  // print.
  NativeWorkers(boost::asio::io_context& loop, const internal::KeeperConfig& config,
                NativeEngine& engine, WorkerSessions& sessions, const Policies& policies,
                EventLog& events, const Lifeline& lifeline, int output);
  ~NativeWorkers() override;  // kills them

  // Forks until there are as many of the program that serves as the configuration says.
  void KeepRunning();

  // From now on batond is told of every process that is forked, before it can attach. `held` is
  // what `workers` puts them in.
  void HoldProcesses(HeldDescriptors* held, HeldWorkers workers);

  absl::Status Check(const std::string& path) const override;
  void Read(pid_t pid, uint32_t uid, uint32_t gid, ProgramDone done) override;
  absl::StatusOr<StartedProgram> Start(const internal::Program& program) override;
  void OnServing(const internal::Program& program) override;

 private:
  struct Process {
    explicit Process(boost::asio::io_context& loop) : pidfd(loop), overdue(loop) {}
    NativeProgram program;
    bool on_trial = false;  // somebody else reaps it
    uint64_t worker_id = 0;
    uint64_t forked_ns = 0;
    boost::asio::posix::stream_descriptor pidfd;
    boost::asio::steady_timer overdue;  // once it was asked to end
  };

  NativeProgram Native(const internal::Program& program) const;
  absl::StatusOr<StartedProgram> Fork(const NativeProgram& program, bool on_trial);
  void Hold(uint32_t slot, uint64_t worker_id, int pidfd);
  void AwaitHeld();
  void TellNotHeld(uint64_t worker_id, std::string_view why);
  void OnEnded(pid_t pid);
  void End(Process& process);
  void StartLater();
  std::chrono::milliseconds stop_timeout() const {
    return std::chrono::milliseconds(config_.service().stop_timeout_ms());
  }

  boost::asio::io_context& loop_;
  NativeProgram program_;  // that serves
  const uint32_t wanted_;
  const internal::KeeperConfig& config_;
  NativeEngine& engine_;
  WorkerSessions& sessions_;
  const Policies& policies_;
  EventLog& events_;
  const Lifeline& lifeline_;
  const int output_;
  HeldDescriptors* held_ = nullptr;  // by batond
  std::optional<HeldWorkers> held_workers_;
  boost::asio::posix::stream_descriptor held_replies_;
  boost::asio::steady_timer held_overdue_;
  bool awaiting_held_ = false;
  boost::asio::steady_timer pause_;
  RestartDelay pause_length_;
  bool pausing_ = false;
  std::map<pid_t, std::unique_ptr<Process>> processes_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_NATIVE_WORKERS_H_
