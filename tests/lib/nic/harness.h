// A NIC, in this thread or in a process of its own, and a client of it with queue pairs.
#ifndef TESTS_LIB_NIC_HARNESS_H_
#define TESTS_LIB_NIC_HARNESS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "lib/nic/client.h"
#include "lib/nic/nic.h"
#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/mlx5/fifo_doorbell.h"
#include "lib/verbs/mlx5/queue_layout.h"
#include "lib/verbs/mlx5/queue_pair.h"
#include "tests/lib/nic/loopback_link.h"

namespace baton::nic {

constexpr int kSealed = 0x0002 | 0x0004;  // F_SEAL_SHRINK | F_SEAL_GROW

// A memfd of a client, mapped here and in what is forked from here.
class SharedFile {
 public:
  explicit SharedFile(uint64_t bytes, int seals = kSealed);
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  ~SharedFile();

  int fd() const { return fd_.get(); }
  uint8_t* begin() const { return begin_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const uint64_t bytes_;
  FileDescriptor fd_;
  uint8_t* begin_;
};

// A NIC in this thread. Its clients turn it while they wait. The test fails if the NIC complains,
// unless it takes the complaints.
class EmbeddedNic {
 public:
  explicit EmbeddedNic(const verbs::soft::SoftDeviceOptions& options = WithLoopback());
  ~EmbeddedNic();

  std::unique_ptr<Client> Open();
  FileDescriptor Connect();                           // to a client that has not opened anything
  bool TurnUntil(const std::function<bool()>& done);  // false: it takes too long
  std::vector<std::string> TakeComplaints() { return std::move(complaints_); }
  Nic& nic() { return *nic_; }

 private:
  std::vector<std::string> complaints_;
  std::unique_ptr<Nic> nic_;
};

// A NIC in a process of its own, which sleeps where it has nothing to do. It aborts where it would
// complain.
class NicProcess {
 public:
  explicit NicProcess(int clients = 1);
  NicProcess(const NicProcess&) = delete;
  NicProcess& operator=(const NicProcess&) = delete;
  ~NicProcess();

  std::unique_ptr<Client> Open();
  pid_t pid() const { return pid_; }
  void Stop();
  void Continue();

 private:
  std::vector<FileDescriptor> ends_;
  pid_t pid_ = -1;
};

// Connects a queue pair of the client to one of the same NIC, which has LoopbackLink::Connect.
absl::Status ConnectQueuePair(Client* client, uint32_t number, uint32_t peer,
                              uint32_t rnr_retry_count = 7, uint32_t rnr_timer_us = 100);

// The objects of a shard: a register, a completion queue, and queue pairs. Each even queue pair is
// connected to the next one. One file has the doorbell page, then the queues, then data.
class Shard {
 public:
  struct Options {
    uint32_t queue_pairs = 2;
    uint32_t send_slots = 16;
    uint32_t receive_slots = 16;
    uint32_t entry_count = 64;
    uint64_t data_bytes = 4096;
    uint32_t access = 15;            // of the data: all that there is
    uint32_t rnr_retry_count = 7;    // for ever
    uint64_t address = 0x7000'0000;  // what requests call the first byte of the data
  };

  Shard(Client* client, const Options& options);

  uint8_t* data() const { return file_.begin() + data_at_; }
  uint64_t AddressOf(const void* in_data) const {
    return options_.address + static_cast<uint64_t>(static_cast<const uint8_t*>(in_data) - data());
  }
  uint64_t& word(size_t index) const { return reinterpret_cast<uint64_t*>(data())[index]; }
  verbs::ScatterGather SgeOf(const void* in_data, uint32_t length) const {
    return {AddressOf(in_data), length, key_};
  }
  uint32_t key() const { return key_; }
  uint32_t number(size_t index) const { return numbers_[index]; }
  uint32_t file() const { return file_number_; }
  uint32_t reg() const { return reg_.number; }
  uint32_t completion_queue() const { return queue_number_; }
  int wake() const { return reg_.descriptor.get(); }
  int events() const { return channel_.descriptor.get(); }
  uint64_t bytes() const { return file_.bytes(); }
  verbs::mlx5::DoorbellPage* page() const;
  const verbs::mlx5::QueuePairLayout& layout() const { return layout_; }
  uint8_t* queue_pair(size_t index) const { return file_.begin() + PlaceOf(index); }

 private:
  friend class Driver;
  uint64_t PlaceOf(size_t queue_pair) const;

  Client* const client_;
  const Options options_;
  const verbs::mlx5::CompletionQueueLayout queue_layout_;
  const verbs::mlx5::QueuePairLayout layout_;
  const uint64_t data_at_;
  SharedFile file_;
  uint32_t file_number_ = 0;
  uint32_t key_ = 0;
  uint32_t queue_number_ = 0;
  Client::Made reg_;
  Client::Made channel_;
  std::vector<uint32_t> numbers_;
};

inline constexpr verbs::mlx5::SendQueueLimits kSendLimits = {2, 64};

// The driver of a shard in one process. Processes that were killed had others.
class Driver {
 public:
  explicit Driver(Shard* shard);

  // Called by a process that follows another one.
  void TakeOver();

  verbs::mlx5::QueuePair& operator[](size_t index) { return *queue_pairs_[index]; }
  verbs::mlx5::CompletionQueue& queue() { return queue_; }
  verbs::mlx5::FifoDoorbell& bell() { return bell_; }

  // Posts one request, and checks that it is taken.
  void Send(size_t index, const verbs::SendRequest& request);
  void Receive(size_t index, uint64_t wr_id, const verbs::ScatterGather& sge);

 private:
  // Objects on the NIC outlive drivers.
  class Keeping final : public verbs::mlx5::Commands {
   public:
    explicit Keeping(Client* client) : client_(client) {}
    absl::Status Modify(uint32_t qp_number, verbs::QueuePairState state) override {
      return client_->Modify(qp_number, state);
    }
    absl::StatusOr<verbs::QueuePairState> Query(uint32_t qp_number) override {
      return client_->Query(qp_number);
    }
    void DestroyQueuePair(uint32_t) override {}

   private:
    Client* const client_;
  };

  Keeping commands_;
  verbs::mlx5::FifoDoorbell bell_;
  verbs::mlx5::CompletionQueue queue_;
  std::vector<std::unique_ptr<verbs::mlx5::QueuePair>> queue_pairs_;
};

// A request whose buffer is `sge`, which has to live until it is posted.
verbs::SendRequest RequestOf(verbs::Opcode opcode, uint64_t wr_id, const verbs::ScatterGather& sge,
                             uint64_t remote_address = 0, uint32_t rkey = 0);

}  // namespace baton::nic

#endif  // TESTS_LIB_NIC_HARNESS_H_
