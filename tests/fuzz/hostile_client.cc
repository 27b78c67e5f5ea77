#include "tests/fuzz/hostile_client.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "lib/base/check.h"
#include "lib/verbs/mlx5/doorbell_page.h"
#include "lib/verbs/mlx5/format.h"
#include "tests/fuzz/shared_reads.h"

namespace baton::fuzz {
namespace {

namespace control = nic::control;
using control::Kind;
using control::Op;
using verbs::mlx5::DoorbellPage;
using verbs::mlx5::kSegmentBytes;
using verbs::mlx5::kSlotBytes;

// Where MakeObjects puts them.
constexpr uint64_t kPageAt = 0;
constexpr uint64_t kQueueAt = HostileMemory::kPage;  // records, then entries
constexpr uint64_t kQueuePairsAt = 2 * HostileMemory::kPage;
constexpr uint64_t kSharedAt = 4 * HostileMemory::kPage;
constexpr uint64_t kDataAt = 5 * HostileMemory::kPage;
constexpr uint64_t kDataBytes = 2 * HostileMemory::kPage;
constexpr uint64_t kSecondPageAt = 7 * HostileMemory::kPage;
constexpr uint64_t kDataAddress = 0x7000'0000;  // what requests call it
constexpr uint64_t kQueuesBehindRecords = 64;
constexpr uint32_t kEntries = 32;
constexpr uint32_t kSlots = 16;
constexpr uint32_t kReceiveBytes = 32;
constexpr uint64_t kReceivesAt = kQueuesBehindRecords + kSlots * kSlotBytes;  // of a queue pair
constexpr uint32_t kSharedSlots = 8;
constexpr uint32_t kSharedSlotBytes = 32;
constexpr uint32_t kAllAccess = 15 | 65'536;
constexpr int kMaxTurns = 2000;

constexpr uint64_t QueuePairAt(size_t index) {
  return kQueuePairsAt + index * HostileMemory::kPage;
}

// Descriptors that are no sealed memfd, for FILE and ATTACH.
int Unsealed() {
  const int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  BATON_CHECK(fd >= 0 && ftruncate(fd, HostileMemory::kPage) == 0);
  return fd;
}
int Strange(uint32_t which) {
  static const int kStrange[] = {Unsealed(), open("/dev/zero", O_RDWR | O_CLOEXEC),
                                 eventfd(0, EFD_CLOEXEC),
                                 open("/proc/self/exe", O_RDONLY | O_CLOEXEC)};
  return kStrange[which % std::size(kStrange)];
}

control::RequestHeader HeaderOf(const void* bytes) {
  control::RequestHeader header;
  std::memcpy(&header, bytes, sizeof(header));
  return header;
}

template <typename Message>
Message As(const void* bytes) {
  Message message;
  std::memcpy(&message, bytes, sizeof(message));
  return message;
}

size_t SizeOf(Op op) {
  switch (op) {
    case Op::kFile:
      return sizeof(control::File);
    case Op::kRegion:
      return sizeof(control::Region);
    case Op::kRegister:
      return sizeof(control::Register);
    case Op::kChannel:
      return sizeof(control::Channel);
    case Op::kCompletionQueue:
      return sizeof(control::CompletionQueue);
    case Op::kQueuePair:
      return sizeof(control::QueuePair);
    case Op::kModify:
      return sizeof(control::Modify);
    case Op::kQuery:
      return sizeof(control::Query);
    case Op::kDestroy:
      return sizeof(control::Destroy);
    case Op::kNextDeviceEvent:
      return sizeof(control::NextDeviceEvent);
    case Op::kSharedReceiveQueue:
      return sizeof(control::SharedReceiveQueue);
    case Op::kArmLimit:
      return sizeof(control::ArmLimit);
    default:
      return 0;  // none of a call socket of objects
  }
}

}  // namespace

HostileClient::HostileClient(nic::Nic* nic, const HonestClient* honest, HostileMemory* memory,
                             Program* program)
    : nic_(nic), honest_(honest), memory_(memory), program_(*program) {
  Open();
  MakeObjects();
}

void HostileClient::Open() {
  int ends[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  file_.Reset(ends[0]);
  FileDescriptor theirs(ends[1]);
  if (!nic_->Add(std::move(theirs)).ok()) return;
  control::OpenObjects open;
  open.header = {static_cast<uint16_t>(Op::kOpenObjects), sizeof(open), ++last_tag_};
  BATON_CHECK(nic::SendMessage(file_.get(), open));
  nic::ControlMessage reply;
  for (int i = 0; i < kMaxTurns && Receive(file_.get(), &reply) == nic::Received::kNothing; ++i) {
    nic_->Serve();
  }
  BATON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  const FileDescriptor ours(ends[0]);
  const FileDescriptor for_reply(ends[1]);
  control::Attach attach;
  attach.header = {static_cast<uint16_t>(Op::kAttach), sizeof(attach), ++last_tag_};
  BATON_CHECK(nic::SendMessage(file_.get(), attach, for_reply.get()));
  for (int i = 0; i < kMaxTurns && Receive(ours.get(), &reply) == nic::Received::kNothing; ++i) {
    nic_->Serve();
  }
  calls_ = std::move(reply.passed);
  BATON_CHECK(static_cast<bool>(calls_));
}

void HostileClient::Close() {
  file_abused_ = false;
  file_.Reset();
  calls_.Reset();
  wake_.Reset();
}

void HostileClient::MakeObjects() {
  const auto at = [&](uint64_t offset) { return control::Place{memory_file_, 0, offset}; };
  memory_file_ = Call(control::File(), memory_->fd());
  key_ = Call(control::Region{{}, at(kDataAt), kDataBytes, kDataAddress, kAllAccess, 0});
  reg_ = Call(control::Register{{}, at(kPageAt)});
  wake_ = std::move(answer_);
  channel_ = Call(control::Channel());
  queue_ = Call(control::CompletionQueue{
      {}, at(kQueueAt + kQueuesBehindRecords), at(kQueueAt), kEntries, 64, reg_, channel_});
  control::SharedReceiveQueue shared = {
      {}, at(kSharedAt + kQueuesBehindRecords), at(kSharedAt), kSharedSlots, kSharedSlotBytes};
  shared_ = Call(shared);
  for (uint32_t slot = 0; slot < kSharedSlots; ++slot) {
    auto* const link = reinterpret_cast<mlx5_wqe_srq_next_seg*>(
        memory_->At(kSharedAt + kQueuesBehindRecords + slot * kSharedSlotBytes));
    link->next_wqe_index = htobe16(static_cast<uint16_t>((slot + 1) % kSharedSlots));
  }
  const bool shares = program_.Flag();
  for (size_t i = 0; i < queue_pairs_.size(); ++i) {
    const uint64_t begin = QueuePairAt(i);
    control::QueuePair message;
    message.sends = at(begin + kQueuesBehindRecords);
    message.records = at(begin);
    message.send_slots = kSlots;
    message.reg = reg_;
    message.send_queue = message.receive_queue = queue_;
    if (shares) {
      message.shared_receive_queue = shared_;
    } else {
      message.receives = at(begin + kReceivesAt);
      message.receive_slots = kSlots;
      message.receive_bytes = kReceiveBytes;
    }
    std::memset(memory_->At(begin), 0, 16);
    queue_pairs_[i] = {Call(message), 0, 0};
  }
  const uint32_t first = queue_pairs_[0].number;
  const uint32_t second = queue_pairs_[1].number;
  constexpr uint32_t kReady = static_cast<uint32_t>(verbs::QueuePairState::kReadyToSend);
  (void)Call(control::Modify{{}, first, kReady, second, 7, 10, 0});
  (void)Call(control::Modify{{}, second, kReady, first, 7, 10, 0});
}

template <typename Message>
uint32_t HostileClient::Call(Message message, int passed) {
  message.header = {static_cast<uint16_t>(Message::kOp), sizeof(message), ++last_tag_};
  const control::Reply reply = Exchange(&message, sizeof(message), passed);
  if (reply.error != 0) return 0;
  if (reply.value != 0 && numbers_.size() < 64) numbers_.push_back(reply.value);
  return reply.value;
}

// A socket that the NIC has ended ends with its file here.
control::Reply HostileClient::Exchange(const void* bytes, size_t size, int passed) {
  control::Reply reply;
  reply.error = EPIPE;
  answer_.Reset();
  nic::ControlMessage message;
  if (!calls_ || !nic::Send(calls_.get(), {static_cast<const uint8_t*>(bytes), size}, passed)) {
    return reply;
  }
  nic::Received received = nic::Received::kNothing;
  for (int turn = 0; received == nic::Received::kNothing; ++turn) {
    BATON_CHECK(turn < kMaxTurns);  // each message is answered, or ends its socket
    nic_->Serve();
    received = Receive(calls_.get(), &message);
  }
  const bool whole = size >= sizeof(control::RequestHeader) && size <= control::kMaxControlBytes &&
                     HeaderOf(bytes).bytes == size;
  const bool ended = received != nic::Received::kMessage;
  BATON_CHECK(ended ? !whole || file_abused_ : whole);
  if (ended) {
    Close();
    return reply;
  }
  BATON_CHECK(message.size == sizeof(reply));
  std::memcpy(&reply, message.bytes.data(), sizeof(reply));
  BATON_CHECK(reply.tag == HeaderOf(bytes).tag && reply.text[sizeof(reply.text) - 1] == 0);
  answer_ = std::move(message.passed);
  Judge(bytes, size, passed, reply);
  return reply;
}

// What control.md has: errors by number, and no object but of one's own.
void HostileClient::Judge(const void* bytes, size_t size, int passed, const control::Reply& reply) {
  const auto note = [this](const control::Place& place, uint64_t length) {
    if (place.file != 0) memory_->NoteObject(place.offset, length);
  };
  const auto is_theirs = [this](uint32_t number) {
    return number == honest_->queue_pair(0) || number == honest_->queue_pair(1) ||
           number == honest_->completion_queue();
  };
  const Op op = static_cast<Op>(HeaderOf(bytes).op);
  if (size != SizeOf(op)) {
    BATON_CHECK(reply.error == EINVAL);
    return;
  }
  const bool done = reply.error == 0;
  switch (op) {
    case Op::kFile:
      BATON_CHECK(done ? passed == memory_->fd() : reply.error == EINVAL || reply.error == ENOSPC);
      break;
    case Op::kRegion:
      if (done) note(As<control::Region>(bytes).place, As<control::Region>(bytes).length);
      break;
    case Op::kRegister:
      if (done) note(As<control::Register>(bytes).page, sizeof(DoorbellPage));
      BATON_CHECK(done == static_cast<bool>(answer_));
      break;
    case Op::kCompletionQueue: {
      const auto message = As<control::CompletionQueue>(bytes);
      if (!done) break;
      note(message.entries, uint64_t{message.entry_count} * message.entry_bytes);
      note(message.records, 12);
      break;
    }
    case Op::kQueuePair: {
      const auto message = As<control::QueuePair>(bytes);
      if (!done) break;
      BATON_CHECK(!is_theirs(message.send_queue) && !is_theirs(message.receive_queue));
      note(message.sends, uint64_t{message.send_slots} * kSlotBytes);
      note(message.records, 12);
      break;
    }
    case Op::kModify:
      BATON_CHECK(!is_theirs(As<control::Modify>(bytes).number) || reply.error == ENOENT);
      break;
    case Op::kQuery:
      BATON_CHECK(!is_theirs(As<control::Query>(bytes).number) || reply.error == ENOENT ||
                  reply.error == EINVAL);
      break;
    case Op::kArmLimit:
      BATON_CHECK(!is_theirs(As<control::ArmLimit>(bytes).number) || reply.error == ENOENT);
      break;
    case Op::kDestroy: {
      const auto message = As<control::Destroy>(bytes);
      const auto kind = static_cast<Kind>(message.kind);
      const bool global = kind == Kind::kCompletionQueue || kind == Kind::kQueuePair ||
                          kind == Kind::kSharedReceiveQueue;
      const bool stolen = (global && is_theirs(message.number)) ||
                          (kind == Kind::kRegion && message.number == honest_->key());
      BATON_CHECK(!stolen || reply.error == ENOENT);
      break;
    }
    default:
      break;
  }
}

uint32_t HostileClient::Number() {
  const uint8_t which = program_.Byte();
  switch (which % 12) {
    case 0:
      return honest_->queue_pair(which / 12 % 2);
    case 1:
      return honest_->completion_queue();
    case 2:
      return honest_->key();
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

control::Place HostileClient::Place(uint64_t near) {
  const uint8_t how = program_.Byte();
  control::Place place = {memory_file_, 0, near};
  if (how < 128) return place;
  if (how < 192) place.offset = (how % 64) * uint64_t{1024};
  if (how >= 192) place.offset = program_.Near(how % 2 == 0 ? near : HostileMemory::kBytes);
  if (how >= 240) place.file = Number();
  if (how >= 250) place.reserved = program_.Byte();
  return place;
}

uint32_t HostileClient::Key() {
  const uint8_t how = program_.Byte();
  if (how < 192) return key_;
  return how < 224 ? honest_->key() : Number();
}

uint64_t HostileClient::Address() {
  const uint8_t how = program_.Byte();
  if (how < 128) return kDataAddress + how * uint64_t{64};
  if (how < 160) return honest_->address() + (how - 128) * uint64_t{64};
  return program_.Near(how < 200 ? kDataAddress + kDataBytes : kDataAddress);
}

uint32_t HostileClient::Length() {
  const uint8_t how = program_.Byte();
  if (how < 192) return how;
  return static_cast<uint32_t>(program_.Near(how < 224 ? kDataBytes : uint64_t{1} << 31));
}

void HostileClient::MakeAnything() {
  switch (program_.Below(6)) {
    case 0: {
      const int strange = Strange(program_.Byte());
      (void)Call(control::File(), program_.Flag() ? memory_->fd() : strange);
      break;
    }
    case 1:
      CallWith(control::Region{{},
                               Place(kDataAt),
                               program_.Near(64),
                               Address(),
                               program_.Flag() ? kAllAccess : Number(),
                               program_.Below(2)});
      break;
    case 2:
      CallWith(control::Register{{}, Place(kSecondPageAt)});
      break;
    case 3:
      CallWith(control::CompletionQueue{{},
                                        Place(kQueueAt + kQueuesBehindRecords),
                                        Place(kQueueAt),
                                        program_.Flag() ? 1u << program_.Below(8) : Number(),
                                        64u << program_.Below(3),
                                        program_.Flag() ? reg_ : Number(),
                                        program_.Flag() ? channel_ : Number()});
      break;
    case 4: {
      control::QueuePair message;
      const uint64_t begin = QueuePairAt(program_.Below(2));
      message.sends = Place(begin + kQueuesBehindRecords);
      message.receives = Place(begin + kReceivesAt);
      message.records = Place(begin);
      message.send_slots = program_.Flag() ? kSlots : Number();
      message.receive_slots = program_.Flag() ? kSlots : Number();
      message.receive_bytes = 16u << program_.Below(6);
      message.domain = program_.Below(2);
      message.reg = program_.Flag() ? reg_ : Number();
      message.send_queue = program_.Flag() ? queue_ : Number();
      message.receive_queue = program_.Flag() ? queue_ : Number();
      message.shared_receive_queue = program_.Flag() ? 0 : Number();
      message.send_sges = program_.Byte();
      message.send_inline = program_.Byte() * 4u;
      const uint32_t made = Call(message);
      if (made != 0) queue_pairs_[program_.Below(2)] = {made, 0, 0};
      break;
    }
    default:
      CallWith(control::SharedReceiveQueue{{},
                                           Place(kSharedAt + kQueuesBehindRecords),
                                           Place(kSharedAt),
                                           1u << program_.Below(8),
                                           16u << program_.Below(8)});
      break;
  }
}

void HostileClient::CallAnything() {
  switch (program_.Below(8)) {
    case 0:
    case 1:
      return MakeAnything();
    case 2:
    case 3: {
      const uint32_t number = Number();
      const uint32_t state = program_.Below(8);
      const uint32_t peer = program_.Flag() ? Number() : 0;
      const uint32_t retries = peer == 0 ? 0 : program_.Below(9);
      if (state == 0 && program_.Flag()) {  // as a correct driver does
        for (Queues& queues : queue_pairs_) {
          if (queues.number == number) queues = {number, 0, 0};
        }
        for (size_t i = 0; i < 2; ++i) std::memset(memory_->At(QueuePairAt(i)), 0, 8);
      }
      return CallWith(control::Modify{{}, number, state, peer, retries, program_.Byte(), 0});
    }
    case 4:
      return CallWith(control::Query{{}, Number(), program_.Byte() < 240 ? 0u : 1u});
    case 5:
      return CallWith(control::Destroy{{}, program_.Below(11), Number()});
    case 6:
      return CallWith(control::ArmLimit{{}, Number(), program_.Byte()});
    default:
      if (program_.Flag()) return CallWith(control::NextDeviceEvent());
      return CallWith(control::Channel{{}, program_.Below(3), 0});
  }
}

// A message of its own making, on the call socket or on the file.
void HostileClient::CallBytes() {
  const bool to_file = program_.Byte() > 224;
  const bool whole = program_.Byte() < 224;
  std::array<uint8_t, control::kMaxControlBytes + 8> bytes = {};
  const std::string_view block = program_.Block(program_.Byte());
  std::copy(block.begin(), block.end(), bytes.begin());
  size_t size = block.size();
  if (whole) {
    size = std::max(size, sizeof(control::RequestHeader));
    const control::RequestHeader header = {static_cast<uint16_t>(block.empty() ? 0 : block[0] % 32),
                                           static_cast<uint16_t>(size), ++last_tag_};
    std::memcpy(bytes.data(), &header, sizeof(header));
  }
  const int passed = program_.Flag() ? Strange(program_.Byte()) : -1;
  if (!to_file) {
    if (size > 0) (void)Exchange(bytes.data(), size, passed);
    return;
  }
  file_abused_ = true;
  if (file_) (void)nic::Send(file_.get(), {bytes.data(), size}, passed);
  for (int turn = 0; turn < 4; ++turn) nic_->Progress();
}

// Now and then on the page of a second register, which it may have made.
void HostileClient::Ring(uint32_t second_word) {
  const uint8_t index = program_.Byte();
  const __be32 words[] = {htobe32(index << 8), htobe32(second_word)};
  uint64_t bytes;
  std::memcpy(&bytes, words, sizeof(bytes));
  const bool second = index >= 240;
  auto* const page = reinterpret_cast<DoorbellPage*>(memory_->At(second ? kSecondPageAt : kPageAt));
  uint32_t& rung = second ? second_rung_ : rung_;
  std::atomic_ref(page->sends[rung++ % verbs::mlx5::kSendPlaces]).store(bytes);
}

void HostileClient::RingAnything() {
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

void HostileClient::PostSend() {
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

void HostileClient::PostReceive() {
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

void HostileClient::PostShared() {
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

void HostileClient::WriteBytes() {
  constexpr uint64_t kPlaces[] = {kPageAt,        kPageAt + 0x80, kQueueAt,
                                  QueuePairAt(0), QueuePairAt(1), QueuePairAt(0) + kReceivesAt,
                                  kSharedAt,      kDataAt};
  const uint64_t at = kPlaces[program_.Below(std::size(kPlaces))] + program_.Byte() * uint64_t{4};
  const std::string_view block = program_.Block(program_.Byte() % 64);
  std::copy(block.begin(), block.end(), memory_->At(at));
}

void HostileClient::Consume() {
  consumed_ += program_.Byte() % 16;
  verbs::mlx5::StoreRecord(reinterpret_cast<__be32*>(memory_->At(kQueueAt)), consumed_);
}

void HostileClient::Step() {
  switch (program_.Below(14)) {
    case 0:
    case 1:
    case 2:
      return PostSend();
    case 3:
    case 4:
      return PostReceive();
    case 5:
      return PostShared();
    case 6:
    case 7:
      return CallAnything();
    case 8:
      return CallBytes();
    case 9:
      return RingAnything();
    case 10:
      return WriteBytes();
    case 11:
      return Consume();
    case 12:
      return SharedReads::Interfere(Interference::Of(program_));
    default:
      if (calls_ && program_.Byte() < 224) return;
      Close();
      Open();
      return MakeObjects();
  }
}

}  // namespace baton::fuzz
