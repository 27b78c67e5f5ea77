// Takes commands from their arrival to their execution, with their data.
#ifndef WORKER_EXAMPLES_NVMED_COMMAND_PROCESSOR_H_
#define WORKER_EXAMPLES_NVMED_COMMAND_PROCESSOR_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/examples/nvmed/associations.h"
#include "worker/examples/nvmed/command_sets.h"
#include "worker/examples/nvmed/resources.h"

namespace baton::nvmed {

// Thread-compatible.
class CommandProcessor {
 public:
  // All arguments must outlive this object.
  CommandProcessor(Resources& resources, Transaction& transaction, PendingCommands& pending,
                   Associations& associations)
      : resources_(resources),
        transaction_(transaction),
        pending_(pending),
        associations_(associations),
        responder_(resources, transaction, associations),
        admin_(resources, pending, associations, responder_),
        io_(resources, transaction, pending, associations, responder_) {}

  Responder& responder() { return responder_; }
  IoCommandSet& io() { return io_; }

  void OnReceive(Queue& queue, const Completion& completion);
  void OnSent(Queue& queue, const Completion& completion);
  // Goes on with waiting commands, in the order of arrival. A command that cannot go on yet (its
  // queue has no room, there is no chunk, or it overlaps another) keeps its place. It delays only
  // later writes that overlap it, and these only if it has all of its data. Without its data no
  // former owner can have executed it, and it may be waiting for a chunk that a later write has.
  void Resume();

 private:
  void Begin(Queue& queue, uint16_t slot, uint32_t bytes);
  void Continue(Queue& queue, uint16_t slot, uint32_t bytes, std::optional<uint32_t> chunk);
  bool GoOn(const PendingCommands::Waiting& waiting);
  void Fetch(const Step& step);
  void Perform(const Step& step, std::optional<uint32_t> chunk);

  StatusCode CheckData(Step& step);
  bool IsForThreads(Queue& queue, uint16_t slot, uint32_t bytes, IoWork* work,
                    DataPointer::Kind* data);
  bool StartsWithoutRoom(Queue& queue, uint16_t slot, uint32_t bytes, bool fetched);

  Resources& resources_;
  Transaction& transaction_;
  PendingCommands& pending_;
  Associations& associations_;
  Responder responder_;
  AdminCommandSet admin_;
  IoCommandSet io_;
  std::vector<IoWork> passed_writes_;  // by Resume
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_COMMAND_PROCESSOR_H_
