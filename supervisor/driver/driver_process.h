// Runs the process of one service's driver: executes the orders of the service's keeper, sends it
// news, and starts the next keeper when one has ended. The engine, or the native workers, go on
// meanwhile.
#ifndef SUPERVISOR_DRIVER_DRIVER_PROCESS_H_
#define SUPERVISOR_DRIVER_DRIVER_PROCESS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/latency_histogram.h"
#include "proto/baton/internal/driver.pb.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/driver/batond_link.h"
#include "supervisor/driver/driver_host.h"
#include "supervisor/driver/host_twin.h"
#include "supervisor/driver/keeper/dealings.h"
#include "supervisor/driver/keeper/held_entries.h"
#include "supervisor/driver/keeper/keeper_process.h"

namespace baton::driver_process {

// Thread-compatible: the main thread, which never blocks on the keeper or on batond.
class DriverProcess {
 public:
  // Blocks the signals that Run() waits for, in this thread and in all that it starts later.
  static void BlockStopSignals();

  // REQUIRES: `host` is not started. `batond` outlives this; null: there is none. `program` and
  // `network`: see KeeperProcess.
  DriverProcess(const internal::KeeperConfig& config, std::unique_ptr<DriverHost> host,
                BatondLink* batond, const std::string& program, int network);

  // Starts the first keeper, and returns when SIGTERM or SIGINT has come and the keeper has ended.
  // An error: the device was lost, or no keeper was ever ready. REQUIRES: BlockStopSignals()
  // was called before there was another thread.
  absl::Status Run();
  bool ready_once() const { return ready_once_; }  // a keeper was ready

 private:
  using Clock = std::chrono::steady_clock;

  void StartKeeper();
  void OnKeeperEnded(const std::string& end, int exit_code);
  void ReportGivenUp(const std::string& why);
  void SetAsideSettings();
  // Counts the keeper that has ended. Returns true if another one in a row has died of the same
  // thing.
  bool Blame(const std::string& how);
  void SetAside(const std::string& key, const std::string& why);
  // Asks the keeper to end.
  void Stop();
  // Has Run return `why` once the keeper has ended.
  void EndFor(const absl::Status& why);

  void MakeTwin();
  // Replaces the twin by one that has what this process has now. The twin calls `begin` first.
  // Returns true in the twin, when it follows: then its keeper is dead, and nothing that it was
  // about to do counts. If no twin can be forked, the former one stays, unless `must`: it does not
  // know what others are about to learn.
  bool RenewTwin(
      bool must, const std::function<void()>& begin = [] {});
  void Follow();
  bool MayRenewTwin() const { return twin_.has_value() && !stopping_; }
  void LookAtTwin();

  void ServeOrders();
  void Answer(const internal::DriverOrder& order, std::vector<FileDescriptor> descriptors);
  // Both take descriptors of the answer. The driver keeps those in `sent` open, and closes those in
  // `given` once the answer is queued.
  internal::DriverAnswer Execute(const internal::DriverOrder& order,
                                 std::vector<FileDescriptor> descriptors, std::vector<int>* sent,
                                 std::vector<FileDescriptor>* given);
  void Introduce(internal::Introduced* introduced, std::vector<int>* sent);
  void SendNews();
  void Await();
  void Beat();
  void LookForHang();
  void Report(const char* kind, const std::string& message);

  internal::KeeperConfig config_;  // which the next keeper reads
  const std::unique_ptr<DriverHost> host_;
  BatondLink* const batond_;
  KeeperProcess keeper_;
  HeldEntries held_;
  Dealings dealings_;
  uint32_t unexplained_crashes_ = 0;   // of keepers in a row that lived shortly
  bool short_of_descriptors_ = false;  // for an answer, which explains a keeper's end
  uint32_t entries_set_aside_ = 0;
  std::optional<HostTwin> twin_;  // none: nobody can follow this process
  std::optional<Clock::time_point> renew_twin_at_;
  absl::Status take_over_begun_;
  bool twin_refused_ = false;  // the last could not be forked, and that was reported
  FileDescriptor signals_, news_wake_;
  bool ready_once_ = false;
  bool stopping_ = false;
  bool keeper_hung_ = false;  // the keeper hangs, or did until it ended
  absl::Status end_;
  std::optional<std::string> former_end_;  // how the last keeper ended, until another follows
  Clock::time_point ended_at_;             // when the last keeper ended
  LatencyHistogram without_keeper_;        // from a keeper's end to the next one's first order
  std::string given_up_why_;               // why keepers' last new program was given up
  std::optional<Clock::time_point> start_at_;
  Clock::time_point kill_at_, beat_at_, processes_beat_at_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_DRIVER_PROCESS_H_
