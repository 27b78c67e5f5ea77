// Tests of what a service promises when its workers die, for C++17 and later and any test framework:
//
//   TEST(Counter, CountsEachMessageOnce) {
//     baton::testing::AtEachCommit({{"./counter", "{socket}", "{port}"}}, [](baton::testing::Peer& peer) {
//       for (int i = 1; i <= 5; ++i) EXPECT_EQ(peer.Ask("1"), std::to_string(i));
//     });
//   }
//
// What cannot go on throws Failure, with what the processes logged. testing.h says what each call does.
#ifndef BATON_TESTING_HPP_
#define BATON_TESTING_HPP_

#include <baton/testing.h>

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
namespace testing {

class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Options {
  std::vector<std::string> worker;  // its program and arguments, with {socket} and {port}
  std::string service = "test";     // as the worker calls it
  std::string crash_at = {};        // see struct baton_test_options
};

// A service that runs, with an owner and a worker that stands by.
class Service {
 public:
  explicit Service(const Options& options) {
    std::vector<const char*> worker;
    for (const std::string& part : options.worker) worker.push_back(part.c_str());
    worker.push_back(nullptr);
    baton_test_options given = BATON_TEST_OPTIONS_INIT;
    given.worker = worker.data();
    given.service = options.service.c_str();
    given.crash_at = options.crash_at.empty() ? nullptr : options.crash_at.c_str();
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
  uint32_t Kills() {
    uint32_t kills = 0;
    Check(baton_test_kills(test_.get(), &kills));
    return kills;
  }

  // Throws Failure, with the logs, unless `code` is 0.
  void Check(int code) {
    if (code == 0) return;
    const std::string what = baton_test_error();
    throw Failure(what + "\n" + baton_test_logs(test_.get()));
  }

  baton_test* handle() { return test_.get(); }

 private:
  struct Ender {
    void operator()(baton_test* test) const { baton_test_end(test); }
  };
  std::unique_ptr<baton_test, Ender> test_;
};

// A connection to a service, which outlives it.
class Peer {
 public:
  explicit Peer(Service& service) : service_(service) {
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

 private:
  struct Disconnecter {
    void operator()(baton_test_peer* peer) const { baton_test_disconnect(peer); }
  };
  Service& service_;
  std::unique_ptr<baton_test_peer, Disconnecter> peer_;
};

// Runs `scenario`, of a Peer&, on a new service for each of the owner's commits, twice: the owner is killed
// right before the commit, so that nothing of the transaction happened, and right after it, so that all of
// it did. The worker that stands by goes on, and the scenario must not see a difference. Returns the number
// of kills. Throws Failure if there was none: the program is not linked with libbaton.so.0 then, or does
// not commit.
template <typename Scenario>
uint32_t AtEachCommit(const Options& options, Scenario scenario) {
  uint32_t kills = 0;
  for (const char* const place : {"commit-before-publish:", "commit-published:"}) {
    for (uint32_t commit = 1;; ++commit) {
      Options doomed = options;
      doomed.crash_at = place + std::to_string(commit);
      Service service(doomed);
      {
        Peer peer(service);
        scenario(peer);
      }
      if (service.Kills() == 0) break;  // the scenario needs no more commits
      ++kills;
    }
  }
  if (kills == 0) throw Failure("no owner was killed at a commit: is it linked with libbaton.so.0?");
  return kills;
}

// Runs `scenario`, of a Peer&, on one service `kills` times, each time on a new connection. Each time the
// owner is killed at a random instant, from its beginning to a little after its end. `seed` gives the
// instants.
template <typename Scenario>
void AtRandom(const Options& options, uint32_t kills, uint32_t seed, Scenario scenario) {
  using Clock = std::chrono::steady_clock;
  Service service(options);
  std::mt19937 random(seed);
  Clock::duration longest{};  // how long the scenario took without a kill
  for (int run = 0; run < 2; ++run) {
    const auto begun = Clock::now();
    Peer peer(service);
    scenario(peer);
    longest = Clock::now() - begun;
  }
  const auto most = std::chrono::duration_cast<std::chrono::microseconds>(longest * 5 / 4).count();
  std::uniform_int_distribution<int64_t> instants(0, most);
  for (uint32_t kill = 0; kill < kills; ++kill) {
    service.KillOwnerAfter(std::chrono::microseconds(instants(random)));
    Peer peer(service);
    scenario(peer);
    service.Settle();
  }
}

}  // namespace testing
}  // namespace v0
}  // namespace baton

#endif  // BATON_TESTING_HPP_
