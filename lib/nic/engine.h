// The event loop of a soft device: one epoll with its timers and wake-ups, and the connections that
// have something to write.
#ifndef LIB_NIC_ENGINE_H_
#define LIB_NIC_ENGINE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/timer_queue.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

class Pollable {
 public:
  virtual ~Pollable() = default;
  virtual void OnReady(uint32_t events) = 0;  // EPOLL* bits
  virtual void OnTransmit() {}                // once after MarkDirty

  // Only for objects that are polled: see Engine::Heat.
  virtual void OnHeat() {}
  virtual bool OnPoll() { return false; }  // returns false if there was nothing
  virtual bool OnCool() { return true; }   // returns false if there is something now

 private:
  friend class Engine;
  bool dirty_ = false;
  uint8_t hot_ = 0;  // its index in Engine::hot_ plus 1; 0: not hot
};

class Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Create();
  Engine(FileDescriptor epoll, FileDescriptor timer, FileDescriptor wake);

  absl::Status Watch(int fd, uint32_t events, Pollable* pollable);
  void Rewatch(int fd, uint32_t events, Pollable* pollable);
  void Unwatch(int fd);

  // Calls OnTransmit in the next Progress.
  void MarkDirty(Pollable* pollable);
  // Makes a pollable hot: calls OnHeat, unless it was hot before, and then OnPoll in each turn.
  // When OnPoll has found nothing for a while, or before a wait, the engine calls OnCool. If that
  // returns true, the pollable is no longer hot. While any pollable is hot, event_fd() is readable.
  // Returns false if too many are hot.
  bool Heat(Pollable* pollable);
  void Cool(Pollable* pollable);
  bool hot(const Pollable* pollable) const { return pollable->hot_ != 0; }
  // Cools all. Returns false if one of them has something to do.
  bool PrepareToWait();

  // Called before a pollable is destroyed, which must not happen inside Progress except through
  // Bury().
  void Forget(Pollable* pollable);
  // Keeps a pollable until no event of this turn can name it.
  void Bury(std::unique_ptr<Pollable> pollable) { graveyard_.push_back(std::move(pollable)); }

  // Marks the device as lost. The fault plan does this.
  void Lose() { lost_ = true; }
  bool lost() const { return lost_; }

  void Arm(Timer* timer, uint64_t delay_ns);
  void Cancel(Timer* timer) { timers_.Cancel(timer); }

  // Reads the clock, for work outside of a turn.
  void UpdateNow();
  // Does one turn. Returns false if there was nothing to do.
  bool Progress();
  int event_fd() const { return epoll_.get(); }
  uint64_t now() const { return now_; }    // ns, of the latest Progress or UpdateNow
  uint64_t turn() const { return turn_; }  // grows with each Progress

 private:
  struct Hot {
    Pollable* pollable;
    uint64_t since;  // when OnPoll found something last
  };

  void TransmitDirty();
  void PollHot(bool* idle);
  void HandleReady(bool* idle);
  void ArmTimerFd();
  void Signal();
  void Settle(bool idle);

  FileDescriptor epoll_;
  FileDescriptor timer_fd_;
  FileDescriptor wake_fd_;  // eventfd; readable while signaled_
  TimerQueue timers_;
  uint64_t armed_ = TimerQueue::kNever;  // what timer_fd_ is set to
  uint64_t now_ = 0;
  uint64_t turn_ = 1;
  bool lost_ = false;
  bool signaled_ = false;
  std::vector<Hot> hot_;
  std::vector<Pollable*> dirty_;
  std::vector<Pollable*> transmitting_;  // swapped with dirty_, to keep both capacities
  std::vector<std::unique_ptr<Pollable>> graveyard_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_ENGINE_H_
