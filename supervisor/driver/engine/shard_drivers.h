// Interface between Succession, which decides who is to own each shard, and those who move shards.
#ifndef SUPERVISOR_DRIVER_ENGINE_SHARD_DRIVERS_H_
#define SUPERVISOR_DRIVER_ENGINE_SHARD_DRIVERS_H_

#include <cstdint>
#include <string>

namespace baton::driver_process {

// Drivers of a service's shards. They end ownerships and begin new ones: the engine of a
// brokered service (BrokeredShards), or the workers of a native service (NativeShards).
// They note in the arena what they did, and Succession reads it there.
//
// Thread-compatible: the engine's thread.
class ShardDrivers {
 public:
  virtual ~ShardDrivers() = default;

  // Returns true if heirs take shards themselves, from owners that died or released them.
  virtual bool heirs_claim() const = 0;
  // The shard has another heir now, which SuccessionRecord::heir names. `slot`: kNobody for none.
  virtual void OnHeir(uint32_t shard, uint32_t slot) = 0;
  // Gives the shard, which nobody owns, to the worker in `slot`, which is its heir. Returns why it
  // has to wait; empty: it does not.
  virtual std::string Give(uint32_t shard, uint32_t slot) = 0;
  // A worker has ended, which WorkerRecord::ended_id names: all its registered threads are dead, or
  // it has detached, and it writes no more.
  virtual void OnEnded() = 0;
  // Returns true if they have carried out all that was decided. False: one of them has not answered
  // in time.
  virtual bool Settle() { return true; }
  // The process of the worker that WorkerRecord::dead_id of `slot` names is dead. No word may name
  // the slot after this call.
  virtual void OnDead(uint32_t slot) = 0;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_SHARD_DRIVERS_H_
