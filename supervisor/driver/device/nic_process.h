// baton-nic, the process that executes the queues of a service on the soft device.
#ifndef SUPERVISOR_DRIVER_DEVICE_NIC_PROCESS_H_
#define SUPERVISOR_DRIVER_DEVICE_NIC_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/nic/call_socket.h"
#include "lib/verbs/verbs.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/driver/workers/confine.h"

namespace baton::driver_process {

// A NIC that was started. It ends with the last process that has this object, or with its last
// client. Thread-compatible.
class NicProcess {
 public:
  NicProcess(pid_t pid, FileDescriptor pidfd, FileDescriptor lifeline, nic::CallSocket calls)
      : pid_(pid),
        pidfd_(std::move(pidfd)),
        lifeline_(std::move(lifeline)),
        calls_(std::move(calls)) {}

  // Beat() kills a NIC that has not answered for this many calls in a row.
  static constexpr uint32_t kSilentBeats = 5;

  // Asks the NIC for a sign of life, and does not wait for the answer. Kills a NIC that did not
  // answer, and returns true if it has just done so: the device then reports that it is lost. The
  // caller calls this every kHeartbeat.
  bool Beat();

  // Called in a process that follows the dead one from which it was forked.
  absl::Status TakeOver() {
    asked_ = false;
    silent_beats_ = 0;
    BATON_RETURN_IF_ERROR(calls_.BeginTakeOver());
    return calls_.TakeOver();
  }

  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
  const FileDescriptor pidfd_;
  const FileDescriptor lifeline_;  // writing end (native/lifeline.h)
  nic::CallSocket calls_;
  bool asked_ = false;  // the last question had no answer yet
  uint32_t silent_beats_ = 0;
};

struct NicPlan {
  std::string program;  // path of baton-nic (SpawnPlan::Spawn)
  Identity identity;
  v1::FaultPlan faults;             // valid
  uint32_t yield_microseconds = 0;  // before it sleeps; 0: as it does by itself
  bool forks = false;               // processes that are forked from this one use the device
};

struct StartedNic {
  std::unique_ptr<verbs::Device> device;  // the soft device that uses this NIC
  std::unique_ptr<NicProcess> process;
};

absl::StatusOr<StartedNic> StartNic(const NicPlan& plan);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_DEVICE_NIC_PROCESS_H_
