// Ends of connections, on an mlx5 device that libibverbs has opened, that libmlx5 and our driver
// both drive.
#ifndef TESTS_LIB_NIC_ORACLE_END_H_
#define TESTS_LIB_NIC_ORACLE_END_H_

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/mlx5/fifo_doorbell.h"
#include "lib/verbs/mlx5/receive_queue.h"
#include "lib/verbs/mlx5/send_queue.h"
#include "lib/verbs/verbs.h"
#include "tests/lib/nic/harness.h"
#include "tests/lib/nic/oracle/opened_device.h"
#include "tests/lib/nic/oracle/uverbs_device.h"
#include "tests/lib/verbs/mlx5/queue_memory.h"

namespace baton::nic::oracle {

inline constexpr uint32_t kSges = 8;
inline constexpr uint32_t kInlineBytes = 200;
inline constexpr size_t kDataBytes = 1 << 20;
inline constexpr int kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

uint64_t LengthOf(absl::Span<const verbs::ScatterGather> sges);

// A NIC of this thread, and a device of it with memory.
class Opened {
 public:
  verbs::ScatterGather Sge(size_t offset, size_t length) const {
    return {reinterpret_cast<uintptr_t>(device.data() + offset), static_cast<uint32_t>(length),
            device.region().lkey};
  }
  uint64_t& word(size_t offset) const {
    return *reinterpret_cast<uint64_t*>(device.data() + offset);
  }
  bool TurnUntil(const std::function<bool()>& done);  // false: it takes too long

  EmbeddedNic nic;
  std::unique_ptr<Client> client = nic.Open();
  OpenedDevice device{client.get(), 4 << 20, kDataBytes, kAllAccess};
};

// One end of a connection: a queue pair that libmlx5 made and drives. Our driver does the same in
// copies of its queues, and both are compared, until our driver takes over.
class End {
 public:
  // `entry_bytes` of its completion queue: 64 or 128. `channel` may be null.
  explicit End(Opened* opened, uint16_t entry_bytes = 64, ibv_comp_channel* channel = nullptr);
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End();

  // Both ends of a connection call it.
  void Connect(const End& peer);

  // The place of the queue where the next request begins.
  uint32_t place() const { return sends_->queued() & (theirs_.sq.wqe_cnt - 1); }
  uint32_t slots() const { return theirs_.sq.wqe_cnt; }
  uint32_t receive_slots() const { return theirs_.rq.wqe_cnt; }
  ibv_qp* queue_pair() const { return queue_pair_; }
  ibv_cq* completions() const { return completions_; }

  // Each does it by both drivers, and compares.
  void Send(const verbs::SendRequest& request);
  void Receive(const verbs::ReceiveRequest& request);
  std::vector<verbs::Completion> Poll(size_t count);
  void Arm();

  // From now on our driver has the queues. libmlx5 may have posted requests that are outstanding.
  void TakeOver();
  // Completions that its driver has consumed, as it tells the device.
  uint32_t consumed() const {
    return verbs::mlx5::LoadRecord(&their_completions_.dbrec[kConsumedRecord]);
  }
  // Resets by libmlx5 what our driver has.
  void Reset();

 private:
  void Drive(uint8_t* sends, uint8_t* receives, __be32* records, __be32* consumed,
             verbs::mlx5::Doorbell* doorbell);
  void PostByLibrary(const verbs::SendRequest& request);
  void CompareSend(const verbs::SendRequest& request, uint16_t before);
  void CompareReceive(const verbs::ReceiveRequest& request, uint16_t before);
  void Compare(const verbs::Completion& ours);

  Opened* const opened_;
  ibv_cq* const completions_;
  ibv_qp* const queue_pair_;
  mlx5dv_qp theirs_ = {};
  mlx5dv_cq their_completions_ = {};
  bool ours_alone_ = false;

  std::vector<uint8_t> copied_sends_;
  std::vector<uint8_t> copied_receives_;
  __be32 copied_records_[2] = {};
  __be32 copied_consumed_[2] = {};
  std::vector<verbs::mlx5::SendNote> notes_;
  std::vector<uint64_t> wr_ids_;
  verbs::mlx5::QueueCursors cursors_;
  uint64_t taken_ = 0;
  uint32_t arming_ = 0;
  verbs::mlx5::RememberingDoorbell remembered_;
  std::optional<verbs::mlx5::FifoDoorbell> bell_;
  std::optional<verbs::mlx5::SendQueue> sends_;
  std::optional<verbs::mlx5::ReceiveQueue> receives_;
  std::optional<verbs::mlx5::CompletionQueue> queue_;
};

}  // namespace baton::nic::oracle

#endif  // TESTS_LIB_NIC_ORACLE_END_H_
