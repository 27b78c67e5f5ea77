#include "supervisor/batond/child.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <syslog.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <fstream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/base/heartbeat.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"
#include "lib/log/log.h"
#include "lib/native/mappings.h"
#include "supervisor/batond/open_within.h"
#include "supervisor/config/control_socket.h"

namespace baton {
namespace {

// The pauses between starts begin anew after a process has lived that long.
constexpr std::chrono::seconds kHealthyAfter(10);
constexpr std::chrono::milliseconds kReapPause(100);
constexpr char kNicName[] = "baton-nic";  // the process name that nic_main.cc sets

}  // namespace

Child::Child(boost::asio::io_context& io, Plan plan, Callbacks callbacks)
    : plan_(std::move(plan)),
      callbacks_(std::move(callbacks)),
      program_(plan_.program, plan_.helpers),
      lock_(plan_.lock),
      end_(io),
      readiness_(io),
      timer_(io),
      heart_timer_(io),
      reap_timer_(io) {
  (void)program_.ToRun();  // opens the file that is there now; Start reports errors
}

Child::~Child() {
  if (end_.is_open()) end_.release();
}

absl::Status Child::Start() {
  if (alive()) return absl::OkStatus();
  CancelStart();
  BATON_RETURN_IF_ERROR(FindFormer());
  if (alive()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(Pipe readiness, MakePipe());
  readiness_.assign(readiness.reading.Release());
  if (absl::Status status = SpawnWith(readiness.writing.get()); !status.ok()) {
    readiness_.close();
    return status;
  }
  ready_ = told_to_end_ = awaited_ = keeper_hangs_ = false;
  started_here_ = true;
  outlives_us_ = plan_.outlives_us == Plan::Outlives::kAlways;
  on_probation_ = program_.on_probation();
  started_ = std::chrono::steady_clock::now();
  Log(spdlog::level::info, absl::StrCat("started, pid ", process_.pid));
  WatchEnd();
  WatchReadiness();
  After(timer_, plan_.start_timeout, [this] {
    if (ready_ || !alive()) return;
    Log(spdlog::level::err,
        absl::StrCat("not ready after ", plan_.start_timeout.count(), " ms, killing it"));
    Signal(SIGKILL);
  });
  return absl::OkStatus();
}

absl::Status Child::FindFormer() {
  absl::Status locked = lock_.Take();
  if (locked.ok()) return locked;
  std::optional<SpawnedProcess> former = lock_.Holder({plan_.program, plan_.former_program});
  if (!former) return locked;
  GoOnWith(*std::move(former));
  return absl::OkStatus();
}

// The child soon asks to be taken in (Rejoin), unless it hangs.
void Child::GoOnWith(SpawnedProcess process) {
  process_ = std::move(process);
  ready_ = on_probation_ = told_to_end_ = keeper_hangs_ = started_here_ = false;
  awaited_ = outlives_us_ = true;
  // A twin goes on under the policy that its original told of.
  if (!former_end_) kill_hung_ = plan_.kill_hung;
  started_ = std::chrono::steady_clock::now();
  Log(spdlog::level::info, former_end_
                               ? absl::StrCat("its twin goes on, pid ", process_.pid)
                               : absl::StrCat("outlived the former batond, pid ", process_.pid));
  WatchEnd();
  WatchHeart();
}

absl::StatusOr<std::vector<FileDescriptor>> Child::Rejoin(SpawnedProcess process,
                                                          FileDescriptor lock) {
  if (alive() && process_.pid != process.pid) {
    return absl::FailedPreconditionError(
        absl::StrCat("process ", process_.pid, " is the ", plan_.name));
  }
  BATON_RETURN_IF_ERROR(lock_.Receive(std::move(lock)));
  if (!alive()) {
    CancelStart();
    GoOnWith(std::move(process));
  }
  std::vector<FileDescriptor> ends(2);
  BATON_ASSIGN_OR_RETURN(ends[0], MakeHeart());
  // A driver of the release before expects a store channel here. With a closed one it logs that
  // batond holds nothing for it, and goes on.
  BATON_ASSIGN_OR_RETURN(SocketPair talk, MakeSocketPair(SOCK_STREAM));
  ends[1] = std::move(talk.theirs);
  if (plan_.talk != nullptr) plan_.talk(std::move(talk.ours));
  if (plan_.stay >= 0) ends.push_back(CopyOf(plan_.stay));
  silent_looks_ = 0;
  if (!former_end_) kill_hung_ = plan_.kill_hung;
  outlives_us_ = true;
  OnReady();
  return ends;
}

void Child::Log(spdlog::level::level_enum level, const std::string& what) const {
  log::Write(level, {.service = plan_.service}, absl::StrCat(plan_.name, ": ", what));
}

void Child::Report(spdlog::level::level_enum level, std::string kind, const std::string& what) {
  std::string message = absl::StrCat(plan_.name, ": ", what);
  log::Write(level, {.service = plan_.service, .kind = kind}, message);
  if (callbacks_.event != nullptr) callbacks_.event(std::move(kind), std::move(message));
}

absl::Status Child::SpawnWith(int ready_write_end) {
  SpawnRequest request;
  request.program = plan_.program;
  BATON_ASSIGN_OR_RETURN(request.file, program_.ToRun());
  request.file->GiveHelpers(&request.descriptors);
  request.input = plan_.input;
  request.descriptors.emplace_back("BATON_READY_FD", ready_write_end);
  const bool always = plan_.outlives_us == Plan::Outlives::kAlways;
  request.dies_with_us = !always;
  request.descriptors.emplace_back(always ? kLockVariable : kControlLockVariable,
                                   lock_.descriptor());
  BATON_ASSIGN_OR_RETURN(const FileDescriptor pid_file, lock_.OpenForNaming());
  request.pid_file = pid_file.get();
  if (plan_.stay >= 0) request.descriptors.emplace_back(kStayVariable, plan_.stay);
  const FileDescriptor log = OpenLog();
  request.standard_error = log.get();
  kill_hung_ = plan_.kill_hung;
  BATON_ASSIGN_OR_RETURN(const FileDescriptor heart_end, MakeHeart());
  request.descriptors.emplace_back(kHeartbeatVariable, heart_end.get());
  request.user = plan_.user;
  GivenDescriptors given;
  if (plan_.give != nullptr) {
    BATON_ASSIGN_OR_RETURN(given, plan_.give());
  }
  for (const auto& [name, descriptor] : given) {
    request.descriptors.emplace_back(name, descriptor.get());
  }
  SocketPair talk;
  if (plan_.talk != nullptr) {
    BATON_ASSIGN_OR_RETURN(talk, MakeSocketPair(SOCK_STREAM));
    request.descriptors.emplace_back(kBatondVariable, talk.theirs.get());
  }
  BATON_ASSIGN_OR_RETURN(process_, Spawn(request));
  if (plan_.talk != nullptr) plan_.talk(std::move(talk.ours));
  return absl::OkStatus();
}

absl::StatusOr<FileDescriptor> Child::MakeHeart() {
  // Neither end blocks: the child writes whether or not batond reads.
  BATON_ASSIGN_OR_RETURN(Pipe pipe, MakePipe(O_NONBLOCK));
  heart_ = std::move(pipe.reading);
  return std::move(pipe.writing);
}

absl::StatusOr<FileDescriptor> OpenServiceLog(const std::string& log, const std::string& service) {
  if (log == "journal") {
    const int stream =
        sd_journal_stream_fd(absl::StrCat("baton-", service).c_str(), LOG_INFO, /*prefix=*/0);
    if (stream < 0) return ErrnoStatus(-stream, "log: systemd's journal (does it run here?)");
    return FileDescriptor(stream);
  }
  absl::StatusOr<FileDescriptor> file = OpenWithin(log, O_WRONLY | O_APPEND | O_CREAT, 0640);
  if (file.ok()) return file;
  return absl::Status(file.status().code(), absl::StrCat("log: ", file.status().message()));
}

// Opens the log anew at each start, because a file may have been moved away. Returns none if it
// cannot be opened, because the service runs all the same.
FileDescriptor Child::OpenLog() const {
  if (plan_.log.empty()) return FileDescriptor();
  absl::StatusOr<FileDescriptor> file = OpenServiceLog(plan_.log, plan_.service);
  if (file.ok()) return *std::move(file);
  Log(spdlog::level::err, absl::StrCat("logs here: ", file.status().message()));
  return FileDescriptor();
}

void Child::WatchReadiness() {
  readiness_.async_read_some(boost::asio::buffer(&ready_byte_, 1),
                             [this](const boost::system::error_code& error, size_t) {
                               // An error: the child closed the pipe unwritten. Its end, which is
                               // watched, or the time limit follows.
                               if (error || !alive()) return;
                               if (ready_byte_ == static_cast<char>(Readiness::kOutlivesBatond)) {
                                 outlives_us_ = true;
                               }
                               readiness_.close();
                               timer_.cancel();
                               OnReady();
                             });
}

void Child::OnReady() {
  ready_ = settled_ = true;
  awaited_ = false;
  Log(spdlog::level::info, "ready");
  if (former_end_) ReportFollowed();
  WatchHeart();
  callbacks_.ready();
}

void Child::ReportFollowed() {
  const auto gap = std::chrono::steady_clock::now() - ended_at_;
  Report(spdlog::level::info, is_control() ? "control_followed" : "driver_followed",
         absl::StrCat("the process before this one ", *former_end_, "; the next, pid ",
                      process_.pid, ", follows it after ",
                      std::chrono::duration_cast<std::chrono::milliseconds>(gap).count(), " ms; ",
                      is_control()    ? "connections and workers went on"
                      : started_here_ ? "the connections of the service ended with it"
                                      : "it was its twin: connections and workers went on"));
  former_end_.reset();
}

// Looks now and then, so that signs of life do not wake batond.
void Child::WatchHeart() {
  After(heart_timer_, plan_.hang_timeout / kLooks, [this] {
    if (!alive()) return;
    LookAtHeart();
    WatchHeart();
  });
}

void Child::LookAtHeart() {
  ReapOrphans();
  char signs[4096];
  const bool was_hung = hung();
  const ssize_t count = heart_ ? read(heart_.get(), signs, sizeof(signs)) : 0;
  if (count > 0) NoteSigns({signs, static_cast<size_t>(count)});
  if (count > 0) ProveIfDue();
  silent_looks_ = count > 0 ? 0 : std::min(silent_looks_ + 1, kLooks);
  if (hung() == was_hung) return;
  settled_ = true;  // do not wait for a child that outlived the former batond and hangs
  callbacks_.hung();
  if (!hung()) return Log(spdlog::level::info, "shows again that it lives");
  ReportHang();
  if (kill_hung_ || on_probation_) Signal(SIGKILL);
}

void Child::ReportHang() {
  Report(
      spdlog::level::err, is_control() ? "control_hangs" : "driver_hangs",
      absl::StrCat("has shown no sign of life for ", plan_.hang_timeout.count(),
                   " ms: it is stopped, or waits for what does not come (see its stack: cat /proc/",
                   process_.pid, "/stack)", kill_hung_ || on_probation_ ? "; killing it" : ""));
}

// Control's signs say nothing but that it lives, whatever it writes. Reports at most one hang for
// all `signs`, however many there are.
void Child::NoteSigns(std::string_view signs) {
  if (is_control()) return;
  bool keeper_began_to_hang = false;
  for (const char sign : signs) {
    const auto then = static_cast<AfterLastSign>(sign & ~kKeeperHangs);
    if (then == AfterLastSign::kReport) kill_hung_ = false;
    if (then == AfterLastSign::kRestart) kill_hung_ = true;
    const bool keeper_hung = std::exchange(keeper_hangs_, (sign & kKeeperHangs) != 0);
    if (keeper_hangs_ && !keeper_hung) keeper_began_to_hang = true;
  }
  if (!keeper_began_to_hang) return;
  Report(spdlog::level::err, "keeper_hangs",
         absl::StrCat("its keeper has shown no sign of life for ", plan_.hang_timeout.count(),
                      " ms; connections and workers go on; ",
                      kill_hung_ ? "it is killed, and another follows"
                                 : "the policy's on_keeper_hang lets it"));
}

void Child::WatchEnd() {
  end_.assign(process_.pidfd.get());
  AwaitReadable(end_, [this] { Reap(); });
}

void Child::Reap() {
  siginfo_t end = {};
  // The child of a former batond is now the init process's, unless that batond was this process.
  const bool is_ours =
      waitid(P_PIDFD, static_cast<id_t>(process_.pidfd.get()), &end, WEXITED | WNOHANG) == 0;
  // A debugger that traces the child sees its end first.
  if (is_ours && end.si_pid == 0) return After(reap_timer_, kReapPause, [this] { Reap(); });
  timer_.cancel();
  heart_timer_.cancel();
  heart_.Reset();
  const bool was_hung = hung();
  silent_looks_ = 0;
  end_.release();
  if (readiness_.is_open()) readiness_.close();
  process_ = SpawnedProcess();
  settled_ = true;
  // A driver's twin, if it has one, has the lock, too, and goes on. It asks to be taken in.
  if (!is_control()) lock_.Drop();
  const std::string end_of_it = is_ours ? DescribeEnd(end) : "ended";
  if ((ready_ || awaited_) && !former_end_) {
    former_end_ = absl::StrCat(was_hung ? "hung, and " : "", end_of_it);
    ended_at_ = std::chrono::steady_clock::now();
  }
  const std::string how = absl::StrCat(end_of_it, ready_ ? "" : " while starting");
  // The end of a process that was told to end does not count against its program.
  const bool is_proven = !was_hung && ProveIfDue();
  if (!is_proven && on_probation_ && (was_hung || !told_to_end_)) GiveUpProgram(how);
  ready_ = false;
  callbacks_.gone(how);
}

absl::Status Child::ReplaceProgram(std::chrono::milliseconds probation) {
  ProveIfDue();
  BATON_RETURN_IF_ERROR(program_.Replace(probation, ProgramOfFormer()));
  on_probation_ = false;
  return absl::OkStatus();
}

// What a package has put in its place may have been there when this batond began.
std::optional<ProgramFile> Child::ProgramOfFormer() const {
  if (!alive() || started_here_) return std::nullopt;
  absl::StatusOr<ProgramFile> program =
      ProgramFile::Open(absl::StrCat("/proc/", process_.pid, "/exe"), plan_.helpers);
  // The number is still the child's, if the child lives after the file was opened.
  if (program.ok() && SendSignal(process_.pidfd.get(), 0)) return *std::move(program);
  Log(spdlog::level::warn,
      "its program cannot be kept: a new one that fails is not followed by it");
  return std::nullopt;
}

bool Child::ProveIfDue() {
  const auto lived = std::chrono::steady_clock::now() - started_;
  if (!on_probation_ || !ready_ || hung() || lived < program_.probation()) return false;
  program_.Prove();
  on_probation_ = false;
  return true;
}

void Child::GiveUpProgram(const std::string& why) {
  program_.GiveUp();
  const std::string given_up = DescribeGivenUp(plan_.program, absl::StrCat("its process ", why));
  Report(spdlog::level::err, "control_program_given_up", given_up);
  if (callbacks_.program_given_up != nullptr) callbacks_.program_given_up(given_up);
}

void Child::StartLater() {
  settled_ = true;
  if (std::chrono::steady_clock::now() - started_ >= kHealthyAfter) back_off_.Reset();
  const auto delay = std::chrono::duration_cast<std::chrono::milliseconds>(back_off_.Next());
  Log(spdlog::level::info, absl::StrCat("starting again in ", delay.count(), " ms"));
  start_due_ = true;
  After(timer_, delay, [this] {
    if (!start_due_) return;
    start_due_ = false;
    started_ = std::chrono::steady_clock::now();
    if (const absl::Status status = Start(); !status.ok()) {
      Log(spdlog::level::err, status.ToString());
      if (program_.on_probation()) GiveUpProgram(absl::StrCat("cannot start: ", status.message()));
      StartLater();
    }
  });
}

// The flag is needed because a timer that has expired can no longer be cancelled.
void Child::CancelStart() {
  start_due_ = false;
  timer_.cancel();
}

void Child::Signal(int signal) {
  if (signal == SIGTERM) told_to_end_ = true;
  if (alive()) (void)SendSignal(process_.pidfd.get(), signal);
}

namespace {

// Calls `look` with each child of the process's main thread, and its name. See proc(5).
void ForEachChild(pid_t process, const std::function<void(pid_t, const std::string&)>& look) {
  std::ifstream children(absl::StrCat("/proc/", process, "/task/", process, "/children"));
  for (pid_t child = 0; children >> child;) {
    std::string name;
    std::getline(std::ifstream(absl::StrCat("/proc/", child, "/comm")), name);
    look(child, name);
  }
}

}  // namespace

// A stopped driver forks no other twin. A twin has the driver's name at first.
void Child::KillUnfollowed() {
  if (!alive()) return;
  Signal(SIGSTOP);
  ForEachChild(process_.pid, [](pid_t child, const std::string& name) {
    if (name != "baton-twin" && name != "baton-driver") return;
    (void)SendSignal(OpenPidfd(child).value_or(FileDescriptor()).get(), SIGKILL);
  });
  Signal(SIGKILL);
}

void ReapOrphans() {
  siginfo_t ended = {};  // most often no child has ended
  if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
  constexpr std::array<std::string_view, 5> kOrphans = {
      native::kUnmapperName, kNicName, "baton-twin", "baton-keeper", "baton-broker"};
  // Orphans are the main thread's.
  ForEachChild(getpid(), [&](pid_t child, const std::string& name) {
    if (std::find(kOrphans.begin(), kOrphans.end(), name) != kOrphans.end()) {
      waitpid(child, nullptr, WNOHANG);
    }
  });
}

}  // namespace baton
