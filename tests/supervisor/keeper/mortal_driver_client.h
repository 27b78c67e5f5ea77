// A keeper's client of a driver that lives on when the keeper dies: at any of its orders.
#ifndef TESTS_SUPERVISOR_KEEPER_MORTAL_DRIVER_CLIENT_H_
#define TESTS_SUPERVISOR_KEEPER_MORTAL_DRIVER_CLIENT_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "lib/channel/carried_status.h"
#include "supervisor/driver/engine/order_executor.h"
#include "supervisor/driver/keeper/dealings.h"
#include "supervisor/driver/keeper/held_entries.h"
#include "supervisor/keeper/driver_client.h"

namespace baton::keeper::testing {

// Unwinds a keeper that dies.
struct KeeperDeath {};

// The parts of the driver that outlive its keepers.
struct LastingDriver {
  driver_process::OrderExecutor& executor;
  driver_process::NewsQueue& news;
  driver_process::HeldEntries held = {};
  driver_process::Dealings dealings = {};
  bool ready_once = false;  // a keeper was
};

// One keeper's end of it. The keeper is introduced when this is made.
class MortalDriverClient final : public DriverClient {
 public:
  enum class Fate {
    kLives,
    kDies,              // the order is lost with it
    kDiesUnanswered,    // the order is executed
    kLosesDescriptors,  // those of the order, and lives
  };

  // `driver` outlives it. `next` decides what becomes of the keeper that gives an order.
  MortalDriverClient(LastingDriver& driver, std::function<Fate(const internal::DriverOrder&)> next)
      : driver_(driver), next_(std::move(next)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    driver_.executor.CancelHandovers();
    introduced_.set_follows(driver_.ready_once);
    driver_.news.SetWake([this] { eventfd_write(wake_.get(), 1); });
  }
  ~MortalDriverClient() override {
    driver_.news.SetWake([] {});
  }

  const arena::Arena& arena() const override { return driver_.executor.arena(); }
  std::string_view device_name() const override { return "soft"; }
  int news_fd() const override { return wake_.get(); }

  // Throws KeeperDeath. From then on nothing is executed.
  internal::DriverAnswer Execute(const internal::DriverOrder& order,
                                 std::vector<FileDescriptor> descriptors = {},
                                 std::vector<FileDescriptor>* received = nullptr) override {
    if (dead_) return internal::DriverAnswer();
    const Fate fate = next_(order);
    dead_ = fate == Fate::kDies || fate == Fate::kDiesUnanswered;
    if (fate == Fate::kLosesDescriptors) descriptors.clear();
    if (fate == Fate::kDies) throw KeeperDeath();
    internal::DriverAnswer answer = ExecuteAtDriver(order, std::move(descriptors), received);
    if (dead_) throw KeeperDeath();
    return answer;
  }

 protected:
  std::vector<internal::DriverNews> TakeNews() override {
    eventfd_t count;
    (void)eventfd_read(wake_.get(), &count);
    return driver_.news.Take();
  }

 private:
  internal::DriverAnswer ExecuteAtDriver(const internal::DriverOrder& order,
                                         std::vector<FileDescriptor> descriptors,
                                         std::vector<FileDescriptor>* received) {
    internal::DriverAnswer answer;
    if (order.has_hold()) {
      SetStatus(driver_.held.Hold(order.hold(), std::move(descriptors)), &answer);
    } else if (order.has_drop()) {
      driver_.held.Drop(order.drop().key());
    } else if (order.has_deal_with()) {
      SetStatus(driver_.dealings.Begin(order.deal_with()), &answer);
    } else if (order.has_take_next_held()) {
      TakeNextHeld(order.take_next_held().after(), &answer, received);
    } else {
      driver_.ready_once |= order.has_note_ready();
      return driver_.executor.Execute(order, std::move(descriptors), received);
    }
    return answer;
  }

  void TakeNextHeld(const std::string& after, internal::DriverAnswer* answer,
                    std::vector<FileDescriptor>* received) {
    internal::Hold entry;
    std::vector<int> descriptors;
    if (!driver_.held.Next(after, &entry, &descriptors)) return;
    *answer->mutable_held() = entry;
    for (const int one : descriptors) {
      if (FileDescriptor copy(dup(one)); copy) received->push_back(std::move(copy));
    }
  }

  LastingDriver& driver_;
  const std::function<Fate(const internal::DriverOrder&)> next_;
  const FileDescriptor wake_;
  bool dead_ = false;
};

}  // namespace baton::keeper::testing

#endif  // TESTS_SUPERVISOR_KEEPER_MORTAL_DRIVER_CLIENT_H_
