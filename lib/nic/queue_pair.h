#ifndef LIB_NIC_QUEUE_PAIR_H_
#define LIB_NIC_QUEUE_PAIR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "lib/nic/client_queues.h"
#include "lib/nic/completion_queue.h"
#include "lib/nic/host.h"
#include "lib/nic/mapped_file.h"
#include "lib/nic/objects.h"
#include "lib/nic/wire_queue_pair.h"
#include "lib/nic/work_host.h"
#include "lib/verbs/mlx5/request_reader.h"
#include "lib/verbs/verbs.h"

namespace baton::nic {

// Tells the client of a queue pair, or of another object, that something has happened to it.
using Tell = std::function<void(verbs::DeviceEventType type, uint32_t number)>;
// Called when a queue pair fails. The callee calls QueuePair::Flush in later turns.
using FlushLater = std::function<void(uint32_t number)>;

// The parts from which a client made a queue pair.
struct QueuePairParts {
  Domain domain;
  uint32_t number = 0;
  uint32_t reg = 0;  // the register of its owner that rings for it
  std::shared_ptr<MappedFile> files[3];
  verbs::mlx5::FoundSendQueue sends;
  verbs::soft::WindowLimits window;
  verbs::mlx5::FoundReceiveQueue receives;
  const __be32* records = nullptr;
  uint32_t* failed = nullptr;
  uint32_t send_queue_number = 0;
  uint32_t receive_queue_number = 0;
  CompletionQueue* send_queue = nullptr;
  CompletionQueue* receive_queue = nullptr;
  uint32_t shared_receive_queue_number = 0;
  OwnedSharedReceiveQueue* shared_receive_queue = nullptr;  // null: it has receives of its own
  Tell tell;
  FlushLater flush_later;
};

// A queue pair from INIT to its reset or end.
class QueuePairUse final : private verbs::soft::QueuePairUser {
 public:
  // Both outlive it.
  QueuePairUse(const QueuePairParts* parts, const Host* host);

  verbs::soft::WireQueuePair& wire() { return wire_; }
  // With shared receives nobody takes from receives_, whatever the client stores in its record.
  bool HasMore() {
    return sends_.Waiting() > 0 || (!shared_receives_.has_value() && receives_.Waiting() > 0);
  }

  std::unique_ptr<verbs::soft::QueuePairLink> link;  // of tests: see SoftDeviceOptions::connect

 private:
  // Memory that is registered in the queue pair's domain.
  class DomainMemory final : public verbs::soft::MemoryAccess {
   public:
    DomainMemory(Objects* objects, const Domain& domain) : objects_(objects), domain_(domain) {}
    uint8_t* FindLocal(uint32_t lkey, uint64_t address, uint64_t length,
                       uint32_t access) const override {
      return objects_->Reach(domain_, lkey, address, length, access, /*remote=*/false);
    }
    uint8_t* FindRemote(uint32_t rkey, uint64_t address, uint64_t length,
                        uint32_t access) const override {
      return objects_->Reach(domain_, rkey, address, length, access, /*remote=*/true);
    }
    bool Invalidate(uint32_t rkey) override { return objects_->Invalidate(domain_, rkey); }

   private:
    Objects* const objects_;
    const Domain domain_;
  };

  verbs::soft::EventLoop& loop() override { return *host_->loop; }
  verbs::soft::MemoryAccess& memory() override { return memory_; }
  verbs::soft::SendSource& sends() override { return sends_; }
  verbs::soft::ReceiveSource& receives() override {
    if (shared_receives_.has_value()) return *shared_receives_;
    return receives_;
  }
  verbs::soft::CompletionSink& sink() override { return completions_; }
  void OnError() override;
  void OnSharedReceive();
  void Complain(absl::string_view what, absl::string_view why) const;

  const QueuePairParts* const parts_;
  const Host* const host_;
  DomainMemory memory_;
  verbs::soft::ClientSends sends_;
  verbs::soft::ClientReceives receives_;
  std::optional<verbs::soft::SharedReceives> shared_receives_;
  verbs::soft::ClientCompletions completions_;
  verbs::soft::WireQueuePair wire_;
};

// A client's queue pair. The requests that it executes lie in the client's memory.
class QueuePair {
 public:
  // `host` outlives it. It begins in RESET.
  QueuePair(QueuePairParts parts, const Host* host) : parts_(std::move(parts)), host_(host) {
    Reset();
  }

  const QueuePairParts& parts() const { return parts_; }
  uint32_t number() const { return parts_.number; }
  verbs::QueuePairState state() const {
    return use_ == nullptr ? verbs::QueuePairState::kReset : use_->wire().state();
  }
  QueuePairUse* use() { return use_.get(); }  // nullptr: RESET

  void Reset();
  // Moves from RESET to INIT. kInvalidArgument: the records are not 0, so requests of an earlier
  // use would be executed again.
  absl::Status Init();
  // Moves to the error state, from any state but RESET.
  void SetError() { use_->wire().SetError(); }
  // In the error state, flushes some of what is queued. Returns true if there is more.
  bool Flush() {
    if (state() != verbs::QueuePairState::kError) return false;
    use_->wire().Posted();
    return use_->HasMore();
  }
  // Called when the client has rung for it, or asks for a look at its records.
  void Rung() {
    if (use_ != nullptr) use_->wire().Posted();
  }

 private:
  const QueuePairParts parts_;
  const Host* const host_;
  std::unique_ptr<QueuePairUse> use_;
};

}  // namespace baton::nic

#endif  // LIB_NIC_QUEUE_PAIR_H_
