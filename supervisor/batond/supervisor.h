#ifndef SUPERVISOR_BATOND_SUPERVISOR_H_
#define SUPERVISOR_BATOND_SUPERVISOR_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/internal/batond.pb.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/batond/child.h"
#include "supervisor/batond/control_requests.h"
#include "supervisor/batond/event_history.h"
#include "supervisor/batond/own_program.h"
#include "supervisor/batond/rejoin_server.h"
#include "supervisor/batond/reload.h"
#include "supervisor/batond/state_directory.h"
#include "supervisor/batond/stay_pipe.h"
#include "supervisor/config/reload.h"

namespace baton {

struct SupervisorOptions {
  v1::Config config;          // complete
  OwnProgram* own = nullptr;  // must outlive the supervisor
  std::string libexec;        // directory of baton-driver, baton-keeper and baton-control
  // Applies to each child. A driver with a large arena has longer (StartTimeout).
  std::chrono::milliseconds start_timeout{};
  std::chrono::milliseconds stop_timeout{};  // of all together
  // If set, a child that does not become ready at its first start ends batond. Otherwise the child
  // is started again and again, like one that dies later, and the others serve meanwhile.
  bool strict = false;
  std::chrono::milliseconds hang_timeout{};  // a child without a sign of life for so long hangs
  // If set, drivers go on when this batond is told to stop. They end when the service manager lets
  // go of the pipe that it keeps for the next batond (StayPipe).
  bool keep_services = false;
  std::optional<ProgramUser> control_user;  // [batond's]
  std::optional<ProgramUser> nic_user;      // of the soft device's NICs [batond's]
  std::optional<ProgramUser> broker_user;   // [batond's]
  std::string audit_directory;              // control keeps its trail there [the state directory]
  // Reads the configuration again, completed. Null: there is no file to read.
  std::function<absl::StatusOr<v1::Config>()> read_config;
};

// batond: keeps one driver per service and one control running until it is told to stop.
// Single-threaded.
class Supervisor {
 public:
  // `state` is kept open; it must outlive the supervisor.
  Supervisor(SupervisorOptions options, const StateDirectory& state);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Returns when all children are gone: OK after SIGTERM or SIGINT, an error if options.strict is
  // set and one of them did not become ready at its first start.
  absl::Status Run();

  // Call it after Run. Returns true if this process has to execute the program that is at batond's
  // path now.
  bool is_replaced() const { return replaced_; }
  // Call it before another program is executed in this process. After it the supervisor can only be
  // destroyed.
  void LeaveToProgram() { StayPipe::Leave(stay_ ? &*stay_ : nullptr, options_.own); }

 private:
  // When every driver is ready or has failed, control is started, unless a former batond's has been
  // taken in. When control is ready or has failed, batond is ready. When batond stops, control ends
  // first, so that nobody asks keepers that are ending. It goes on where drivers do.
  enum class Phase {
    kStartingDrivers,
    kStartingControl,
    kRunning,
    kStoppingControl,
    kStoppingDrivers
  };

  Child::Plan PlanOf(const v1::ServiceConfig& service);
  Child& AddDriver(const v1::ServiceConfig& service);
  Child* FindDriver(const std::string& service) const;
  void AddControl();
  void StartDrivers();
  absl::StatusOr<std::vector<FileDescriptor>> TakeIn(const internal::RejoinRequest& request,
                                                     SpawnedProcess process, FileDescriptor lock);
  absl::StatusOr<std::vector<FileDescriptor>> TakeInControl(const internal::RejoinRequest& request,
                                                            SpawnedProcess process,
                                                            FileDescriptor lock);
  // Returns the configuration that is in force from now on, for control.
  internal::BatondReply NewsForControl();
  std::chrono::microseconds LongestStart() const;
  void WatchSignals();
  // `status` is that of the child's first start.
  void OnStarted(Child& child, const absl::Status& status);
  void Advance();
  void WatchReload();
  void ReloadForSignal();
  void Reload(const internal::ReloadConfig& request, ReloadUnderWay::Done done);
  void BeginReload(TakenConfig taken, ReloadUnderWay::Done done);
  // `running`: the service as it was. The keeper counts as unanswered until it answers.
  void AskKeeper(const v1::ServiceConfig& running, const v1::ServiceConfig& wanted);
  void FinishReload();
  void CallKeeperOf(const v1::ServiceConfig& wanted,
                    std::function<void(absl::StatusOr<internal::ConfigTaken>)> done);
  void Apply(const TakenConfig& taken);
  void RemoveDriver(const std::string& service);
  void KillLeavingLater();
  void RestartControlSoon();
  void ReplaceProgram(const internal::ReplaceProgram& request, ControlRequests::Done done);
  void ReplaceOwnProgramSoon();
  void LimitProbation(std::chrono::milliseconds limit);
  void Note(const std::string& service, std::string kind, const std::string& message);
  void NoteSuccession();
  void TellEvents();
  bool services_go_on() const;
  bool control_goes_on() const { return services_go_on() && control_->goes_on(); }
  void GoOnWithConfigOf(const internal::KeeperConfig& config, Child& driver);
  void OnRejoinedAnswered(const std::string& name,
                          const absl::StatusOr<internal::ConfigTaken>& answer);
  absl::StatusOr<FileDescriptor> OpenForControl(const internal::OpenFile& request) const;
  internal::ControlConfig ControlConfig() const;
  void LetControlConnect(const std::string& service) const;
  void OnGone(Child& child, const std::string& how);
  void AnnounceReady() const;
  std::string Health() const;
  std::string JoinedNames() const;
  void FailStart(const absl::Status& status);
  void Stop();
  void AdvanceStop();
  void LeaveDrivers();
  void KillAll();
  bool stopping() const { return phase_ >= Phase::kStoppingControl; }

  SupervisorOptions options_;
  // The number of the configuration that was sent to control last. It begins with the time, so that
  // it is above that of the batond before.
  uint64_t revision_;
  const StateDirectory& state_;
  boost::asio::io_context io_{1};
  boost::asio::signal_set signals_;
  boost::asio::signal_set reload_signal_;
  boost::asio::steady_timer stop_timer_;
  boost::asio::steady_timer watchdog_timer_;
  std::optional<StayPipe> stay_;  // none: drivers end with an orderly stop
  std::optional<ReloadUnderWay> reload_;
  bool reload_again_ = false;  // another reload has to follow reload_
  // Services whose keepers have not answered. The next reload asks them, though nothing differs.
  std::set<std::string> ask_again_;
  std::vector<std::unique_ptr<Child>> drivers_;
  std::vector<std::unique_ptr<Child>> leaving_;  // drivers of services that were removed
  boost::asio::steady_timer control_timer_;      // control's restart
  boost::asio::steady_timer leaving_timer_;      // when those that do not end are killed
  RejoinServer rejoins_, control_rejoins_;
  ProgramCheck program_check_;
  bool replaced_ = false;
  boost::asio::steady_timer program_timer_;  // batond's own program is replaced, or on probation
  std::unique_ptr<Child> control_;
  std::string control_given_up_;  // why its new program was given up; empty: it was not
  std::unique_ptr<ControlRequests> control_requests_;  // of the control that was started last
  EventHistory events_;
  Phase phase_ = Phase::kStartingDrivers;
  absl::Status result_;
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_SUPERVISOR_H_
