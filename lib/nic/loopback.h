#ifndef LIB_NIC_LOOPBACK_H_
#define LIB_NIC_LOOPBACK_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "lib/nic/objects.h"
#include "lib/verbs/mlx5/completion_writer.h"
#include "lib/verbs/mlx5/request_reader.h"

namespace baton::nic {

// Reports what no correct client does.
using Complain = std::function<void(const std::string& what)>;

// Executes requests between queue pairs of one NIC. A request is copied, checked and executed as a
// whole, so there is no more than one on its way, and a fence needs nothing.
class Loopback {
 public:
  // `objects` outlives it.
  Loopback(Objects* objects, Complain complain);

  // Makes Run() look at the queue pair's records.
  void Schedule(QueuePair* queue_pair);
  // Executes some requests of each scheduled queue pair. Returns false if there was none.
  bool Run(uint64_t now_ns);
  // Returns true if a queue pair is scheduled.
  bool busy() const { return !active_.empty(); }
  // Returns true if a queue pair waits for a receive of its peer.
  bool waits() const { return !waiting_.empty(); }
  // Returns when the first of them asks its peer again. 0: none waits.
  uint64_t next_retry_ns() const;

  // Moves the queue pair to the error state. The next Run() completes what is queued with
  // kFlushError. Requests that are queued later complete so when the queue pair is scheduled again.
  void Fail(QueuePair* queue_pair);

 private:
  struct Piece {
    uint8_t* at;
    uint64_t length;
  };
  struct Pieces {
    std::array<Piece, verbs::mlx5::kMaxSegments> list;
    size_t count = 0;
    uint64_t bytes = 0;

    void Add(uint8_t* at, uint64_t length);
  };
  enum class Outcome { kDone, kFailed, kNotReady };
  using Status = verbs::CompletionStatus;

  void Execute(QueuePair* queue_pair);
  Outcome ExecuteNext(QueuePair* queue_pair);
  Outcome ExecuteSend(QueuePair* requester, QueuePair* responder, const Pieces& local);
  Outcome ExecuteWrite(QueuePair* requester, QueuePair* responder, const Pieces& local);
  Outcome ExecuteRead(QueuePair* requester, QueuePair* responder, const Pieces& local);
  Outcome ExecuteAtomic(QueuePair* requester, QueuePair* responder, const Pieces& local);

  bool Find(const QueuePair& queue_pair, absl::Span<const verbs::ScatterGather> sges,
            uint64_t bytes, uint32_t access, Pieces* pieces) const;
  bool FindRemote(const QueuePair& responder, uint64_t bytes, uint32_t access,
                  Pieces* pieces) const;
  QueuePair* PeerOf(const QueuePair& queue_pair) const;
  bool HasReceive(QueuePair* queue_pair);
  static void Copy(const Pieces& from, const Pieces& to);

  Outcome CompleteSend(QueuePair* queue_pair, Status status, uint64_t bytes);
  Outcome Refuse(QueuePair* requester, Status status, QueuePair* responder);
  void CompleteReceive(QueuePair* queue_pair, uint8_t kind, Status status, uint64_t bytes);
  void Tell(QueuePair* queue_pair, CompletionQueue* queue, const verbs::mlx5::Executed& executed);
  void Flush(QueuePair* queue_pair);
  void FlushReceives(QueuePair* queue_pair);
  Outcome Wait(QueuePair* queue_pair);

  Objects* const objects_;
  const Complain complain_;
  uint64_t now_ns_ = 0;
  verbs::mlx5::FoundSend send_;  // the request in execution
  std::vector<uint32_t> active_;
  std::vector<uint32_t> running_;
  std::vector<uint32_t> waiting_;
};

}  // namespace baton::nic

#endif  // LIB_NIC_LOOPBACK_H_
