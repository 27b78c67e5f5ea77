// The brokers of a brokered service, as `baton-driver` keeps them: one that drives, and its twin. A
// dead one is replaced.
#ifndef SUPERVISOR_DRIVER_BROKER_BROKERS_H_
#define SUPERVISOR_DRIVER_BROKER_BROKERS_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/pauses.h"
#include "supervisor/driver/broker/broker_board.h"
#include "supervisor/driver/broker/broker_message.h"
#include "supervisor/driver/broker/broker_process.h"
#include "supervisor/driver/workers/forked_child.h"

namespace baton::driver_process {

// Thread-compatible: the driver process's one thread.
class Brokers {
 public:
  // Returns what a broker that is forked now inherits, but for its end of `messages` and the
  // lifeline.
  using Inherit = std::function<BrokerInheritance()>;
  // Called with an event for operators.
  using Tell = std::function<void(std::string_view kind, const std::string& message)>;
  // Runs its argument where brokers are to run (ThreadsOn).
  using Place = std::function<void(const std::function<void()>&)>;

  // `board` outlives it.
  Brokers(BrokerBoard* board, Inherit inherit, Place place, Tell tell);
  // Kills them.
  ~Brokers();

  // Forks the first two.
  absl::Status Start();
  // Replaces those that have died. Call it when one of descriptors() is readable, and now and then.
  // An error: none lives long enough to be of use.
  absl::Status Turn();
  std::vector<int> descriptors() const;
  // Kills a broker that drives and has not looked at the board since the last call although it was
  // told to. Returns its process, or 0. The caller calls this every kHeartbeat.
  pid_t Beat();

  // Sends the message to both. One that cannot take it is killed.
  void Send(const BrokerMessage& message, int descriptor = -1);

  bool any_live() const { return !brokers_.empty(); }
  pid_t driver() const;  // process that drives; 0: none does
  pid_t twin() const;    // process that waits; 0: there is none

 private:
  struct Broker {
    pid_t pid = 0;
    FileDescriptor pidfd;
    FileDescriptor messages;
    uint32_t sent = 0;  // messages
    uint64_t forked_ns = 0;
  };

  absl::Status Fork();
  absl::StatusOr<ForkedChild> ForkPlaced(BrokerInheritance inheritance);
  void Reap();
  void OnDeath(const Broker& broker, const std::string& how);
  void TellSuccession();
  bool Drives(const Broker& broker) const;

  BrokerBoard* const board_;
  const Inherit inherit_;
  const Place place_;
  const Tell tell_;
  Pipe lifeline_;
  std::vector<Broker> brokers_;  // that live, at most two
  uint64_t told_generation_ = 0;
  pid_t told_driver_ = 0;       // that has taken over completely
  std::string last_end_;        // of the broker that drove last
  uint32_t early_deaths_ = 0;   // in a row
  uint64_t fork_at_ns_ = 0;     // a twin, not before
  uint64_t fork_again_ns_ = 0;  // any, not before: the last one failed
  BackOff pauses_;
  std::optional<uint64_t> asked_;  // value of BrokerBoard::told at the last Beat()
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_BROKER_BROKERS_H_
