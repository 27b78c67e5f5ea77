// Tests of what a service promises when its workers die, for C++17 and later and any test
// framework:
//
//   void CountToFive(baton::test_kit::Peer& peer) {
//     for (int i = 1; i <= 5; ++i) EXPECT_EQ(peer.Ask("1"), std::to_string(i)) << peer.where();
//   }
//   TEST(Counter, CountsEachMessageOnce) {
//     baton::test_kit::AtEachCommit({{"./counter", "{socket}", "{port}"}}, CountToFive);
//   }
//
// A call that fails throws Failure, with the logs of the processes. testing.h says what each call
// does.
#ifndef BATON_TESTING_HPP_
#define BATON_TESTING_HPP_

#include <baton/testing.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton {
inline namespace v0 {
namespace test_kit {

class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Options {
  std::vector<std::string> worker;       // its program and arguments, with {socket} and {port}
  std::string service = "test";          // as the worker calls it
  std::string crash_at = {};             // see struct baton_test_options
  bool native = false;                   // likewise
  std::vector<std::string> batond = {};  // likewise
};

// A service that runs, with an owner and a worker that stands by.
class Service {
 public:
  explicit Service(const Options& options) {
    const std::vector<const char*> worker = WordsOf(options.worker);
    baton_test_options given = BATON_TEST_OPTIONS_INIT;
    given.worker = worker.data();
    given.service = options.service.c_str();
    given.crash_at = options.crash_at.empty() ? nullptr : options.crash_at.c_str();
    given.native = options.native;
    const std::vector<const char*> batond = WordsOf(options.batond);
    given.batond = batond.data();
    baton_test* test = nullptr;
    const int code = baton_test_start(&given, &test);
    test_.reset(test);
    if (code != 0) throw Failure(baton_test_error());
  }

  void KillOwner() { Check(baton_test_kill_owner(test_.get())); }
  void KillOwnerAfter(std::chrono::microseconds time) {
    Check(baton_test_kill_owner_after(test_.get(), static_cast<uint64_t>(time.count())));
  }
  void Settle() { Check(baton_test_settle(test_.get())); }
  void HandOff() { Check(baton_test_hand_off(test_.get())); }
  // Empty: to the program that runs.
  void Upgrade(const std::vector<std::string>& worker = {}) {
    Check(baton_test_upgrade(test_.get(), worker.empty() ? nullptr : WordsOf(worker).data()));
  }
  // The first worker has killed itself at Options::crash_at. Throws Failure if a worker has ended
  // that nobody was to end.
  bool Crashed() {
    int crashed = 0;
    Check(baton_test_crashed(test_.get(), &crashed));
    return crashed != 0;
  }

  // Throws Failure, with the logs, unless `code` is 0.
  void Check(int code) {
    if (code == 0) return;
    const std::string what = baton_test_error();
    throw Failure(what + "\n" + baton_test_logs(test_.get()));
  }

  baton_test* handle() { return test_.get(); }

 private:
  static std::vector<const char*> WordsOf(const std::vector<std::string>& command) {
    std::vector<const char*> words;
    for (const std::string& word : command) words.push_back(word.c_str());
    words.push_back(nullptr);
    return words;
  }

  struct Ender {
    void operator()(baton_test* test) const { baton_test_end(test); }
  };
  std::unique_ptr<baton_test, Ender> test_;
};

// A connection to a service. The service has to live longer.
class Peer {
 public:
  // `where`: when the owner is killed, for messages.
  explicit Peer(Service& service, std::string where = {})
      : service_(service), where_(std::move(where)) {
    baton_test_peer* peer = nullptr;
    service.Check(baton_test_connect(service.handle(), &peer));
    peer_.reset(peer);
  }

  void Send(std::string_view message) {
    service_.Check(baton_test_send(peer_.get(), message.data(), message.size()));
  }
  std::string Receive() {
    const void* message = nullptr;
    size_t length = 0;
    service_.Check(baton_test_receive(peer_.get(), &message, &length));
    return {static_cast<const char*>(message), length};
  }
  std::string Ask(std::string_view message) {
    Send(message);
    return Receive();
  }
  Service& service() { return service_; }
  const std::string& where() const { return where_; }

 private:
  struct Disconnecter {
    void operator()(baton_test_peer* peer) const { baton_test_disconnect(peer); }
  };
  Service& service_;
  const std::string where_;
  std::unique_ptr<baton_test_peer, Disconnecter> peer_;
};

// Calls scenario(peer). What it throws says where the owner was killed.
template <typename Scenario>
void RunScenario(Scenario& scenario, Peer& peer) {
  try {
    scenario(peer);
  } catch (const Failure& failure) {
    throw Failure(peer.where() + ": " + failure.what());
  }
}

// Runs `scenario`, of a Peer&, on a new service for each of the owner's commits, twice: the owner
// is killed right before the commit, so that nothing of the transaction happened, and right after
// it, so that all of it did. The worker that stands by goes on, and the scenario must not see a
// difference. Returns the number of kills, which may vary with how completions come together in
// commits. Each takes the start of batond and two workers. Throws Failure if there was none: the
// program is not linked with libbaton.so.0 then, or does not commit.
template <typename Scenario>
uint32_t AtEachCommit(const Options& options, Scenario scenario) {
  constexpr int kMostCommits = 10000;
  uint32_t kills = 0;
  for (const char* const place : {"commit-before-publish:", "commit-published:"}) {
    // Completions that came together in one run may not in the next: the first run without a kill
    // may have had fewer commits than the next one will.
    for (int commit = 1, without = 0; without < 2; ++commit) {
      if (commit > kMostCommits) throw Failure("the scenario takes more than 10,000 commits");
      Options doomed = options;
      doomed.crash_at = place + std::to_string(commit);
      Service service(doomed);
      {
        Peer peer(service, "killed at " + doomed.crash_at);
        RunScenario(scenario, peer);
      }
      const bool crashed = service.Crashed();
      without = crashed ? 0 : without + 1;
      kills += crashed ? 1 : 0;
    }
  }
  if (kills == 0)
    throw Failure("no owner was killed at a commit: is it linked with libbaton.so.0?");
  return kills;
}

// Runs `scenario`, of a Peer&, on one service `kills` times, each time on a new connection. Each
// time the owner is killed at a random instant, from its beginning to a little after its end. The
// same seed gives the same fractions of the time that the scenario takes.
template <typename Scenario>
void AtRandom(const Options& options, uint32_t kills, uint32_t seed, Scenario scenario) {
  using Clock = std::chrono::steady_clock;
  Service service(options);
  std::mt19937 random(seed);
  Clock::duration shortest = Clock::duration::max();  // without a kill
  for (int run = 0; run < 4; ++run) {
    Peer peer(service, "without a kill");
    const auto begun = Clock::now();
    RunScenario(scenario, peer);
    shortest = std::min(shortest, Clock::now() - begun);
  }
  const auto most = std::chrono::duration_cast<std::chrono::microseconds>(shortest * 5 / 4).count();
  for (uint32_t kill = 0; kill < kills; ++kill) {
    const double fraction = static_cast<double>(random()) / std::mt19937::max();
    const std::chrono::microseconds instant(
        static_cast<int64_t>(fraction * static_cast<double>(most)));
    Peer peer(service, "killed after " + std::to_string(instant.count()) + " us");
    service.KillOwnerAfter(instant);
    RunScenario(scenario, peer);
    service.Settle();
    service.Crashed();
  }
}

}  // namespace test_kit
}  // namespace v0
}  // namespace baton

#endif  // BATON_TESTING_HPP_
