// The shards of a native service whose driver died (adoption.h): who is to follow their owners,
// that an owner which hangs is killed, and a worker of which only a thread has ended. What the
// arena says of it was written by workers: it is checked, and no process is found by it.
//
// The ownership records cannot be written any more (the driver log memory is sealed). What is left
// is the heirs' names, in the recovery memory, and that is enough: an heir takes the shard of a
// dead owner by itself. Not where a successor has to wait for the whole process's end ("outside
// effects"), which only a driver's word in the ownership record could tell it.
#ifndef SUPERVISOR_DRIVER_NATIVE_ADOPTED_SHARDS_H_
#define SUPERVISOR_DRIVER_NATIVE_ADOPTED_SHARDS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/v1/config.pb.h"

namespace baton::driver_process {

// Thread-compatible.
class AdoptedShards {
 public:
  // `arena` outlives it. By worker slot, `wakes`: eventfds; `processes`: HeldWorkers.
  AdoptedShards(const arena::Arena* arena, std::vector<FileDescriptor> wakes,
                std::vector<FileDescriptor> processes, const v1::ServiceConfig& service);

  // Now and then. `now_ns`: MonotonicNanoseconds(). `is_used`: whether a shard has connections.
  void Turn(uint64_t now_ns, const std::function<bool(uint32_t shard)>& is_used);
  // Between two looks at who lives. It is looks that are counted, not time: a machine that stood
  // still has made all workers overdue, and none of them hangs.
  static constexpr uint64_t kLookNs = 200'000'000;
  void WakeDriver(uint32_t shard) const;

  // A shard that nobody can serve any more; empty: there is none.
  std::string WhyStuck() const;

 private:
  struct Beat {
    uint64_t value = 0;
    uint32_t silent_looks = 0;
    bool told = false;  // that it hangs; as a rule by killing it
  };

  uint32_t OwnerOf(uint32_t shard) const;
  bool IsAlive(uint32_t slot) const;
  bool IsSilent(uint32_t slot) const { return beats_[slot].silent_looks >= hang_looks_; }
  void TellMove(uint32_t shard);
  void TellPoisonings(uint32_t shard);
  void NameHeir(uint32_t shard);
  void WakeAll() const;
  void LookAtBeats();
  void LookAtLocks();
  void LookAtOwner(uint32_t shard, bool used);
  void OnHang(uint32_t slot);
  void Kill(uint32_t slot, std::string_view kind, std::string_view why) const;

  const arena::Arena* const arena_;
  const std::vector<FileDescriptor> wakes_;
  const bool outside_effects_;
  const bool kills_hung_;  // of the configuration's policy: one that was set later is gone
  const uint32_t hang_looks_;
  bool looked_before_ = false;
  uint64_t looked_ns_ = 0;
  std::vector<uint64_t> served_epochs_;   // known, by shard
  std::vector<uint32_t> unserved_looks_;  // by shard; in a row
  std::vector<Beat> beats_;               // by worker slot
  std::vector<bool> thread_ended_;        // likewise: with its lock held, and that was told
  const std::vector<FileDescriptor> processes_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_ADOPTED_SHARDS_H_
