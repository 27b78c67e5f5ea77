// The brokers of a brokered service, as `baton-driver` keeps them: one that drives, and its twin. A
// dead one is replaced. Their code can be replaced while they serve.
#ifndef SUPERVISOR_DRIVER_BROKER_BROKERS_H_
#define SUPERVISOR_DRIVER_BROKER_BROKERS_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/pauses.h"
#include "supervisor/driver/broker/broker_board.h"
#include "supervisor/driver/broker/broker_forks.h"
#include "supervisor/driver/broker/broker_message.h"
#include "supervisor/driver/broker/broker_process.h"

namespace baton::driver_process {

// Thread-compatible: the driver process's one thread.
class Brokers {
 public:
  // Returns what a broker that is forked now inherits, but for its end of `messages` and the
  // lifeline.
  using Inherit = std::function<BrokerInheritance()>;
  // Called with an event for operators.
  using Tell = std::function<void(std::string_view kind, const std::string& message)>;

  // `board` outlives it. `to_be_ready_ns`: so long a broker may fill its page tables.
  Brokers(BrokerBoard* board, std::unique_ptr<BrokerForks> forks, Inherit inherit, Tell tell,
          std::function<uint64_t()> nanoseconds, uint64_t to_be_ready_ns);
  // Kills them.
  ~Brokers();

  // Forks the first two.
  absl::Status Start();
  // Replaces those that have died. Call it when one of descriptors() is readable, and now and then.
  // An error: none lives long enough to be of use, or none can be forked for seconds.
  absl::Status Turn();
  std::vector<int> descriptors() const;
  // Kills the broker that drives, or all if none does, if none has looked at the board since the
  // last call although it was told to. Returns a process that was killed, or 0. The caller calls
  // this every kHeartbeat.
  pid_t Beat();

  // Forks a broker of the code that is in place now, and has it drive as soon as it is ready: the
  // one that drives leaves between two turns. For `probation` after that, its twin is one of the
  // former code: if it ends or hangs meanwhile, that one goes on, and the new code is given up. So
  // it is if the new broker ends before it drives, or is not ready in time. kAborted: such a
  // replacement is under way. kUnavailable: no broker drives.
  absl::Status Replace(std::chrono::milliseconds probation);
  // Returns whether the one that drives was asked to leave since the last call: it looks at the
  // board when it is told to.
  bool TakeLeaveAsked() { return std::exchange(leave_asked_, false); }
  // Why the last new code was given up. Empty: it was not.
  const std::string& code_given_up() const { return code_given_up_; }

  // Sends the message to both. One that cannot take it is killed.
  void Send(const BrokerMessage& message, int descriptor = -1);

  // Called in a process that follows a dead `baton-driver`. It has the brokers of when it was
  // forked. Others end by themselves (BrokerProcess::EndIfUnknown).
  void TakeOver() {
    asked_.reset();
    changed_ = true;
  }
  // Returns whether brokers were forked, or have ended, since the last call.
  bool TakeChanged() { return std::exchange(changed_, false); }

  bool any_live() const { return CountLive() != 0; }
  // The release of the code that drives, or did. Empty: it is not known.
  std::string release() const;
  // The process that drives, and one that could at once; 0: there is none.
  pid_t driver() const;
  pid_t twin() const;

 private:
  struct Broker {
    pid_t pid = 0;
    FileDescriptor pidfd;
    FileDescriptor messages;
    uint32_t place = 0;  // on the board
    uint32_t sent = 0;   // messages
    uint64_t forked_ns = 0;
    uint64_t drove_since_ns = 0;  // 0: it has not driven, as far as is known
    bool doomed = false;          // it was killed here
    bool is_next = false;         // it has the code that is on probation
  };
  // A replacement of the brokers' code.
  struct Replacement {
    enum class Step {
      kPrepares,     // the next broker is forked, and gets ready
      kRenewsTwin,   // so is another twin, which waits behind it
      kTakesOver,    // the one that drives leaves
      kOnProbation,  // the next one drives
    };
    Step step = Step::kPrepares;
    uint64_t until_ns = 0;  // of the step; kOnProbation: it is proven then
    pid_t leaving = 0;      // was asked to
  };

  absl::Status Fork();
  // `is`: bool (const Broker&). Null: there is none.
  template <typename Is>
  const Broker* FindLive(Is is) const;
  bool IsReadyTwin(const Broker& broker) const;
  const Broker* FindNext() const;
  bool HasReadyTwin(uint64_t now) const;
  void KillTwins();
  void LookAtReplacement(uint64_t now);
  void Enter(Replacement::Step step, uint64_t now);
  void HaveDriverLeave(uint64_t now);
  void ProveCode();
  void GiveUpCode(const std::string& why);
  bool MayFork(uint64_t now) const;
  void ForkAgain(uint64_t now);
  void Kill(Broker* broker);
  void Reap();
  void OnDeath(const Broker& broker, const std::string& how);
  void TellSuccession();
  bool Drives(const Broker& broker) const;
  size_t CountLive() const;

  BrokerBoard* const board_;
  const std::unique_ptr<BrokerForks> forks_;
  const Inherit inherit_;
  const Tell tell_;
  const std::function<uint64_t()> nanoseconds_;
  const uint64_t to_be_ready_ns_;
  Pipe lifeline_;
  std::vector<Broker> brokers_;  // whose end is not known yet; at most two are not doomed
  bool changed_ = false;
  uint64_t told_generation_ = 0;
  pid_t told_driver_ = 0;          // that has taken over completely
  absl::Status last_refusal_;      // of a fork
  uint64_t refused_since_ns_ = 0;  // forks are, while there is no broker; 0: they are not
  std::string last_end_;           // of a broker
  std::string driver_end_;         // of told_driver_; empty: it is not known
  uint32_t early_deaths_ = 0;      // in a row
  uint64_t fork_at_ns_ = 0;        // a twin, not before
  uint64_t fork_again_ns_ = 0;     // any, not before: the last one failed
  BackOff pauses_;
  std::optional<Replacement> replacement_;
  std::string code_given_up_;
  std::string release_;  // of the last one that was seen to drive
  bool leave_asked_ = false;
  std::optional<uint64_t> asked_;  // value of BrokerBoard::told at the last Beat()
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_BROKER_BROKERS_H_
