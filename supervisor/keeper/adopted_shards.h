// The shards of a native service whose keeper died (adoption.h): who is to follow their owners, and
// that an owner which hangs is killed.
//
// The ownership records cannot be written any more (the driver log memory is sealed). What is left
// is the heirs' names, in the recovery memory, and that is enough: an heir takes the shard of a
// dead owner by itself. Not where a successor has to wait for the whole process's end ("outside
// effects"), which only a keeper's word in the ownership record could tell it.
#ifndef SUPERVISOR_KEEPER_ADOPTED_SHARDS_H_
#define SUPERVISOR_KEEPER_ADOPTED_SHARDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/v1/config.pb.h"

namespace baton::keeper {

// Thread-compatible.
class AdoptedShards {
 public:
  // `arena` outlives it. `wakes`: eventfds, by worker slot.
  AdoptedShards(const arena::Arena* arena, std::vector<FileDescriptor> wakes,
                const v1::ServiceConfig& service);

  // Now and then. `now_ns`: MonotonicNanoseconds().
  void Turn(uint64_t now_ns);
  void WakeDriver(uint32_t shard) const;

  // A shard that nobody can serve any more; empty: there is none.
  std::string WhyStuck() const;

 private:
  struct Beat {
    uint64_t value = 0;
    uint64_t since_ns = 0;  // 0: not looked at yet
  };

  uint32_t OwnerOf(uint32_t shard) const;
  bool IsAlive(uint32_t slot) const;
  uint32_t LockHolder(uint32_t slot) const;
  void TellMove(uint32_t shard);
  void NameHeir(uint32_t shard);
  void LookAtOwner(uint32_t shard, uint64_t now_ns);
  void Kill(uint32_t slot) const;

  const arena::Arena* const arena_;
  const std::vector<FileDescriptor> wakes_;
  const bool outside_effects_;
  const uint64_t hang_timeout_ns_;
  std::vector<uint64_t> served_epochs_;  // known, by shard
  std::vector<Beat> beats_;              // by worker slot
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_ADOPTED_SHARDS_H_
