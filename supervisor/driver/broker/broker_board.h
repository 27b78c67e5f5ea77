// The memory in which `baton-driver` and the brokers of its service talk to each other, beside the
// arena. It is anonymous, and brokers inherit it. Brokers may be of another release than
// `baton-driver`: BATON_DRIVER_CODE_VERSION (../code/driver_code.h) is its version, too.
#ifndef SUPERVISOR_DRIVER_BROKER_BROKER_BOARD_H_
#define SUPERVISOR_DRIVER_BROKER_BROKER_BOARD_H_

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/mapped_memory.h"
#include "supervisor/driver/engine/turn_loop.h"

namespace baton::driver_process {

// A status that is stored once, and read by the other side.
struct BoardStatus {
  std::atomic<uint32_t> code{0};
  char message[252] = {};

  // The first one counts.
  void Store(const absl::Status& status);
  absl::Status Load() const;
};

// With those that are killed and have not ended yet.
inline constexpr size_t kMostBrokers = 8;

struct BrokerBoard {
  // A robust lock, which the broker that drives holds until it dies. Others wait for it: so the
  // kernel lets exactly one follow, at once.
  pthread_mutex_t drives;

  // Written by `baton-driver`.
  alignas(64) std::atomic<uint64_t> told{0};  // grows when a broker has something to look at
  std::atomic<uint64_t> looked{0};            // value of `changes` at its last look at the shards
  std::atomic<uint32_t> posts_of_service{0};  // a second; 0: no limit
  std::atomic<uint32_t> posts_of_worker{0};
  std::atomic<uint32_t> poison_deaths{0};
  std::atomic<pid_t> leaves{0};  // this broker is to end between two turns
  BoardStatus lost;              // the device, as `baton-driver` knows

  // Written by the broker that drives.
  // Value of `told` of which all is carried out, notices of connections included.
  alignas(64) std::atomic<uint64_t> seen{0};
  std::atomic<uint64_t> changes{0};       // grows when shards have changed
  std::atomic<uint64_t> releasers{0};     // see BrokeredOptions
  std::atomic<uint64_t> generation{0};    // brokers that have driven
  std::atomic<pid_t> driver{0};           // process that drives, or did; 0: none yet
  std::atomic<uint64_t> took_lock_ns{0};  // when it did; CLOCK_MONOTONIC
  std::atomic<uint64_t> took_over_ns{0};  // how long it took to take over
  BoardStatus ended;                      // all connections have, because the device is lost
  // By place of a broker, which stores that it could drive from now on. `baton-driver` clears it
  // before it forks.
  std::array<std::atomic<bool>, kMostBrokers> ready = {};
  // The release of each broker's code, by place, as text that ends with a zero. It is valid once
  // the broker is ready.
  std::array<char[24], kMostBrokers> releases = {};
  // The reason why a broker that has ended could not drive, by place.
  std::array<BoardStatus, kMostBrokers> failed = {};
  TurnTimes times;  // `baton-driver` reads them while they change
};

static_assert(offsetof(BrokerBoard, drives) == 0x000 && sizeof(pthread_mutex_t) <= 0x40);
static_assert(offsetof(BrokerBoard, told) == 0x040 && offsetof(BrokerBoard, looked) == 0x048);
static_assert(offsetof(BrokerBoard, posts_of_service) == 0x050);
static_assert(offsetof(BrokerBoard, posts_of_worker) == 0x054);
static_assert(offsetof(BrokerBoard, poison_deaths) == 0x058);
static_assert(offsetof(BrokerBoard, leaves) == 0x05c);
static_assert(offsetof(BrokerBoard, lost) == 0x060 && sizeof(BoardStatus) == 0x100);
static_assert(offsetof(BrokerBoard, seen) == 0x180 && offsetof(BrokerBoard, changes) == 0x188);
static_assert(offsetof(BrokerBoard, releasers) == 0x190);
static_assert(offsetof(BrokerBoard, generation) == 0x198 && offsetof(BrokerBoard, driver) == 0x1a0);
static_assert(offsetof(BrokerBoard, took_lock_ns) == 0x1a8);
static_assert(offsetof(BrokerBoard, took_over_ns) == 0x1b0);
static_assert(offsetof(BrokerBoard, ended) == 0x1b8 && offsetof(BrokerBoard, ready) == 0x2b8);
static_assert(offsetof(BrokerBoard, releases) == 0x2c0 && offsetof(BrokerBoard, failed) == 0x380);
static_assert(offsetof(BrokerBoard, times) == 0xb80);

// Owns the mapping of a board. Processes that are forked from this one inherit it.
class SharedBoard {
 public:
  static absl::StatusOr<SharedBoard> Make();

  BrokerBoard* get() const { return reinterpret_cast<BrokerBoard*>(memory_.get()); }
  BrokerBoard* operator->() const { return get(); }

 private:
  MappedMemory memory_;
};

// Takes the lock. Waits for the death of the broker that has it, however long it lives.
absl::Status TakeDrive(BrokerBoard* board);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_BROKER_BROKER_BOARD_H_
