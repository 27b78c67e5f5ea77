// The queues of hosts and the controllers that they belong to, from a connection request to its
// connection's end.
#ifndef WORKER_EXAMPLES_NVMED_ASSOCIATIONS_H_
#define WORKER_EXAMPLES_NVMED_ASSOCIATIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "worker/examples/nvmed/nvme_spec.h"
#include "worker/examples/nvmed/resources.h"
#include "worker/examples/nvmed/transaction.h"
#include "worker/worker.h"

namespace baton::nvmed {

// Thread-compatible.
class Associations {
 public:
  // All arguments but `capacity` must outlive this object.
  Associations(Resources& resources, Transaction& transaction, PendingCommands& pending,
               const Capacity& capacity)
      : resources_(resources),
        transaction_(transaction),
        pending_(pending),
        send_depth_(capacity.send_queue_depth),
        queues_(capacity.connections) {}

  // Loads the queues of a shard that was adopted. Its controllers are in the registry.
  void Adopt(Shard& shard);
  void Forget();

  // Returns nullptr if the connection has no queue.
  Queue* At(uint32_t connection) const { return queues_[connection].get(); }
  Queue& QueueOf(Connection& connection) {
    std::unique_ptr<Queue>& queue = queues_[connection.index()];
    if (queue == nullptr) {
      queue = std::make_unique<Queue>();
      queue->connection = &connection;
      queue->generation = connection.generation();
    }
    return *queue;
  }

  void OnConnectRequest(Connection& connection);
  // Answers connect requests that found no room, in transactions of their own, in each as many as
  // it has room for.
  void AnswerRequests();
  // Deletes the queue of a connection that has ended. An admin queue's controller ends with it.
  void OnEnd(Queue& queue);

  // Drops queues and controllers whose deadline is over.
  void CheckDeadlines();
  Totals TotalsOf(const ControllerState& controller) const;

 private:
  absl::Status LoadQueue(Connection& connection);
  void MatchControllers();
  absl::Status Accept(Connection& connection, const RdmaRequest& request);
  void DropController(ControllerState& controller, std::string_view why);
  std::optional<std::string_view> CheckQueue(Queue& queue);

  Resources& resources_;
  Transaction& transaction_;
  PendingCommands& pending_;
  const uint32_t send_depth_;                   // of a connection
  std::vector<std::unique_ptr<Queue>> queues_;  // by connection index
  std::vector<Queue*> requests_;                // connect requests that found no room
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_ASSOCIATIONS_H_
