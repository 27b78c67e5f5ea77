#include "supervisor/driver/broker/brokers.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "supervisor/driver/workers/forked_child.h"
#include "supervisor/driver/workers/spawn_plan.h"

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

// It stays the user that `baton-driver` is.
Identity IdentityOf(const EngineOptions& options) {
  Identity identity;
  identity.realtime_priority = options.realtime_priority;
  identity.may_hurry = options.realtime_priority != 0;
  return identity;
}

// Returns only with an error.
absl::Status BecomeBroker(BrokerInheritance inheritance) {
  BATON_ASSIGN_OR_RETURN(
      inheritance.lifeline,
      ConfineChild({.arena = inheritance.arena,
                    .device = inheritance.device,
                    .descriptors =
                        [&] {
                          std::vector<int> kept = inheritance.wakes->descriptors();
                          kept.insert(kept.end(), {inheritance.messages, inheritance.wake,
                                                   inheritance.host_wake, inheritance.news});
                          return kept;
                        }(),
                    .lifeline = inheritance.lifeline,
                    .identity = IdentityOf(inheritance.options)}));
  // Lives as long as the process.
  return (new BrokerProcess(std::move(inheritance)))->Run();
}

}  // namespace

Brokers::Brokers(BrokerBoard* board, Inherit inherit, Place place, Tell tell)
    : board_(board),
      inherit_(std::move(inherit)),
      place_(std::move(place)),
      tell_(std::move(tell)),
      pauses_(std::chrono::milliseconds(1), std::chrono::milliseconds(200)) {}

Brokers::~Brokers() {
  for (const Broker& broker : brokers_) (void)SendSignal(broker.pidfd.get(), SIGKILL);
}

absl::Status Brokers::Start() {
  BATON_ASSIGN_OR_RETURN(lifeline_, MakePipe());
  while (brokers_.size() < kBrokers) BATON_RETURN_IF_ERROR(Fork());
  return absl::OkStatus();
}

absl::Status Brokers::Fork() {
  BATON_ASSIGN_OR_RETURN(SocketPair messages, MakeSocketPair(SOCK_SEQPACKET));
  BrokerInheritance inheritance = inherit_();
  inheritance.messages = messages.theirs.get();
  inheritance.lifeline = lifeline_.reading.get();
  BATON_ASSIGN_OR_RETURN(ForkedChild child, ForkPlaced(std::move(inheritance)));
  Broker& broker = brokers_.emplace_back();
  broker.pid = child.pid;
  broker.pidfd = std::move(child.pidfd);
  broker.messages = std::move(messages.ours);
  broker.forked_ns = MonotonicNanoseconds();
  return absl::OkStatus();
}

absl::StatusOr<ForkedChild> Brokers::ForkPlaced(BrokerInheritance inheritance) {
  absl::StatusOr<ForkedChild> child = absl::UnknownError("");
  place_([&] {
    child = ForkChild([&] {
      BeginChild("baton-broker");
      const absl::Status status = BecomeBroker(std::move(inheritance));
      std::fprintf(stderr, "baton-broker: ends: %s\n", std::string(MessageOf(status)).c_str());
    });
  });
  return child;
}

bool Brokers::Drives(const Broker& broker) const { return broker.pid == board_->driver.load(); }

pid_t Brokers::driver() const {
  const auto found = std::find_if(brokers_.begin(), brokers_.end(),
                                  [this](const Broker& broker) { return Drives(broker); });
  return found == brokers_.end() ? 0 : found->pid;
}

pid_t Brokers::twin() const {
  const auto found = std::find_if(brokers_.begin(), brokers_.end(),
                                  [this](const Broker& broker) { return !Drives(broker); });
  return found == brokers_.end() ? 0 : found->pid;
}

std::vector<int> Brokers::descriptors() const {
  std::vector<int> all;
  for (const Broker& broker : brokers_) all.push_back(broker.pidfd.get());
  return all;
}

// The twin of the dead one takes over meanwhile. A new one is forked only then, because a fork
// takes the time that others need to be told of the takeover.
absl::Status Brokers::Turn() {
  Reap();
  TellSuccession();
  if (early_deaths_ >= kMostEarlyDeaths) {
    return absl::InternalError(
        absl::StrCat(early_deaths_, " brokers in a row have died soon; the last one ", last_end_));
  }
  const uint64_t now = MonotonicNanoseconds();
  const bool may_fork = brokers_.empty()
                            ? now >= fork_again_ns_
                            : driver() != 0 && now >= std::max(fork_at_ns_, fork_again_ns_);
  if (brokers_.size() >= kBrokers || !may_fork) return absl::OkStatus();
  const absl::Status forked = Fork();
  if (!forked.ok()) {
    fork_again_ns_ = now + static_cast<uint64_t>(pauses_.Next().count());
    if (brokers_.empty()) tell_("broker_not_forked", std::string(MessageOf(forked)));
  }
  return absl::OkStatus();
}

void Brokers::Reap() {
  for (size_t i = 0; i < brokers_.size();) {
    const std::string how = ReapProgram(brokers_[i].pidfd.get());
    if (how.empty()) {
      ++i;
      continue;
    }
    const Broker dead = std::move(brokers_[i]);
    brokers_.erase(brokers_.begin() + static_cast<ptrdiff_t>(i));
    OnDeath(dead, how);
  }
}

void Brokers::OnDeath(const Broker& broker, const std::string& how) {
  const uint64_t now = MonotonicNanoseconds();
  const uint64_t since = Drives(broker) ? board_->took_lock_ns.load() : broker.forked_ns;
  const bool early = now - since < kEarlyNs;
  early_deaths_ = early ? early_deaths_ + 1 : 0;
  if (early) {
    fork_again_ns_ = now + static_cast<uint64_t>(pauses_.Next().count());
  } else {
    pauses_.Reset();
  }
  last_end_ = absl::StrCat("(process ", broker.pid, ") ", how);
}

// The successor has said that it took over before the death of its predecessor is known, or says
// so soon.
void Brokers::TellSuccession() {
  const uint64_t generation = board_->generation.load();
  if (generation == told_generation_) return;
  const bool follows = std::exchange(told_generation_, generation) != 0;
  told_driver_ = board_->driver.load();
  if (!follows) return;
  fork_at_ns_ = MonotonicNanoseconds() + kForkAfterNs;
  tell_("broker_followed",
        absl::StrCat("a broker has died", last_end_.empty() ? "" : absl::StrCat(": ", last_end_),
                     "; process ", board_->driver.load(), " drives the queues since, after ",
                     board_->took_over_ns.load() / 1000, " us: connections and workers went on"));
}

pid_t Brokers::Beat() {
  const uint64_t told = board_->told.load();
  const uint64_t asked = std::exchange(asked_, told).value_or(0);
  const pid_t hung = driver();
  if (hung == 0 || board_->seen.load() >= asked) return 0;
  for (const Broker& broker : brokers_) {
    if (broker.pid == hung) (void)SendSignal(broker.pidfd.get(), SIGKILL);
  }
  return hung;
}

void Brokers::Send(const BrokerMessage& message, int descriptor) {
  for (Broker& broker : brokers_) {
    const bool waits = !Drives(broker);
    if (SendMessage(broker.messages.get(), message, descriptor) &&
        (!waits || ++broker.sent <= kMostUnread)) {
      continue;
    }
    (void)SendSignal(broker.pidfd.get(), SIGKILL);
  }
}

}  // namespace baton::driver_process
