#ifndef LIB_NIC_REGISTERS_H_
#define LIB_NIC_REGISTERS_H_

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/bells.h"
#include "lib/nic/host.h"
#include "lib/nic/objects.h"

namespace baton::nic {

// The doorbell registers of one client's file, by number. A ring is a hint: it schedules a queue
// pair of the same file and register, whose records say what is queued.
class Registers {
 public:
  // `host` outlives it.
  Registers(Owner owner, const Host* host);
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;

  // Returns the client's copy of the eventfd that wakes the NIC. `number` is not in use.
  absl::StatusOr<FileDescriptor> Add(uint32_t number, Bells bells);
  // The caller has destroyed all queues that use it.
  void Erase(uint32_t number) { registers_.erase(number); }
  bool Contains(uint32_t number) const { return registers_.contains(number); }
  size_t size() const { return registers_.size(); }

  // Takes what was rung, at most as much as there are places. Returns false if nothing was.
  bool Take();
  void SetSleeping(bool sleeping);
  bool empty() const;  // see Bells::empty

 private:
  struct Register {
    Register(Bells bells_of_page, FileDescriptor wake_fd, int epoll)
        : bells(std::move(bells_of_page)), wake(std::move(wake_fd)), epoll_fd(epoll) {}
    Register(const Register&) = delete;
    Register& operator=(const Register&) = delete;
    ~Register();

    Bells bells;
    const FileDescriptor wake;
    const int epoll_fd;
    std::vector<uint64_t> held;  // rings of NicBehaviour that are for another turn
  };

  bool TakeFrom(uint32_t number, Register* from);
  bool TakeByBehaviour(uint32_t number, Register* from);
  bool Draw(double probability);
  void OnRing(uint32_t number, uint64_t bytes);
  void OnArm(uint32_t number, uint64_t bytes);
  void OnLook(uint32_t number, uint32_t qp_number);
  void LookAtAll(uint32_t number);
  QueuePair* FindQueuePair(uint32_t number) const;

  const Owner owner_;
  const Host* const host_;
  const bool behaves_;  // NicBehaviour says something
  std::mt19937_64 random_;
  absl::flat_hash_map<uint32_t, std::unique_ptr<Register>> registers_;
};

}  // namespace baton::nic

#endif  // LIB_NIC_REGISTERS_H_
