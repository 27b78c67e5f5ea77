#include "tests/fuzz/hostile_queues.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "lib/base/check.h"
#include "lib/verbs/mlx5/doorbell.h"
#include "lib/verbs/mlx5/format.h"
#include "tests/fuzz/shared_reads.h"

namespace baton::fuzz {
namespace {

constexpr uint64_t kOpen = 4;  // messages that are sent and not checked; their buffers take turns
constexpr uint32_t kBytes = 64;
constexpr uint64_t kReceive = uint64_t{1} << 32;  // added to a message's number in its receive
constexpr uint8_t kUntouched = 0x5c;              // what lies behind the buffers
constexpr int kMaxTurns = 10'000;

}  // namespace

HonestTraffic::HonestTraffic(Parts parts) : parts_(std::move(parts)) {
  std::memset(parts_.data, kUntouched, kDataBytes);
}

// The first kOpen buffers are sent from, the next ones received to.
void HonestTraffic::Send() {
  if (posted_ - received_ == kOpen || posted_ - sent_ == kOpen) Check();
  uint8_t* const from = parts_.data + posted_ % kOpen * kBytes;
  uint8_t* const to = from + kOpen * kBytes;
  std::memset(from, static_cast<uint8_t>(posted_), kBytes);
  std::memset(to, kUntouched, kBytes);
  const verbs::ScatterGather receive_at = SgeOf(to);
  verbs::ReceiveRequest receive;
  receive.wr_id = kReceive + posted_;
  receive.sges = {&receive_at, 1};
  size_t done = 0;
  BATON_CHECK(parts_.receiver->PostReceive({&receive, 1}, &done).ok() && done == 1);
  const verbs::ScatterGather send_from = SgeOf(from);
  verbs::SendRequest send;
  send.opcode = verbs::Opcode::kSend;
  send.wr_id = posted_;
  send.sges = {&send_from, 1};
  BATON_CHECK(parts_.sender->PostSend({&send, 1}, &done).ok() && done == 1);
  ++posted_;
}

void HonestTraffic::Take() {
  for (;;) {
    verbs::Completion completion;
    completion.wr_id = 0;
    const absl::StatusOr<size_t> taken = parts_.queue->Take({&completion, 1});
    BATON_CHECK(taken.ok());
    if (*taken == 0) return;
    BATON_CHECK(completion.status == verbs::CompletionStatus::kSuccess);
    if (completion.wr_id < kReceive) {
      BATON_CHECK(completion.wr_id == sent_++);
      continue;
    }
    BATON_CHECK(completion.wr_id - kReceive == received_ && completion.byte_len == kBytes);
    const uint8_t* const at = parts_.data + (kOpen + received_ % kOpen) * kBytes;
    const auto is_sent = [this](uint8_t byte) { return byte == static_cast<uint8_t>(received_); };
    BATON_CHECK(std::all_of(at, at + kBytes, is_sent));
    ++received_;
  }
}

void HonestTraffic::Check() {
  for (int turn = 0; sent_ < posted_ || received_ < posted_; ++turn) {
    BATON_CHECK(turn < kMaxTurns);
    parts_.turn();
    Take();
  }
  BATON_CHECK(parts_.sender->state() == verbs::QueuePairState::kReadyToSend);
  const uint8_t* const data = parts_.data;
  BATON_CHECK(std::all_of(data + 2 * kOpen * kBytes, data + kDataBytes,
                          [](uint8_t byte) { return byte == kUntouched; }));
}

verbs::ScatterGather HonestTraffic::SgeOf(const uint8_t* at) const {
  return {parts_.address + static_cast<uint64_t>(at - parts_.data), kBytes, parts_.key};
}

namespace control = nic::control;
using verbs::mlx5::DoorbellPage;
using verbs::mlx5::kSegmentBytes;
using verbs::mlx5::kSlotBytes;

control::CompletionQueue HostileQueues::QueueMessage() const {
  return {{}, At(kQueueAt + kQueuesBehindRecords), At(kQueueAt), kEntries, 64, reg_, channel_};
}

control::SharedReceiveQueue HostileQueues::SharedMessage() const {
  return {{}, At(kSharedAt + kQueuesBehindRecords), At(kSharedAt), kSharedSlots, kSharedSlotBytes};
}

control::QueuePair HostileQueues::QueuePairMessage(size_t index, bool shares) const {
  const uint64_t begin = QueuePairAt(index);
  control::QueuePair message;
  message.sends = At(begin + kQueuesBehindRecords);
  message.records = At(begin);
  message.send_slots = kSlots;
  message.reg = reg_;
  message.send_queue = message.receive_queue = queue_;
  if (shares) {
    message.shared_receive_queue = shared_;
  } else {
    message.receives = At(begin + kReceivesAt);
    message.receive_slots = kSlots;
    message.receive_bytes = kReceiveBytes;
  }
  return message;
}

// Each slot of a shared queue names the next one.
void HostileQueues::LinkShared() {
  for (uint32_t slot = 0; slot < kSharedSlots; ++slot) {
    auto* const link = reinterpret_cast<mlx5_wqe_srq_next_seg*>(
        memory_->At(kSharedAt + kQueuesBehindRecords + slot * kSharedSlotBytes));
    link->next_wqe_index = htobe16(static_cast<uint16_t>((slot + 1) % kSharedSlots));
  }
}

uint32_t HostileQueues::Number() {
  const uint8_t which = program_.Byte();
  switch (which % 12) {
    case 0:
      return victim_.queue_pairs[which / 12 % 2];
    case 1:
      return victim_.completion_queue;
    case 2:
      return victim_.key;
    case 3:
      return static_cast<uint32_t>(program_.Near(0));
    case 4:
      return queue_pairs_[which / 12 % 2].number;
    case 5:
      return queue_;
    case 6:
      return shared_;
    case 7:
      return reg_;
    case 8:
      return channel_;
    case 9:
      return key_;
    case 10:
      return memory_file_;
    default:
      return numbers_.empty() ? 0 : numbers_[which / 12 % numbers_.size()];
  }
}

uint32_t HostileQueues::Key() {
  const uint8_t how = program_.Byte();
  if (how < 192) return key_;
  return how < 224 ? victim_.key : Number();
}

uint64_t HostileQueues::Address() {
  const uint8_t how = program_.Byte();
  if (how < 128) return kDataAddress + how * uint64_t{64};
  if (how < 160) return victim_.address + (how - 128) * uint64_t{64};
  return program_.Near(how < 200 ? kDataAddress + kDataBytes : kDataAddress);
}

uint32_t HostileQueues::Length() {
  const uint8_t how = program_.Byte();
  if (how < 192) return how;
  return static_cast<uint32_t>(program_.Near(how < 224 ? kDataBytes : uint64_t{1} << 31));
}

// Now and then on the page of a second register, which it may have made.
void HostileQueues::Ring(uint32_t second_word) {
  const uint8_t index = program_.Byte();
  const __be32 words[] = {htobe32(index << 8), htobe32(second_word)};
  uint64_t bytes;
  std::memcpy(&bytes, words, sizeof(bytes));
  const bool second = index >= 240;
  auto* const page = reinterpret_cast<DoorbellPage*>(memory_->At(second ? kSecondPageAt : kPageAt));
  uint32_t& rung = second ? second_rung_ : rung_;
  std::atomic_ref(page->sends[rung++ % verbs::mlx5::kSendPlaces]).store(bytes);
}

void HostileQueues::RingAnything() {
  auto* const page = reinterpret_cast<DoorbellPage*>(memory_->At(kPageAt));
  switch (program_.Below(6)) {
    case 0:
      return Ring(Number() << 8);
    case 1: {
      const __be32 words[] = {htobe32(static_cast<uint32_t>(program_.Near(consumed_))),
                              htobe32(program_.Flag() ? queue_ : Number())};
      uint64_t bytes;
      std::memcpy(&bytes, words, sizeof(bytes));
      std::atomic_ref(page->arms[armed_++ % verbs::mlx5::kArmPlaces]).store(bytes);
      return;
    }
    case 2:
      std::atomic_ref(page->looks[program_.Below(verbs::mlx5::kLookPlaces)]).store(Number());
      std::atomic_ref(page->attention).fetch_or(verbs::mlx5::kLook);
      return;
    case 3:
      std::atomic_ref(page->attention).fetch_or(program_.Byte());
      return;
    case 4: {  // a full page
      const uint32_t number = Number() << 8;
      for (uint32_t i = 0; i < verbs::mlx5::kSendPlaces; ++i) Ring(number);
      return;
    }
    default:
      if (wake_) {
        const uint64_t value = program_.Flag() ? 1 : ~uint64_t{1};
        (void)!write(wake_.get(), &value, sizeof(value));
      }
      return;
  }
}

void HostileQueues::PostSend() {
  constexpr uint8_t kCodes[] = {MLX5_OPCODE_SEND,           MLX5_OPCODE_SEND_IMM,
                                MLX5_OPCODE_SEND_INVAL,     MLX5_OPCODE_RDMA_WRITE,
                                MLX5_OPCODE_RDMA_WRITE_IMM, MLX5_OPCODE_RDMA_READ,
                                MLX5_OPCODE_ATOMIC_CS,      MLX5_OPCODE_ATOMIC_FA};
  const size_t which = program_.Below(2);
  Queues& queues = queue_pairs_[which];
  const uint8_t how = program_.Byte();
  const uint8_t code = how < 248 ? kCodes[how % std::size(kCodes)] : program_.Byte();
  std::array<uint8_t, 4 * kSlotBytes> bytes = {};
  size_t segment = 1;
  const auto put = [&](const auto& value) {
    std::memcpy(bytes.data() + segment++ * kSegmentBytes, &value, kSegmentBytes);
  };
  if (code == MLX5_OPCODE_RDMA_WRITE || code == MLX5_OPCODE_RDMA_WRITE_IMM ||
      code == MLX5_OPCODE_RDMA_READ || code == MLX5_OPCODE_ATOMIC_CS ||
      code == MLX5_OPCODE_ATOMIC_FA) {
    put(mlx5_wqe_raddr_seg{htobe64(Address()), htobe32(Key()), 0});
  }
  if (code == MLX5_OPCODE_ATOMIC_CS || code == MLX5_OPCODE_ATOMIC_FA) {
    put(mlx5_wqe_atomic_seg{htobe64(program_.Byte()), htobe64(program_.Byte())});
  }
  const uint32_t buffers = code >= MLX5_OPCODE_ATOMIC_CS ? 1 : program_.Below(4);
  for (uint32_t i = 0; i < buffers; ++i) {
    const uint32_t length = code >= MLX5_OPCODE_ATOMIC_CS ? 8 : Length();
    put(mlx5_wqe_data_seg{htobe32(length), htobe32(Key()), htobe64(Address())});
  }
  const uint8_t damage = program_.Byte();  // most are whole
  const uint16_t index = static_cast<uint16_t>(queues.sends + (damage > 250 ? damage - 250 : 0));
  const uint32_t number = damage == 249 ? Number() : queues.number;
  const uint32_t segments = damage == 248 ? program_.Byte() % 64 : static_cast<uint32_t>(segment);
  mlx5_wqe_ctrl_seg head = {};
  head.opmod_idx_opcode = htobe32(uint32_t{index} << 8 | code);
  head.qpn_ds = htobe32(number << 8 | segments);
  head.fm_ce_se = static_cast<uint8_t>(program_.Flag() ? MLX5_WQE_CTRL_CQ_UPDATE : program_.Byte());
  head.imm = htobe32(Key());
  std::memcpy(bytes.data(), &head, sizeof(head));
  const size_t slots = (segment * kSegmentBytes + kSlotBytes - 1) / kSlotBytes;
  for (size_t i = 0; i < slots; ++i) {
    const uint64_t slot = (queues.sends + i) % kSlots;
    std::memcpy(memory_->At(QueuePairAt(which) + kQueuesBehindRecords + slot * kSlotBytes),
                bytes.data() + i * kSlotBytes, kSlotBytes);
  }
  queues.sends = static_cast<uint16_t>(queues.sends + slots);
  auto* const records = reinterpret_cast<__be32*>(memory_->At(QueuePairAt(which)));
  verbs::mlx5::StoreRecord(&records[MLX5_SND_DBR], queues.sends);
  if (damage != 247) Ring(queues.number << 8);
}

void HostileQueues::PostReceive() {
  const size_t which = program_.Below(2);
  Queues& queues = queue_pairs_[which];
  const mlx5_wqe_data_seg segments[2] = {{htobe32(Length()), htobe32(Key()), htobe64(Address())},
                                         {0, htobe32(MLX5_INVALID_LKEY), 0}};
  const uint64_t slot = queues.receives % kSlots;
  std::memcpy(memory_->At(QueuePairAt(which) + kReceivesAt + slot * kReceiveBytes), segments,
              sizeof(segments));
  const uint8_t how = program_.Byte();
  queues.receives = static_cast<uint16_t>(queues.receives + (how < 250 ? 1 : how));
  auto* const records = reinterpret_cast<__be32*>(memory_->At(QueuePairAt(which)));
  verbs::mlx5::StoreRecord(&records[MLX5_RCV_DBR], queues.receives);
}

void HostileQueues::PostShared() {
  const uint32_t slot = program_.Below(kSharedSlots);
  uint8_t* const at = memory_->At(kSharedAt + kQueuesBehindRecords + slot * kSharedSlotBytes);
  const mlx5_wqe_data_seg buffer = {htobe32(Length()), htobe32(Key()), htobe64(Address())};
  std::memcpy(at + kSegmentBytes, &buffer, sizeof(buffer));
  const uint8_t how = program_.Byte();
  if (how > 240) {
    reinterpret_cast<mlx5_wqe_srq_next_seg*>(at)->next_wqe_index =
        htobe16(static_cast<uint16_t>(program_.Near(kSharedSlots)));
  }
  shared_posted_ = static_cast<uint16_t>(shared_posted_ + (how % 8 == 7 ? how % 32 : 1));
  verbs::mlx5::StoreRecord(reinterpret_cast<__be32*>(memory_->At(kSharedAt)), shared_posted_);
}

void HostileQueues::WriteBytes() {
  constexpr uint64_t kPlaces[] = {kPageAt,        kPageAt + 0x80, kQueueAt,
                                  QueuePairAt(0), QueuePairAt(1), QueuePairAt(0) + kReceivesAt,
                                  kSharedAt,      kDataAt};
  const uint64_t at = kPlaces[program_.Below(std::size(kPlaces))] + program_.Byte() * uint64_t{4};
  const std::string_view block = program_.Block(program_.Byte() % 64);
  std::copy(block.begin(), block.end(), memory_->At(at));
}

void HostileQueues::Consume() {
  consumed_ += program_.Byte() % 16;
  verbs::mlx5::StoreRecord(reinterpret_cast<__be32*>(memory_->At(kQueueAt)), consumed_);
}

namespace {

constexpr uint8_t kCanaryByte = 0xa7;
void* watched_mapping = nullptr;

}  // namespace

HostileMemory::HostileMemory() : file_(kBytes) {}

void HostileMemory::Clear() {
  std::memset(file_.begin(), 0, kCanary);
  std::memset(file_.begin() + kCanary, kCanaryByte, kPage);
  watched_ = true;
}

void HostileMemory::Watch() const { SharedReads::Watch(watched_mapping, kBytes); }

void HostileMemory::NoteObject(uint64_t offset, uint64_t bytes) {
  BATON_CHECK(offset <= kBytes && bytes <= kBytes - offset);
  if (offset + bytes > kCanary) watched_ = false;
}

void HostileMemory::Check() const {
  BATON_CHECK(!watched_ || std::all_of(file_.begin() + kCanary, file_.begin() + kBytes,
                                       [](uint8_t byte) { return byte == kCanaryByte; }));
}

}  // namespace baton::fuzz

// Names that the linker (--wrap) gives. The newest mapping of the file is the one that is watched.
// NOLINTBEGIN
extern "C" {
using baton::fuzz::HostileMemory;
using baton::fuzz::SharedReads;
using baton::fuzz::watched_mapping;
void* __real_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset);
void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  void* const made = __real_mmap(at, bytes, protection, flags, fd, offset);
  if (bytes == HostileMemory::kBytes && fd >= 0 && made != MAP_FAILED) {
    watched_mapping = made;
    SharedReads::Watch(made, bytes);
  }
  return made;
}
int __real_munmap(void* at, size_t bytes);
int __wrap_munmap(void* at, size_t bytes) {
  if (at == watched_mapping) SharedReads::Forget();
  return __real_munmap(at, bytes);
}
}
// NOLINTEND
