// A worker of a simulated service, as far as its keeper goes: attaches, becomes ready, asks for
// this and that, loses its keeper and resumes its session, and ends in one way or another.
#ifndef TESTS_SIMULATION_KEEPER_SIM_WORKER_H_
#define TESTS_SIMULATION_KEEPER_SIM_WORKER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "lib/arena/arena.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"
#include "tests/simulation/context.h"
#include "tests/simulation/keeper/machine.h"
#include "tests/simulation/keeper/shard_engine.h"

namespace baton::simulation {

// The world of workers and operators.
struct Surroundings {
  Context& context;
  Machine& machine;
  ShardEngine& engine;
  const arena::Arena& arena;
  const std::string directory;  // of the service's sockets
  uint32_t listens = 0;         // that workers have asked for, each once

  // A connection to the keeper's socket `file`, which waits there when no keeper runs. None: there
  // is no socket. `pid`: whose it is; 0: this process's.
  std::optional<MessageChannel> Connect(const std::string& file, pid_t pid) const;
};

class SimWorker {
 public:
  // The last letter of a program's path says what it does.
  static constexpr char kGood = 'g', kDeaf = 'd', kNeverReady = 'n', kCrashes = 'c', kHangs = 'h';

  SimWorker(Surroundings& around, Process& process)
      : around_(around), process_(process), kind_(process.program.path().back()) {}

  // Does one thing, if there is one that it can do.
  bool Step();
  void Beat();  // time passes
  void OnSignal(int signal);

  // What may become of it. The process ends at once, or its socket is closed first.
  void Die();
  void Hang(bool hangs) { hangs_ = hangs, has_hung_ |= hangs; }
  void WantToEnd() { wants_to_end_ = true; }
  void NoteReason() { has_reason_ = true; }  // to kill it

  bool alive() const { return process_.alive; }
  bool hangs() const { return hangs_; }
  bool attached() const { return id_ != 0; }  // and knows it
  bool ready() const { return ready_; }
  // Has all that it asked for, and asks for nothing more.
  bool at_rest() const;
  // It may be that the keeper has let it go, and it has not heard of that.
  bool may_have_detached() const { return asked_ && asked_->has_detach(); }
  uint64_t id() const { return id_; }
  uint32_t slot() const { return slot_; }
  const std::string& key() const { return key_; }
  Process& process() const { return process_; }
  bool IsStopRequested() const;

 private:
  enum class Tie { kNone, kUp, kLost, kResuming };

  bool Reach();
  bool Read();
  bool GoOn();
  bool Ask(internal::WorkerRequest request);
  void OnReply(const internal::WorkerReply& reply);
  void OnResumed(const internal::WorkerReply& reply);
  void OnAttached(const internal::Attached& attached);
  void OnKeeperGone();
  bool OwnsShard() const { return !around_.engine.IsIdle(slot_, id_); }

  Surroundings& around_;
  Process& process_;
  const char kind_;
  Tie tie_ = Tie::kNone;
  std::optional<MessageChannel> channel_;
  std::optional<internal::WorkerRequest> asked_;  // and not answered
  uint64_t last_number_ = 0;
  uint64_t id_ = 0;
  uint32_t slot_ = 0;
  std::string key_;
  bool ready_ = false;
  bool hangs_ = false, has_hung_ = false;
  bool wants_to_end_ = false;
  bool has_reason_ = false;
  bool dying_ = false;
  int asks_left_ = 2;  // for what it does not need
};

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_KEEPER_SIM_WORKER_H_
