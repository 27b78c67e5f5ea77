#include "supervisor/driver/broker/brokers.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/nic/control_socket.h"

namespace baton::driver_process {
namespace {

constexpr size_t kBrokers = 2;
// The next twin is forked so long after a takeover. A fork, and what the fork does first, would
// take the processors from the one that has taken over.
constexpr uint64_t kForkAfterNs = 50'000'000;
// A twin that was sent so much and has not read it is replaced by one that inherits the state.
constexpr uint32_t kMostUnread = 96;
// A broker that dies sooner has done little. After so many in a row, others will not do better.
constexpr uint64_t kEarlyNs = 20'000'000;
constexpr uint32_t kMostEarlyDeaths = 20;
// So long after a fork `baton-driver`'s own twin knows the broker, and goes on with it.
constexpr uint64_t kToBeKnownNs = 200'000'000;
// A broker that is to leave, and has not after so long, is killed.
constexpr uint64_t kToLeaveNs = 100'000'000;
// If there is no broker, and none could be forked for so long, the service ends, and batond starts
// another driver.
constexpr uint64_t kMostRefusedNs = 5'000'000'000;

}  // namespace

Brokers::Brokers(BrokerBoard* board, std::unique_ptr<BrokerForks> forks, Inherit inherit, Tell tell,
                 std::function<uint64_t()> nanoseconds, uint64_t to_be_ready_ns)
    : board_(board),
      forks_(std::move(forks)),
      inherit_(std::move(inherit)),
      tell_(std::move(tell)),
      nanoseconds_(std::move(nanoseconds)),
      to_be_ready_ns_(to_be_ready_ns),
      pauses_(std::chrono::milliseconds(1), std::chrono::milliseconds(200)) {}

Brokers::~Brokers() {
  for (const Broker& broker : brokers_) forks_->Kill(broker.pidfd.get());
}

absl::Status Brokers::Start() {
  BATON_ASSIGN_OR_RETURN(lifeline_, MakePipe());
  while (brokers_.size() < kBrokers) BATON_RETURN_IF_ERROR(Fork());
  return absl::OkStatus();
}

absl::Status Brokers::Fork() {
  BATON_ASSIGN_OR_RETURN(SocketPair messages, MakeSocketPair(SOCK_SEQPACKET));
  BrokerInheritance inheritance = inherit_();
  const auto has = [this](uint32_t place) {
    return std::any_of(brokers_.begin(), brokers_.end(),
                       [place](const Broker& broker) { return broker.place == place; });
  };
  while (has(inheritance.place)) ++inheritance.place;  // there are fewer than kMostBrokers
  const uint32_t place = inheritance.place;
  board_->ready[place].store(false);
  board_->failed[place].code.store(0);
  inheritance.messages = messages.theirs.get();
  inheritance.lifeline = lifeline_.reading.get();
  const bool is_next =
      replacement_ && replacement_->step == Replacement::Step::kPrepares && FindNext() == nullptr;
  BATON_ASSIGN_OR_RETURN(ForkedChild child, forks_->Fork(std::move(inheritance),
                                                         is_next ? BrokerForks::Code::kNext
                                                                 : BrokerForks::Code::kProven));
  Broker& broker = brokers_.emplace_back();
  broker.pid = child.pid;
  broker.pidfd = std::move(child.pidfd);
  broker.place = place;
  broker.messages = std::move(messages.ours);
  broker.forked_ns = nanoseconds_();
  broker.is_next = is_next;
  changed_ = true;
  return absl::OkStatus();
}

bool Brokers::Drives(const Broker& broker) const { return broker.pid == board_->driver.load(); }

// Those that are killed and have not ended yet do not count.
template <typename Is>
const Brokers::Broker* Brokers::FindLive(Is is) const {
  const auto found = std::find_if(brokers_.begin(), brokers_.end(), [&](const Broker& broker) {
    return !broker.doomed && is(broker);
  });
  return found == brokers_.end() ? nullptr : &*found;
}

bool Brokers::IsReadyTwin(const Broker& broker) const {
  return !Drives(broker) && board_->ready[broker.place].load();
}

pid_t Brokers::driver() const {
  const Broker* const found = FindLive([this](const Broker& broker) { return Drives(broker); });
  return found == nullptr ? 0 : found->pid;
}

pid_t Brokers::twin() const {
  const Broker* const found = FindLive([this](const Broker& one) { return IsReadyTwin(one); });
  return found == nullptr ? 0 : found->pid;
}

size_t Brokers::CountLive() const {
  return static_cast<size_t>(std::count_if(brokers_.begin(), brokers_.end(),
                                           [](const Broker& broker) { return !broker.doomed; }));
}

std::vector<int> Brokers::descriptors() const {
  std::vector<int> all;
  for (const Broker& broker : brokers_) all.push_back(broker.pidfd.get());
  return all;
}

absl::Status Brokers::Turn() {
  Reap();
  TellSuccession();
  const uint64_t now = nanoseconds_();
  if (CountLive() != 0) refused_since_ns_ = 0;
  if (early_deaths_ >= kMostEarlyDeaths) {
    return absl::InternalError(
        absl::StrCat(early_deaths_, " brokers in a row have died soon; the last one ", last_end_));
  }
  if (refused_since_ns_ != 0 && now - refused_since_ns_ > kMostRefusedNs) {
    return absl::InternalError(absl::StrCat("no broker can be forked: ", last_refusal_.message()));
  }
  LookAtReplacement(now);
  if (MayFork(now)) ForkAgain(now);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- the next code

absl::Status Brokers::Replace(std::chrono::milliseconds probation) {
  if (replacement_) {
    return absl::AbortedError(
        replacement_->step == Replacement::Step::kOnProbation
            ? "the code of this service's broker is on probation: try again when that is over"
            : "another replacement of this service's broker is under way");
  }
  if (driver() == 0 || driver() != told_driver_) {
    return absl::UnavailableError("no broker drives now: try again");
  }
  BATON_RETURN_IF_ERROR(forks_->ReplaceCode(probation));
  code_given_up_.clear();
  replacement_ = {.until_ns = nanoseconds_() + to_be_ready_ns_};
  fork_at_ns_ = fork_again_ns_ = 0;
  return absl::OkStatus();
}

const Brokers::Broker* Brokers::FindNext() const {
  return FindLive([](const Broker& broker) { return broker.is_next; });
}

bool Brokers::HasReadyTwin(uint64_t now) const {
  return FindLive([&](const Broker& broker) {
           return !broker.is_next && IsReadyTwin(broker) && now - broker.forked_ns >= kToBeKnownNs;
         }) != nullptr;
}

void Brokers::KillTwins() {
  for (Broker& broker : brokers_) {
    if (!broker.is_next && !broker.doomed && !Drives(broker)) Kill(&broker);
  }
}

// There is a twin of the former code all the time but for a moment. It waits for the lock after the
// next broker does, so the kernel gives the lock to that one first.
void Brokers::LookAtReplacement(uint64_t now) {
  if (!replacement_) return;
  const Broker* const next = FindNext();
  const bool drives = next != nullptr && Drives(*next);
  switch (replacement_->step) {
    case Replacement::Step::kPrepares:
      if (drives) return Enter(Replacement::Step::kTakesOver, now);
      if (next != nullptr && board_->ready[next->place].load()) {
        KillTwins();
        return Enter(Replacement::Step::kRenewsTwin, now);
      }
      if (now >= replacement_->until_ns) GiveUpCode("no broker of it was ready in time");
      return;
    case Replacement::Step::kRenewsTwin:
      if (next == nullptr) return Enter(Replacement::Step::kPrepares, now);
      if (drives || HasReadyTwin(now) || now >= replacement_->until_ns) {
        Enter(Replacement::Step::kTakesOver, now);
      }
      return;
    case Replacement::Step::kTakesOver:
      if (next == nullptr) return Enter(Replacement::Step::kPrepares, now);
      if (!drives) return HaveDriverLeave(now);
      if (next->pid != told_driver_) return;
      Enter(Replacement::Step::kOnProbation, now);
      tell_("broker_replaced",
            absl::StrCat("process ", next->pid, " of release ", release(),
                         " drives the queues since, after ", board_->took_over_ns.load() / 1000,
                         " us: connections and workers went on"));
      return;
    case Replacement::Step::kOnProbation:
      if (drives && now >= replacement_->until_ns) ProveCode();
      return;
  }
}

void Brokers::Enter(Replacement::Step step, uint64_t now) {
  uint64_t patience_ns = to_be_ready_ns_;
  if (step == Replacement::Step::kOnProbation) {
    patience_ns = forks_->on_probation()
                      ? static_cast<uint64_t>(std::chrono::nanoseconds(forks_->probation()).count())
                      : 0;
  }
  replacement_ = {.step = step, .until_ns = now + patience_ns};
  board_->leaves.store(0);
}

// It ends between two turns, so that nothing is in the middle.
void Brokers::HaveDriverLeave(uint64_t now) {
  const pid_t drives = driver();
  if (drives == 0) return;  // it has ended
  if (replacement_->leaving != drives) {
    replacement_->leaving = drives;
    replacement_->until_ns = now + kToLeaveNs;
    board_->leaves.store(drives);
    leave_asked_ = true;
    return;
  }
  if (now < replacement_->until_ns) return;
  for (Broker& broker : brokers_) {
    if (broker.pid == drives && !broker.doomed) Kill(&broker);
  }
}

void Brokers::ProveCode() {
  forks_->ProveCode();
  replacement_.reset();
  KillTwins();
  for (Broker& broker : brokers_) broker.is_next = false;
  changed_ = true;
  tell_("driver_code_proven",
        absl::StrCat("the brokers' new code, of release ", release(), ", stays"));
}

// The twin is of the former code, or the next one forked is.
void Brokers::GiveUpCode(const std::string& why) {
  forks_->GiveUpCode();
  replacement_.reset();
  board_->leaves.store(0);
  for (Broker& broker : brokers_) {
    if (std::exchange(broker.is_next, false) && !broker.doomed) Kill(&broker);
  }
  changed_ = true;
  code_given_up_ = absl::StrCat("the brokers' new code is given up, because ", why,
                                ": the code before it serves");
  tell_("driver_code_given_up", code_given_up_);
}

std::string Brokers::release() const {
  for (const Broker& broker : brokers_) {
    if (!Drives(broker)) continue;
    const auto& release = board_->releases[broker.place];
    return {release, strnlen(release, sizeof(release))};
  }
  return release_;
}

// ---------------------------------------------------------------- deaths

// While the twin of a dead one takes over, no other is forked, because a fork takes the time that
// others need to be told of the takeover.
bool Brokers::MayFork(uint64_t now) const {
  // The next one is a third.
  const bool has_third = replacement_ && (replacement_->step == Replacement::Step::kPrepares ||
                                          replacement_->step == Replacement::Step::kRenewsTwin);
  if (CountLive() >= (has_third ? kBrokers + 1 : kBrokers) || brokers_.size() >= kMostBrokers ||
      now < fork_again_ns_) {
    return false;
  }
  return CountLive() == 0 || (driver() == told_driver_ && now >= fork_at_ns_);
}

void Brokers::ForkAgain(uint64_t now) {
  const bool refused_before = !last_refusal_.ok();
  last_refusal_ = Fork();
  if (last_refusal_.ok()) return;
  if (CountLive() == 0 && refused_since_ns_ == 0) refused_since_ns_ = now;
  fork_again_ns_ = now + static_cast<uint64_t>(pauses_.Next().count());
  if (!refused_before) tell_("broker_not_forked", std::string(MessageOf(last_refusal_)));
}

void Brokers::Reap() {
  for (Broker& broker : brokers_) {
    if (Drives(broker)) broker.drove_since_ns = board_->took_lock_ns.load();
  }
  for (size_t i = 0; i < brokers_.size();) {
    const std::string how = forks_->Reap(brokers_[i].pidfd.get());
    if (how.empty()) {
      ++i;
      continue;
    }
    const Broker dead = std::move(brokers_[i]);
    changed_ = true;
    brokers_.erase(brokers_.begin() + static_cast<ptrdiff_t>(i));
    OnDeath(dead, how);
  }
}

// Deaths of those that wait say nothing about what others die of that drive. They only delay the
// next fork, unless nobody drives. Those of brokers that were killed here say nothing at all.
void Brokers::OnDeath(const Broker& broker, const std::string& how) {
  const uint64_t now = nanoseconds_();
  const bool drove = broker.drove_since_ns != 0;
  const bool early =
      !broker.doomed && now - (drove ? broker.drove_since_ns : broker.forked_ns) < kEarlyNs;
  if (drove || driver() == 0) early_deaths_ = early ? early_deaths_ + 1 : 0;
  if (early) {
    fork_again_ns_ = now + static_cast<uint64_t>(pauses_.Next().count());
  } else {
    pauses_.Reset();
  }
  const absl::Status failed = board_->failed[broker.place].Load();
  last_end_ =
      absl::StrCat("(process ", broker.pid, ") ", how, failed.ok() ? "" : ": ", failed.message());
  if (broker.pid == told_driver_) driver_end_ = last_end_;
  if (broker.is_next) GiveUpCode(absl::StrCat("its broker ", last_end_));
}

// The successor has said that it took over before the death of its predecessor is known, or says
// so soon. Those that have driven between two looks have died early.
void Brokers::TellSuccession() {
  const uint64_t generation = board_->generation.load();
  if (generation == told_generation_) return;
  const uint64_t former = std::exchange(told_generation_, generation);
  const pid_t predecessor = std::exchange(told_driver_, board_->driver.load());
  const std::string end = std::exchange(driver_end_, "");
  release_ = release();
  if (former == 0) return;
  if (replacement_ && replacement_->step == Replacement::Step::kTakesOver) {
    fork_at_ns_ = nanoseconds_() + kForkAfterNs;
    return;  // LookAtReplacement() tells of it
  }
  early_deaths_ += static_cast<uint32_t>(generation - former - 1);
  fork_at_ns_ = nanoseconds_() + kForkAfterNs;
  tell_(
      "broker_followed",
      absl::StrCat("a broker has died: ", end.empty() ? absl::StrCat("process ", predecessor) : end,
                   "; process ", told_driver_, " drives the queues since, after ",
                   board_->took_over_ns.load() / 1000, " us: connections and workers went on"));
}

// A twin that does not take over is killed, too, unless it is not ready for that yet.
pid_t Brokers::Beat() {
  const uint64_t told = board_->told.load();
  const uint64_t asked = std::exchange(asked_, told).value_or(0);
  if (board_->seen.load() >= asked) return 0;
  const pid_t drives = driver();
  pid_t killed = 0;
  for (Broker& broker : brokers_) {
    if (broker.doomed || (drives != 0 && broker.pid != drives)) continue;
    const bool in_time = nanoseconds_() - broker.forked_ns < to_be_ready_ns_;
    if (drives == 0 && in_time && !board_->ready[broker.place].load()) continue;
    killed = broker.pid;
    Kill(&broker);
  }
  asked_.reset();  // the next one has a whole beat
  return killed;
}

void Brokers::Kill(Broker* broker) {
  broker->doomed = true;
  forks_->Kill(broker->pidfd.get());
}

void Brokers::Send(const BrokerMessage& message, int descriptor) {
  for (Broker& broker : brokers_) {
    if (broker.doomed) continue;
    const bool waits = !Drives(broker);
    if (nic::SendMessage(broker.messages.get(), message, descriptor) &&
        (!waits || ++broker.sent <= kMostUnread)) {
      continue;
    }
    if (waits) broker.is_next = false;  // its code is not to blame: another one is forked
    Kill(&broker);
  }
}

}  // namespace baton::driver_process
