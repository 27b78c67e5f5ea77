#include "supervisor/driver/driver_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "lib/base/heartbeat.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "lib/channel/carried_status.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/log_level.h"
#include "supervisor/config/state_files.h"
#include "supervisor/driver/engine/describe.h"

namespace baton::driver_process {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDefaultHangTimeout(5000);
// A keeper that was asked to end is killed after this time.
constexpr milliseconds kStopTimeout(4000);
// After this many crashes in a row that do not share a known cause, the driver drops what keepers
// have held: it may be the cause.
constexpr uint32_t kCrashesBeforeSettingAside = 3;
// Begins the keys of what no keeper may lose, such as sockets and the sessions of workers.
constexpr char kLasting[] = "lasting/";
// So many files of entries that were set aside are kept.
constexpr uint32_t kSetAsideFiles = 8;

// How often a follower looks whether the former keepers are gone, which die with who started them.
constexpr milliseconds kFormerPause(5);
// How long after a twin that could not be forked the next one is tried.
constexpr milliseconds kTwinPause(1000);
// Brokers were forked, or have died. A twin that does not know that yet manages, and a fork would
// take the processor from a broker that has just taken over.
constexpr milliseconds kAfterForks(100);

// Returns false for orders that only ask, that change what may get lost with this process, or whose
// outcome lies in memory that the twin has (ConnectTo).
bool ChangesState(const internal::DriverOrder& order) {
  using internal::DriverOrder;
  switch (order.order_case()) {
    case DriverOrder::kIntroduce:
    case DriverOrder::kTakeNextHeld:
    case DriverOrder::kDealWith:
    case DriverOrder::kShowLife:
    case DriverOrder::kDescribeQueues:
    case DriverOrder::kLookAtShards:
    case DriverOrder::kNextFork:
    case DriverOrder::kReapWorker:
    case DriverOrder::kListDescriptors:
    case DriverOrder::kCountConnections:
    case DriverOrder::kListConnections:
    case DriverOrder::kListShardMoves:
    case DriverOrder::kCheckStoredState:
    case DriverOrder::kAccount:
    case DriverOrder::kConnectTo:
      return false;
    default:
      return true;
  }
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

FileDescriptor MakeSignalDescriptor() {
  const sigset_t signals = StopSignals();
  return FileDescriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

std::string AsText(const internal::KeeperConfig& config) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(config, &text);
  return text;
}

milliseconds HangTimeoutOf(const internal::KeeperConfig& config) {
  return config.hang_timeout_ms() == 0 ? kDefaultHangTimeout
                                       : milliseconds(config.hang_timeout_ms());
}

}  // namespace

void DriverProcess::BlockStopSignals() {
  const sigset_t signals = StopSignals();
  (void)pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

DriverProcess::DriverProcess(const internal::KeeperConfig& config, std::unique_ptr<DriverHost> host,
                             BatondLink* batond, const std::string& program, int network)
    : config_(config),
      host_(std::move(host)),
      batond_(batond),
      keeper_(program, HangTimeoutOf(config), network),
      signals_(MakeSignalDescriptor()),
      news_wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  host_->news().SetWake([this] { eventfd_write(news_wake_.get(), 1); });
}

absl::Status DriverProcess::Run() {
  if (!signals_ || !news_wake_) return ErrnoStatus(errno, "signalfd, eventfd");
  host_->Start();
  StartKeeper();
  while (!stopping_ || keeper_.runs()) {
    Await();
    Beat();
    signalfd_siginfo signal;
    if (read(signals_.get(), &signal, sizeof(signal)) == sizeof(signal)) Stop();
    eventfd_t count;
    (void)eventfd_read(news_wake_.get(), &count);
    if (host_->turns()) host_->Turn();
    // The keeper learns of the loss from the news, and ends.
    if (const absl::Status lost = host_->news().device_lost(); !lost.ok()) EndFor(lost);
    if (keeper_.runs()) ServeOrders();
    if (keeper_.runs()) SendNews();
    keeper_.LookAtNext();
    int exit_code = -1;
    if (const auto how = keeper_.Reap(&exit_code)) OnKeeperEnded(*how, exit_code);
    if (const auto why = keeper_.TakeGivenUp()) ReportGivenUp(*why);
    if (start_at_ && !stopping_ && Clock::now() >= *start_at_) StartKeeper();
    LookAtTwin();
  }
  return end_;
}

// ---------------------------------------------------------------- the keeper's life

void DriverProcess::StartKeeper() {
  start_at_.reset();
  if (!keeper_.former_are_gone()) {
    start_at_ = Clock::now() + kFormerPause;
    return;
  }
  const absl::Status started = keeper_.Start(AsText(config_));
  if (started.ok()) {
    spdlog::info("its keeper was started, pid {}", keeper_.pid());
    return;
  }
  spdlog::error("its keeper cannot be started: {}", MessageOf(started));
  if (!ready_once_) return EndFor(started);
  start_at_ = Clock::now() + keeper_.NextPause();
}

void DriverProcess::OnKeeperEnded(const std::string& end, int exit_code) {
  const std::string how = absl::StrCat(std::exchange(keeper_hung_, false) ? "hung, and " : "", end);
  if (batond_ != nullptr) batond_->SetKeeperHangs(false);
  if (stopping_) return;
  // The keeper's log and the service's down file say why it cannot serve.
  if (!ready_once_) {
    return EndFor(absl::UnavailableError(absl::StrCat("its keeper ", how, " before it was ready")));
  }
  former_end_ = how;
  ended_at_ = Clock::now();
  if (keeper_.FollowWithNext()) {
    dealings_.NoteOrderlyEnd();
    spdlog::info("its keeper {}: the one that was started beside it, pid {}, follows", how,
                 keeper_.pid());
    return;
  }
  const bool in_order = exit_code == 0 && keeper_.shows_life();
  const milliseconds pause = in_order ? milliseconds(0) : keeper_.NextPause();
  spdlog::error("its keeper {}: connections and workers go on; the next keeper starts in {} ms",
                how, pause.count());
  if (in_order) dealings_.NoteOrderlyEnd();
  bool explained = Blame(how);
  if (twin_) twin_->Note("");  // that death is counted
  if (std::exchange(short_of_descriptors_, false)) explained = true;
  if (keeper_.crashes() == 0) {
    unexplained_crashes_ = 0;
  } else if (!explained && ++unexplained_crashes_ >= kCrashesBeforeSettingAside) {
    SetAsideSettings();
  }
  start_at_ = Clock::now() + pause;
}

void DriverProcess::ReportGivenUp(const std::string& why) {
  renew_twin_at_ = Clock::now();  // or it would start that program again
  given_up_why_ = absl::StrCat("the new program ", config_.keeper(), " is given up, because ", why,
                               ": the keeper's program before it serves");
  Report("keeper_program_given_up", given_up_why_);
}

// If an entry crashes every keeper, the service loses its settings, but no connection.
void DriverProcess::SetAsideSettings() {
  const size_t dropped = held_.DropAllBut(kLasting);
  if (dropped == 0) return;
  dealings_.ForgetCounts();  // the settings may have been the cause
  Report(
      "keeper_settings_dropped",
      absl::StrCat(unexplained_crashes_,
                   " keepers in a row have crashed soon: what former ones had set at run time is "
                   "dropped (",
                   dropped, " entries: policy, upgrades); the configuration applies"));
}

bool DriverProcess::Blame(const std::string& how) {
  const std::optional<Dealings::Death> death = dealings_.NoteDeath(how);
  if (!death) return false;
  const std::string& what = death->what.what();
  spdlog::error("it was dealing with {}; keepers that ended so in a row: {}", what, death->deaths);
  if (death->deaths < Dealings::kMostDeaths) return death->deaths > 1;
  const std::string why =
      absl::StrCat(death->deaths, " keepers in a row ended while they dealt with ", what,
                   ", and the last one ", how);
  if (!death->what.held_key().empty()) {
    SetAside(death->what.held_key(), why);
  } else {
    Report("keeper_request_refused",
           absl::StrCat(why, ": it is refused, and everything else goes on. Keep the core files"));
  }
  return true;
}

// The file may have arguments of programs, so it is for the driver's user alone.
void DriverProcess::SetAside(const std::string& key, const std::string& why) {
  const std::string value = held_.SetAside(key, why);
  const std::string path = SetAsidePath(config_.state_dir(), config_.service().name(),
                                        entries_set_aside_++ % kSetAsideFiles);
  (void)unlink(path.c_str());
  const FileDescriptor file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool kept =
      file && write(file.get(), value.data(), value.size()) == static_cast<ssize_t>(value.size());
  Report(
      "keeper_entry_set_aside",
      absl::StrCat(why, ": the entry is set aside, and everything else goes on. ",
                   kept ? absl::StrCat("Keep ", path)
                        : std::string(MessageOf(ErrnoStatus(errno, absl::StrCat("write ", path)))),
                   " and the core files"));
}

void DriverProcess::Stop() {
  EndFor(absl::OkStatus());
  keeper_.Signal(SIGTERM);
}

void DriverProcess::EndFor(const absl::Status& why) {
  if (std::exchange(stopping_, true)) return;
  end_ = why;
  kill_at_ = Clock::now() + kStopTimeout;
  if (twin_) twin_->End();
}

// ---------------------------------------------------------------- the twin

void DriverProcess::MakeTwin() {
  if (twin_) return;
  const absl::Status can = host_->CheckFollowable();
  if (!can.ok()) {
    return spdlog::info("connections end with this process: {}", MessageOf(can));
  }
  auto made = HostTwin::Make([this](bool shown) { return host_->SetFollowable(shown); },
                             [this] { take_over_begun_ = host_->BeginTakeOver(); });
  if (!made.ok()) return spdlog::error("it has no twin: {}", MessageOf(made.status()));
  twin_ = *std::move(made);
  renew_twin_at_ = Clock::now();
}

bool DriverProcess::RenewTwin(bool must, const std::function<void()>& begin) {
  if (!MayRenewTwin()) return false;
  renew_twin_at_.reset();
  const absl::StatusOr<HostTwin::Side> side = twin_->Renew(begin);
  if (!side.ok()) {
    if (must) twin_->End();
    renew_twin_at_ = Clock::now() + kTwinPause;
    if (std::exchange(twin_refused_, true)) return false;
    Report("no_twin", absl::StrCat("baton-driver has no twin that could follow it: ",
                                   side.status().message()));
    return false;
  }
  twin_refused_ = false;
  if (*side == HostTwin::Side::kOriginal) return false;
  Follow();
  return true;
}

// The kernel has killed the keeper with the process that started it.
void DriverProcess::Follow() {
  const Clock::time_point begun = Clock::now();
  spdlog::error("the baton-driver before this process has died: it goes on in its place");
  if (batond_ != nullptr) {
    if (const absl::Status named = batond_->NameThisProcess(); !named.ok()) {
      spdlog::warn("the next batond cannot find this process: {}", MessageOf(named));
    }
    batond_->Introduce();
    batond_->SetKeeperHangs(false);
  }
  keeper_.ForgetFormer();
  keeper_hung_ = false;
  if (!take_over_begun_.ok()) return EndFor(take_over_begun_);
  if (const absl::Status followed = host_->TakeOver(); !followed.ok()) return EndFor(followed);
  former_end_ = "ended with the baton-driver that had started it";
  // An order may have killed the former one. It would kill this one, too, if the next keeper gave
  // it.
  internal::DealWith dealt_with;
  if (dealt_with.ParseFromString(twin_->noted())) dealings_.Follow(std::move(dealt_with));
  (void)Blame(*former_end_);
  ended_at_ = begun;
  start_at_ = begun;
  beat_at_ = processes_beat_at_ = {};
  const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begun);
  Report("driver_followed",
         absl::StrCat("baton-driver has died; its twin, pid ", getpid(), ", took over in ",
                      took.count(), " us: connections and workers went on"));
  // The one that was forked before the takeover would repeat it.
  if (RenewTwin(/*must=*/true)) return;
  if (twin_) twin_->Note("");  // that death is counted
}

void DriverProcess::LookAtTwin() {
  if (!MayRenewTwin()) return;
  const Clock::time_point now = Clock::now();
  if (twin_->Reap()) renew_twin_at_ = now;
  if (host_->TakeForksChanged() && !renew_twin_at_) renew_twin_at_ = now + kAfterForks;
  if (renew_twin_at_ && now >= *renew_twin_at_) (void)RenewTwin(/*must=*/false);
}

// ---------------------------------------------------------------- orders

void DriverProcess::ServeOrders() {
  MessageChannel& channel = keeper_.orders();
  // Sends the rest of an answer that the socket did not take at once.
  if (channel.pending()) (void)channel.Flush();
  // An error is ignored, because the keeper's pidfd reports its end.
  (void)channel.Fill();
  for (;;) {
    internal::DriverOrder order;
    std::vector<FileDescriptor> descriptors;
    const absl::StatusOr<bool> whole = channel.NextFrame(&order, &descriptors);
    if (!whole.ok()) {
      spdlog::error("its keeper (pid {}) sent what is no order: it is killed: {}", keeper_.pid(),
                    MessageOf(whole.status()));
      return keeper_.KillFaulty();
    }
    if (!*whole) break;
    Answer(order, std::move(descriptors));
    if (!keeper_.runs()) return;  // this process follows a dead one since
  }
}

void DriverProcess::Answer(const internal::DriverOrder& order,
                           std::vector<FileDescriptor> descriptors) {
  std::vector<int> sent;
  std::vector<FileDescriptor> given;
  const internal::DriverAnswer answer = Execute(order, std::move(descriptors), &sent, &given);
  for (const FileDescriptor& descriptor : given) sent.push_back(descriptor.get());
  // Nobody learns of a change that the twin would not know.
  if (ChangesState(order) && RenewTwin(/*must=*/true, [&given] { given.clear(); })) return;
  keeper_.NoteOrder();
  absl::Status queued = keeper_.orders().Enqueue(answer, sent);
  short_of_descriptors_ = short_of_descriptors_ || absl::IsResourceExhausted(queued) ||
                          (order.has_next_fork() && !StatusIn(answer).ok());
  // A dropped descriptor was to be closed by the keeper. Now it is closed here.
  if (absl::IsResourceExhausted(queued) && order.has_drop_descriptor()) {
    queued = keeper_.orders().Enqueue(answer);
  }
  if (absl::IsResourceExhausted(queued)) {  // no descriptor is free for a copy
    // No keeper would know of the worker.
    if (order.has_fork_worker() && !given.empty()) (void)SendSignal(given[0].get(), SIGKILL);
    internal::DriverAnswer refusal;
    SetStatus(queued, &refusal);
    queued = keeper_.orders().Enqueue(refusal);
  }
  if (queued.ok()) return;
  spdlog::error("its keeper (pid {}) cannot be answered: it is killed: {}", keeper_.pid(),
                MessageOf(queued));
  keeper_.KillFaulty();
}

internal::DriverAnswer DriverProcess::Execute(const internal::DriverOrder& order,
                                              std::vector<FileDescriptor> descriptors,
                                              std::vector<int>* sent,
                                              std::vector<FileDescriptor>* given) {
  using internal::DriverOrder;
  internal::DriverAnswer answer;
  absl::Status status;
  switch (order.order_case()) {
    case DriverOrder::kIntroduce:
      Introduce(answer.mutable_introduced(), sent);
      break;
    case DriverOrder::kHold:
      status = held_.Hold(order.hold(), std::move(descriptors));
      break;
    case DriverOrder::kDrop:
      held_.Drop(order.drop().key());
      break;
    case DriverOrder::kTakeNextHeld: {
      internal::Hold entry;
      if (held_.Next(order.take_next_held().after(), &entry, sent)) *answer.mutable_held() = entry;
      break;
    }
    case DriverOrder::kDealWith:
      status = dealings_.Begin(order.deal_with());
      if (twin_) twin_->Note(status.ok() ? order.deal_with().SerializeAsString() : "");
      if (dealings_.TakeCountEnded()) renew_twin_at_ = Clock::now();
      break;
    case DriverOrder::kShowLife:
      keeper_.NoteLife();
      break;
    case DriverOrder::kNoteReady:
      ready_once_ = true;
      TellReady();
      MakeTwin();
      break;
    case DriverOrder::kNoteService:
      *config_.mutable_service() = order.note_service().service();
      if (order.note_service().has_distrust_contained_root()) {
        config_.set_distrust_contained_root(order.note_service().distrust_contained_root());
      }
      spdlog::default_logger()->set_level(LevelOf(config_.service().log_level()));
      if (batond_ != nullptr) batond_->SetConfig(config_);
      break;
    case DriverOrder::kDescribeQueues:
      answer = host_->driver().Execute(order, std::move(descriptors), given);
      answer.mutable_description()->mutable_service()->set_keeper_program_given_up(given_up_why_);
      answer.mutable_description()->mutable_service()->set_driver_twin_pid(twin_ ? twin_->pid()
                                                                                 : 0);
      if (without_keeper_.count() > 0) {
        AddBlackout("no_keeper", without_keeper_, answer.mutable_description());
      }
      return answer;
    case DriverOrder::kStartNextKeeper:
      given_up_why_.clear();
      status = keeper_.StartNext(AsText(config_),
                                 milliseconds(order.start_next_keeper().probation_ms()));
      if (status.ok()) {
        spdlog::info("its keeper was started anew, beside the one that serves");
        dealings_.ForgetCounts();
      }
      break;
    case DriverOrder::kPutPolicyInForce:
      keeper_.SetKillsHung(order.put_policy_in_force().policy().on_keeper_hang() ==
                           v1::ON_KEEPER_HANG_RESTART);
      [[fallthrough]];
    default:
      return host_->driver().Execute(order, std::move(descriptors), given);
  }
  SetStatus(status, &answer);
  return answer;
}

void DriverProcess::Introduce(internal::Introduced* introduced, std::vector<int>* sent) {
  host_->driver().CancelHandovers();
  *introduced = host_->Introduce();
  introduced->set_follows(ready_once_);
  introduced->set_release(kRelease);
  const arena::Arena& arena = host_->driver().arena();
  *sent = {arena.worker_log_fd(), arena.driver_log_fd(), arena.buffers_fd()};
  if (!former_end_) return;
  const Clock::duration gap = Clock::now() - ended_at_;
  without_keeper_.Record(static_cast<uint64_t>(std::chrono::nanoseconds(gap).count()));
  Report("keeper_followed", absl::StrCat("the keeper before this one ", *former_end_,
                                         "; the next, pid ", keeper_.pid(), ", follows it after ",
                                         std::chrono::duration_cast<milliseconds>(gap).count(),
                                         " ms; connections and workers went on"));
  former_end_.reset();
}

// ---------------------------------------------------------------- news

// Takes no news from the queue before the socket has taken all former news: the queue is bounded.
void DriverProcess::SendNews() {
  MessageChannel& channel = keeper_.news();
  if (channel.pending()) (void)channel.Flush();
  if (channel.pending()) return;
  for (const internal::DriverNews& news : host_->news().Take()) (void)channel.Enqueue(news);
}

void DriverProcess::Report(const char* kind, const std::string& message) {
  host_->news().OnEvent(kind, message, 0, -1, -1);
}

// ---------------------------------------------------------------- time

void DriverProcess::Await() {
  std::vector<pollfd> entries = {{signals_.get(), POLLIN, 0}, {news_wake_.get(), POLLIN, 0}};
  if (keeper_.runs()) {
    const auto also = [](MessageChannel& channel) {
      return static_cast<short>(channel.pending() ? POLLIN | POLLOUT : POLLIN);
    };
    entries.push_back({keeper_.orders().fd(), also(keeper_.orders()), 0});
    if (keeper_.news().pending()) entries.push_back({keeper_.news().fd(), POLLOUT, 0});
  }
  for (const int fd : keeper_.process_descriptors()) entries.push_back({fd, POLLIN, 0});
  Clock::time_point next = std::min(beat_at_, processes_beat_at_);
  if (start_at_) next = std::min(next, *start_at_);
  if (const auto silent_at = keeper_.hang_begins()) next = std::min(next, *silent_at);
  if (stopping_) next = std::min(next, kill_at_);
  if (twin_ && twin_->descriptor() >= 0) entries.push_back({twin_->descriptor(), POLLIN, 0});
  if (renew_twin_at_ && MayRenewTwin()) next = std::min(next, *renew_twin_at_);
  if (host_->turns()) {
    for (const int fd : host_->descriptors()) entries.push_back({fd, POLLIN, 0});
    next = std::min(next, Clock::now() + milliseconds(HostEngine::kTurnMs));
  }
  const auto left = std::chrono::ceil<milliseconds>(next - Clock::now()).count();
  (void)poll(entries.data(), entries.size(), static_cast<int>(std::max<int64_t>(left, 0)));
}

void DriverProcess::Beat() {
  const Clock::time_point now = Clock::now();
  if (stopping_ && now >= kill_at_ && keeper_.runs()) {
    spdlog::warn("its keeper does not end, killing it");
    keeper_.Signal(SIGKILL);
    kill_at_ = now + kStopTimeout;
  }
  if (now >= processes_beat_at_) {
    host_->BeatProcesses();
    if (twin_) twin_->KillIfStopped();
    processes_beat_at_ = now + kHeartbeat;
  }
  LookForHang();
  if (now < beat_at_) return;
  milliseconds pause = kHeartbeat;
  if (batond_ != nullptr && ready_once_) {
    pause = batond_->Beat(keeper_.kills_hung() ? AfterLastSign::kRestart : AfterLastSign::kReport);
  }
  beat_at_ = now + pause;
}

void DriverProcess::LookForHang() {
  const auto silence = keeper_.LookForHang();
  if (silence == KeeperProcess::Silence::kNone) return;
  const bool begins = silence == KeeperProcess::Silence::kBegins;
  if (begins) keeper_hung_ = true;
  // The event is batond's, because the keeper that hangs reports none.
  if (batond_ != nullptr) batond_->SetKeeperHangs(begins);
  beat_at_ = {};
  if (begins) {
    spdlog::error("its keeper (pid {}) has shown no sign of life for {} ms{}", keeper_.pid(),
                  keeper_.hang_timeout().count(),
                  keeper_.kills_hung() ? ": killing it" : ": the policy's on_keeper_hang lets it");
  } else if (keeper_.runs()) {
    keeper_hung_ = false;
    spdlog::info("its keeper shows again that it lives");
  }
}

}  // namespace baton::driver_process
