// A native service that connects to its peer (connecting_peer.cc), again and again, uses each
// connection for one message and its reply, and ends it. Owners kill themselves while they ask.
//
// Each ask has a number, which is its tag and goes to the peer. What was asked, and what became of
// it, is state of the shard, committed before and with it: so an outcome that is told a second
// time, or of something that nobody asked for, is found by whoever owns the shard then.
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/native/connecting_asks.h"
#include "worker/examples/common/flags.h"
#include "worker/worker.h"

namespace baton::native {
namespace {

constexpr int kPauseMs = 20;
constexpr size_t kUnsure = 64;

// The state of a shard.
struct Account {
  uint64_t asks = 0;
  uint64_t established = 0, used = 0, unheard = 0, rejected = 0;
  // Connect has refused, for a limit or otherwise. It is asked again.
  uint64_t limited = 0, refused = 0;
  // What must not be: an outcome that was told before or not asked for, another than it should be,
  // a connection that ended without its reply.
  uint64_t twice = 0, wrong = 0, broken = 0;
  std::array<uint64_t, 2> under_way = {};  // asks; 0: none
  // Asks of owners that died: they may not have reached the process that connects.
  std::array<uint64_t, kUnsure> unsure = {};
};

// The state of a connection.
struct Use {
  uint64_t ask = 0;
  bool answered = false;
};

struct Arguments {
  std::string peer, stop_file;
  uint16_t port = 0;
  int lives = 0;        // asks of an owner until it kills itself, at least; 0: it does not
  uint64_t forget = 0;  // a defect: this ask's connection is not used
  uint64_t repeat = 0;  // another: this ask is made twice
};

class Connecting final : public Service {
 public:
  explicit Connecting(const Arguments& arguments) : arguments_(arguments) {
    if (arguments.lives > 0) asks_to_live_ = arguments.lives + static_cast<int>(random_() % 32);
  }

  absl::Status Serve(const WorkerOptions& options) {
    BATON_ASSIGN_OR_RETURN(worker_, Worker::Attach(options, this));
    BATON_RETURN_IF_ERROR(worker_->Ready());
    while (!over_) {
      BATON_ASSIGN_OR_RETURN(const int work, worker_->Poll());
      const bool stops = access(arguments_.stop_file.c_str(), F_OK) == 0;
      for (Shard* shard : std::vector<Shard*>(shards_)) stops ? Tell(*shard) : AskForMore(*shard);
      if (work == 0) BATON_RETURN_IF_ERROR(worker_->Wait(kPauseMs));
    }
    worker_.reset();
    return absl::OkStatus();
  }

  absl::Status OnAdopt(Shard& shard) override {
    shards_.push_back(&shard);
    Account account = AccountOf(shard);
    for (uint64_t& ask : account.under_way) {
      const auto place = std::find(account.unsure.begin(), account.unsure.end(), 0);
      if (place != account.unsure.end()) *place = ask;
      ask = 0;
    }
    return Keep(shard, account);
  }
  void OnRelease(Shard& shard) override { std::erase(shards_, &shard); }
  void OnLost(Shard& shard) override { std::erase(shards_, &shard); }
  void OnShutdown(std::string_view) override { over_ = true; }

  void OnCompletion(Shard& shard, const Completion& done) override {
    using Kind = Completion::Kind;
    Account account = AccountOf(shard);
    Connection& connection = *done.connection;
    if (done.kind == Kind::kEstablished || done.kind == Kind::kConnectFailed) {
      OnOutcome(shard, done, account);
    } else if (done.kind == Kind::kReceive && done.status == verbs::CompletionStatus::kSuccess) {
      OnReply(shard, connection, account);
    } else if (done.kind == Kind::kDisconnected && !UseOf(connection).answered) {
      ++account.broken;
    }
    Check(Keep(shard, account));
  }

 private:
  static void Check(const absl::Status& status) {
    if (!status.ok()) std::cerr << "connecting-service: " << status << std::endl;
  }
  static Account AccountOf(const Shard& shard) {
    Account account;
    if (!shard.state().empty()) std::memcpy(&account, shard.state().data(), sizeof(account));
    return account;
  }
  static absl::Status Keep(Shard& shard, const Account& account) {
    return shard.SetShardState({reinterpret_cast<const uint8_t*>(&account), sizeof(account)}, 1);
  }
  static Use UseOf(const Connection& connection) {
    Use use;
    if (!connection.state().empty()) std::memcpy(&use, connection.state().data(), sizeof(use));
    return use;
  }
  static absl::Status Keep(Shard& shard, Connection& connection, const Use& use) {
    return shard.SetState(connection, {reinterpret_cast<const uint8_t*>(&use), sizeof(use)}, 1);
  }
  // Its message, and the peer's reply to it.
  Buffer BufferOf(const Connection& connection, bool reply) const {
    return {(uint64_t{connection.index()} * 2 + (reply ? 1 : 0)) * sizeof(FailoverMessage),
            sizeof(FailoverMessage)};
  }

  void AskForMore(Shard& shard) {
    for (size_t i = 0; i < Account{}.under_way.size(); ++i) {
      Account account = AccountOf(shard);
      if (account.under_way[i] == 0 && !AskForOne(shard, account, i)) return;
    }
  }

  // Commits the ask before it is made, so the next owner knows that this one was about to ask.
  bool AskForOne(Shard& shard, Account account, size_t place) {
    const uint64_t ask = (uint64_t{shard.index()} + 1) << 32 | ++account.asks;
    account.under_way[place] = ask;
    Check(Keep(shard, account));
    if (!shard.Commit().ok()) return false;
    if (--asks_to_live_ == 0) DieSoon();
    const uint16_t port = AskOf(ask) == Ask::kUnheard ? kNobodysPort : arguments_.port;
    const std::string_view data(reinterpret_cast<const char*>(&ask), sizeof(ask));
    const absl::Status status = worker_->Connect(shard, arguments_.peer, port, data, ask).status();
    if (account.asks == arguments_.repeat) {
      Check(worker_->Connect(shard, arguments_.peer, port, data, ask).status());
    }
    if (status.ok()) return true;
    account.under_way[place] = 0;
    const bool limited = status.code() == absl::StatusCode::kResourceExhausted;
    if (!limited && account.refused == 0) Check(status);
    ++(limited ? account.limited : account.refused);
    Check(Keep(shard, account));
    Check(shard.Commit());
    return false;
  }

  // Half of the deaths are about the time of one ask, the others about that of some.
  void DieSoon() {
    sigevent how = {};
    how.sigev_notify = SIGEV_SIGNAL;
    how.sigev_signo = SIGKILL;
    timer_t timer;
    itimerspec when = {};
    when.it_value.tv_nsec =
        1 + static_cast<long>(random_() % (random_() % 2 == 0 ? 5 : 200) * 1'000'000 +
                              random_() % 1'000'000);
    if (timer_create(CLOCK_MONOTONIC, &how, &timer) != 0 ||
        timer_settime(timer, 0, &when, nullptr) != 0) {
      std::abort();
    }
  }

  void OnOutcome(Shard& shard, const Completion& done, Account& account) {
    const auto forget = [&done](auto& asks) {
      const auto found = std::find(asks.begin(), asks.end(), done.tag);
      if (found == asks.end()) return false;
      *found = 0;
      return true;
    };
    if (!forget(account.under_way) && !forget(account.unsure)) ++account.twice;
    const bool established = done.kind == Completion::Kind::kEstablished;
    const Ask ask = AskOf(done.tag);
    if (established && ask == Ask::kUsed) {
      ++account.established;
      BeginUse(shard, *done.connection, done.tag);
    } else if (!established && ask == Ask::kUnheard &&
               done.status == verbs::CompletionStatus::kRetryExceeded) {
      ++account.unheard;
    } else if (!established && ask == Ask::kRejected &&
               done.status == verbs::CompletionStatus::kGeneralError) {
      ++account.rejected;
    } else {
      ++account.wrong;
      std::cerr << "connecting-service: ask " << done.tag
                << (established ? " established" : " failed") << " with "
                << verbs::CompletionStatusName(done.status) << std::endl;
    }
  }

  void BeginUse(Shard& shard, Connection& connection, uint64_t ask) {
    if ((ask & 0xffff'ffff) == arguments_.forget) return;
    Check(Keep(shard, connection, {ask, false}));
    FailoverMessage message;
    message.sequence = ask;
    const std::array reply = {BufferOf(connection, true)};
    const std::array buffer = {BufferOf(connection, false)};
    std::memcpy(worker_->buffers().data() + buffer[0].offset, &message, sizeof(message));
    Check(shard.Receive(connection, reply));
    Check(shard.Send(connection, {.buffers = buffer}));
  }

  void OnReply(Shard& shard, Connection& connection, Account& account) {
    Use use = UseOf(connection);
    FailoverMessage message;
    std::memcpy(&message, worker_->buffers().data() + BufferOf(connection, true).offset,
                sizeof(message));
    ++(message.sequence == use.ask && !use.answered ? account.used : account.wrong);
    use.answered = true;
    Check(Keep(shard, connection, use));
    Check(shard.Disconnect(connection));
  }

  // When it has changed.
  void Tell(const Shard& shard) {
    const Account account = AccountOf(shard);
    const auto under_way = std::count_if(account.under_way.begin(), account.under_way.end(),
                                         [](uint64_t ask) { return ask != 0; });
    const std::string line = absl::StrCat(
        "shard ", shard.index(), " asks ", account.asks, " established ", account.established,
        " used ", account.used, " unheard ", account.unheard, " rejected ", account.rejected,
        " limited ", account.limited, " refused ", account.refused, " twice ", account.twice,
        " wrong ", account.wrong, " broken ", account.broken, " open ", under_way, "\n");
    if (told_.size() <= shard.index()) told_.resize(shard.index() + 1);
    if (std::exchange(told_[shard.index()], line) != line) std::cout << line << std::flush;
  }

  const Arguments arguments_;
  std::unique_ptr<Worker> worker_;
  std::vector<Shard*> shards_;
  std::vector<std::string> told_;  // by shard
  std::mt19937 random_{std::random_device{}()};
  int asks_to_live_ = 0;
  bool over_ = false;
};

int Main(int argc, char** argv) {
  WorkerOptions options;
  Arguments arguments;
  std::string listen;
  examples::Flags flags("A native service that connects to its peer.");
  flags.Add("--socket", &options.socket, "the service's socket").Required();
  flags.Add("--service", &options.service, "name of the service").Required();
  flags.Add("--listen", &listen, "not used: it connects");
  flags.Add("--peer", &arguments.peer, "address of the peer").Required();
  flags.Add("--port", &arguments.port, "of the peer").Required();
  flags.Add("--stop-file", &arguments.stop_file, "once it is there, nothing is asked").Required();
  flags.Add("--lives", &arguments.lives, "asks of an owner until it kills itself, at least");
  flags.Add("--forget", &arguments.forget, "number of an ask whose connection is not used");
  flags.Add("--repeat", &arguments.repeat, "number of an ask that is made twice");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  options.commit_mode = CommitMode::kAfterEachCompletion;  // each finds what the last has kept
  const absl::Status status = Connecting(arguments).Serve(options);
  if (status.ok()) return 0;
  std::cerr << "connecting-service: " << status << "\n";
  return 1;
}

}  // namespace
}  // namespace baton::native

int main(int argc, char** argv) { return baton::native::Main(argc, argv); }
