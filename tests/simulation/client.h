// A peer of the service, which believes nothing: every reply has to carry the next sequence number
// and its own running total.
#ifndef TESTS_SIMULATION_CLIENT_H_
#define TESTS_SIMULATION_CLIENT_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "tests/simulation/checker.h"
#include "tests/simulation/context.h"
#include "tests/simulation/sim_device.h"

namespace baton::simulation {

class Client final : public RemoteEnd {
 public:
  Client(Context* context, Checker* checker, SimDevice* device, uint32_t index, uint32_t window,
         bool passive)
      : context_(context),
        checker_(checker),
        device_(device),
        index_(index),
        window_(window),
        passive_(passive) {}

  // One thing: connects, sends a request, or leaves, when it may.
  void Step(bool faults);

  // From now on some of its requests kill the service.
  void SendPoison() { poisons_ = true; }

  // The service connects to it, instead of the other way round. Its number is in the answer.
  void OnRequest(Wire* wire);
  bool free() const { return passive_ && state_ == State::kIdle; }

  // From now on it does not leave; it is done with `replies` more of them, over connections that
  // may have to be made first.
  void Expect(uint64_t replies);
  bool done() const {
    return free() || (state_ == State::kEstablished && expected_ == 0 && open_.empty());
  }
  // Some request was sent and its reply will never come.
  bool lost_replies() const { return lost_replies_; }
  uint64_t replies() const { return replies_; }
  std::string Describe() const;

  void OnAccepted(std::string_view private_data) override;
  void OnRejected(std::string_view private_data) override;
  void OnMessage(const Message& message) override;
  void OnDisconnected() override;

 private:
  enum class State : uint8_t { kIdle, kAsking, kEstablished };
  struct Open {
    uint64_t sequence, total;
  };

  void Leave();
  void Ended(const char* how);

  Context* const context_;
  Checker* const checker_;
  SimDevice* const device_;
  const uint32_t index_;
  const uint32_t window_;
  const bool passive_;
  State state_ = State::kIdle;
  Wire* wire_ = nullptr;
  uint64_t id_ = 0;  // another one for each connection
  uint64_t incarnations_ = 0;
  uint64_t sequence_ = 0, total_ = 0;
  std::deque<Open> open_;
  uint64_t replies_ = 0;
  uint64_t expected_ = ~uint64_t{0};  // still to be asked for
  bool lost_replies_ = false;
  bool poisons_ = false;
};

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_CLIENT_H_
