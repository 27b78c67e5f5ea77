// Hostile clients of a NIC beside one that is correct.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/client.h"
#include "lib/nic/control_format.h"
#include "lib/nic/control_socket.h"
#include "lib/nic/nic.h"
#include "lib/verbs/mlx5/doorbell.h"
#include "tests/fuzz/hostile_queues.h"
#include "tests/fuzz/program.h"
#include "tests/fuzz/shared_reads.h"
#include "tests/lib/nic/harness.h"
#include "tests/lib/nic/loopback_link.h"

namespace baton::fuzz {
namespace {

// A correct client of a NIC, over its socket.
class HonestClient {
 public:
  // The NIC is turned by this thread, and outlives the client.
  explicit HonestClient(nic::Nic* nic);

  void Send() { traffic_.Send(); }
  void Check() { traffic_.Check(); }
  const Victim& victim() const { return victim_; }

 private:
  const std::unique_ptr<nic::Client> client_;
  nic::Shard shard_;
  nic::Driver driver_;
  const Victim victim_;
  HonestTraffic traffic_;
};

std::unique_ptr<nic::Client> Open(nic::Nic* nic) {
  int ends[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  BATON_CHECK(nic->Add(FileDescriptor(ends[0])).ok());
  auto client = nic::Client::Open(FileDescriptor(ends[1]), [nic] { nic->Progress(); });
  BATON_CHECK(client.ok());
  return *std::move(client);
}

HonestClient::HonestClient(nic::Nic* nic)
    : client_(Open(nic)),
      shard_(client_.get(), {}),
      driver_(&shard_),
      victim_{{shard_.number(0), shard_.number(1)},
              shard_.completion_queue(),
              shard_.key(),
              shard_.AddressOf(shard_.data())},
      traffic_({&driver_[0], &driver_[1], &driver_.queue(), shard_.data(), victim_.address,
                victim_.key, [nic] { nic->Progress(); }}) {}

// A client of a NIC that writes whatever it can: messages to its sockets, and bytes to the memory
// in which its queues lie.
class HostileClient : private HostileQueues {
 public:
  // All of them outlive it. It opens a file for objects, and makes some of each kind.
  HostileClient(nic::Nic* nic, const Victim& victim, HostileMemory* memory, Program* program);

  // Does the next thing of the program.
  void Step();

 private:
  void Open();
  void MakeObjects();
  void Close();

  // Messages. Call returns the number that the reply has, or 0 if the NIC has refused.
  template <typename Message>
  uint32_t Call(Message message, int passed = -1);
  nic::control::Reply Exchange(const void* bytes, size_t size, int passed);
  void Judge(const void* bytes, size_t size, int passed, const nic::control::Reply& reply);
  void CallAnything();
  void CallBytes();
  void MakeAnything();
  template <typename Message>
  void CallWith(Message message) {
    (void)Call(message);
  }

  nic::control::Place Place(uint64_t near);

  nic::Nic* const nic_;
  FileDescriptor file_;
  FileDescriptor calls_;
  bool file_abused_ = false;  // the NIC may have ended it
  uint32_t last_tag_ = 0;
  FileDescriptor answer_;  // came with the last reply
};

namespace control = nic::control;
using control::Kind;
using control::Op;
using verbs::mlx5::DoorbellPage;
using verbs::mlx5::kSlotBytes;

constexpr int kMaxTurnsOfCall = 2000;

// Descriptors that are no sealed memfd, for FILE and ADD_SOCKET.
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
    case Op::kEndSocket:
      return sizeof(control::EndSocket);
    default:
      return 0;  // none of a call socket of objects
  }
}

HostileClient::HostileClient(nic::Nic* nic, const Victim& victim, HostileMemory* memory,
                             Program* program)
    : HostileQueues(victim, memory, program), nic_(nic) {
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
  for (int i = 0; i < kMaxTurnsOfCall && Receive(file_.get(), &reply) == nic::Received::kNothing;
       ++i) {
    nic_->Serve();
  }
  BATON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  const FileDescriptor ours(ends[0]);
  const FileDescriptor for_reply(ends[1]);
  control::AddSocket request;
  request.header = {static_cast<uint16_t>(Op::kAddSocket), sizeof(request), ++last_tag_};
  BATON_CHECK(nic::SendMessage(file_.get(), request, for_reply.get()));
  for (int i = 0; i < kMaxTurnsOfCall && Receive(ours.get(), &reply) == nic::Received::kNothing;
       ++i) {
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
  queue_ = Call(QueueMessage());
  shared_ = Call(SharedMessage());
  LinkShared();
  const bool shares = program_.Flag();
  for (size_t i = 0; i < queue_pairs_.size(); ++i) {
    std::memset(memory_->At(QueuePairAt(i)), 0, 16);
    queue_pairs_[i] = {Call(QueuePairMessage(i, shares)), 0, 0};
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
    BATON_CHECK(turn < kMaxTurnsOfCall);  // each message is answered, or ends its socket
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

// control.md has the rules: errors are numbers, and a client reaches no object but its own.
void HostileClient::Judge(const void* bytes, size_t size, int passed, const control::Reply& reply) {
  const auto note = [this](const control::Place& place, uint64_t length) {
    if (place.file != 0) memory_->NoteObject(place.offset, length);
  };
  const auto is_theirs = [this](uint32_t number) {
    return number == victim_.queue_pairs[0] || number == victim_.queue_pairs[1] ||
           number == victim_.completion_queue;
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
                          (kind == Kind::kRegion && message.number == victim_.key);
      BATON_CHECK(!stolen || reply.error == ENOENT);
      break;
    }
    default:
      break;
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
      if (program_.Flag()) return CallWith(control::NextDeviceEvent{{}, program_.Below(3), 0});
      if (program_.Flag()) return CallWith(control::EndSocket{{}, program_.Below(20), 0});
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

constexpr int kMaxSteps = 64;
constexpr uint32_t kInputsOfNic = 1000;
constexpr uint32_t kMaxTurnsInStep = 4;
constexpr int kMaxTurns = 1000;
constexpr uint64_t kMaxReadsInTurn = 1'000'000;  // of the hostile clients' memory

// Turns the NIC, which does no more in a turn than it may.
void Turn(nic::Nic* nic) {
  const uint64_t before = SharedReads::seen();
  nic->Progress();
  BATON_CHECK(SharedReads::seen() < before + kMaxReadsInTurn);
}

// The NIC and its correct client stay for many inputs: what hostile clients leave there would show
// in a later one, and making them takes as long as an input.
struct Victims {
  Victims() : nic(*nic::Nic::Make(Options(), {})), honest(nic.get()) {}
  static verbs::soft::SoftDeviceOptions Options() {
    verbs::soft::SoftDeviceOptions options;
    options.seed = 1;
    return nic::WithLoopback(options);
  }

  const std::unique_ptr<nic::Nic> nic;
  HonestClient honest;
};

}  // namespace

void NicClients(const uint8_t* data, size_t size) {
  static HostileMemory memory;
  static std::unique_ptr<Victims> victims;
  static uint32_t inputs = 0;
  if (inputs++ % kInputsOfNic == 0) victims = std::make_unique<Victims>();
  nic::Nic* const nic = victims->nic.get();
  HonestClient* const honest = &victims->honest;
  Program program(data, size);
  memory.Clear();
  std::array<std::unique_ptr<HostileClient>, 2> hostile;
  hostile[0] = std::make_unique<HostileClient>(nic, honest->victim(), &memory, &program);
  for (int step = 0; step < kMaxSteps && !program.empty(); ++step) {
    const uint8_t what = program.Byte();
    if (what < 200) {
      hostile[0]->Step();
    } else if (what < 225) {
      if (hostile[1] == nullptr) {
        hostile[1] = std::make_unique<HostileClient>(nic, honest->victim(), &memory, &program);
      }
      hostile[1]->Step();
    } else if (what < 230) {
      hostile[1].reset();
    } else if (what < 240) {
      (void)nic->PrepareToWait();
    } else {
      honest->Send();
    }
    for (uint32_t turn = what % kMaxTurnsInStep; turn > 0; --turn) Turn(nic);
  }
  honest->Send();
  honest->Check();
  memory.Check();
  hostile = {};
  for (int turn = 0; nic->contexts() > 1; ++turn) {
    BATON_CHECK(turn < kMaxTurns);  // what is closed ends
    Turn(nic);
  }
  SharedReads::Forget();
}

}  // namespace baton::fuzz
