// Queues in mlx5's format, in memory that a client shares with its device, as sources of work and
// sink of completions.
//
// The client may write anything there at any time. Each request is copied once, and checked in the
// copy. A request that is malformed, or exceeds the window's limits, fails with kLocalQpError after
// all requests before it, as on mlx5.
#ifndef LIB_NIC_CLIENT_QUEUES_H_
#define LIB_NIC_CLIENT_QUEUES_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "lib/nic/work_source.h"
#include "lib/verbs/mlx5/completion_writer.h"
#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/mlx5/request_reader.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

// Bounds of the copies that the NIC keeps of a client's sends in flight.
struct WindowLimits {
  uint32_t requests = 1;
  uint32_t sges = 1;          // of each; at most kMaxScatterGather
  uint32_t inline_bytes = 0;  // of each
};

// A flush takes at most this many requests from a client's queue, and is called again for the rest.
inline constexpr uint32_t kFlushedAtOnce = 256;

// How far a device has read a client's queue.
class ClientCursor {
 public:
  // `record` says how many slots were queued so far, in 16 bits.
  explicit ClientCursor(const __be32* record) : record_(record) {}

  uint16_t next() const { return next_; }
  uint16_t queued() const { return queued_; }  // the record when it was read last
  uint16_t ahead() const { return static_cast<uint16_t>(queued_ - next_); }

  // Reads the record. Returns how many slots are queued and not read.
  uint32_t Look();
  // Returns whether a slot is queued and not read. Reads the record only if all slots that it last
  // announced were read.
  bool HasMore() { return (!lost_ && ahead() > 0) || Look() > 0; }
  // Moves past a request. `slots` 0: nobody knows where the next one begins, so no more are read.
  void Pass(uint32_t slots);

 private:
  const __be32* const record_;
  uint16_t next_ = 0;
  uint16_t queued_ = 0;
  bool lost_ = false;
};

// The sends in a client's queue. After a malformed request whose end is unknown, nothing more is
// fetched, and the requests behind it never complete. A request that was changed since it was found
// queued is malformed.
class ClientSends final : public SendSource {
 public:
  ClientSends(const mlx5::FoundSendQueue& queue, const __be32* record, const WindowLimits& limits)
      : SendSource(limits.requests, limits.sges, limits.inline_bytes),
        queue_(queue),
        cursor_(record) {}

  bool Fetch() override;
  uint32_t Waiting() override;

  // Says what is wrong with the first malformed request.
  const absl::Status& error() const { return error_; }

 private:
  absl::Status CheckLimits(const mlx5::FoundSend& found) const;
  void Push(const mlx5::FoundSend& found);
  void PushMalformed();
  // Remembers queued slots, to notice changes before they are fetched.
  void See() { seen_.See(queue_.slots, queue_.slot_count, cursor_.next(), cursor_.queued()); }

  const mlx5::FoundSendQueue queue_;
  ClientCursor cursor_;
  mlx5::SeenSlots seen_;
  absl::Status error_;
};

// The receives in a client's queue. A message takes a receive when it begins. If the record is
// further ahead than the queue is long, the next receive is malformed, and is the last. A slot has
// room for at most kMaxScatterGather buffers.
class ClientReceives final : public ReceiveSource {
 public:
  ClientReceives(const mlx5::FoundReceiveQueue& queue, const __be32* record)
      : ReceiveSource(1, queue.slot_bytes / mlx5::kSegmentBytes), queue_(queue), cursor_(record) {}

  bool Fetch() override;
  uint32_t Waiting() override { return std::min(cursor_.Look(), kFlushedAtOnce); }

  // Says what is wrong with the malformed receive.
  const absl::Status& error() const { return error_; }

 private:
  const mlx5::FoundReceiveQueue queue_;
  ClientCursor cursor_;
  absl::Status error_;
};

// The id of a malformed receive that lies in no slot, so it has no completion.
inline constexpr uint64_t kNoSlot = 1u << 16;

// Receives of a queue that several queue pairs share. The reader outlives this object. Once the
// queue has failed, a message takes a malformed receive in no slot, which fails its queue pair.
class SharedReceives final : public ReceiveSource {
 public:
  // `taken` is called after each receive.
  SharedReceives(mlx5::SharedReceiveReader* reader, uint32_t max_sges, std::function<void()> taken)
      : ReceiveSource(1, max_sges), reader_(reader), taken_(std::move(taken)) {}
  SharedReceives(const SharedReceives&) = delete;
  SharedReceives& operator=(const SharedReceives&) = delete;
  // Gives back the receives that messages have taken and not completed.
  ~SharedReceives() override;

  bool Fetch() override;
  uint32_t Waiting() override { return 0; }

 private:
  mlx5::SharedReceiveReader* const reader_;
  const std::function<void()> taken_;
};

// Completes the requests of one queue pair. The writers outlive it, and may be the same.
class ClientCompletions final : public CompletionSink {
 public:
  ClientCompletions(uint32_t qp_number, mlx5::CompletionWriter* sends,
                    mlx5::CompletionWriter* receives)
      : qp_number_(qp_number), sends_(sends), receives_(receives) {}

  // Receives come from the shared queue of this number. Their ids are then slots of that queue, or
  // kNoSlot.
  void Share(uint32_t srq_number) { srq_number_ = srq_number; }

  // A send that is not signalled completes without an entry, unless it failed.
  bool CompleteSend(const SendWork& work, const Completion& completion) override;
  bool CompleteReceive(const ReceiveWork& work, const Completion& completion) override;

 private:
  mlx5::Executed Common(uint64_t id, const Completion& completion) const;

  const uint32_t qp_number_;
  uint32_t srq_number_ = 0;
  mlx5::CompletionWriter* const sends_;
  mlx5::CompletionWriter* const receives_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_CLIENT_QUEUES_H_
