// Queues of a NIC's client that may say anything, beside those of one that is correct.
#include <fcntl.h>
#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/call.h"
#include "lib/nic/context.h"
#include "lib/nic/control_format.h"
#include "lib/nic/event_loop.h"
#include "lib/nic/host.h"
#include "lib/nic/objects.h"
#include "lib/nic/soft_options.h"
#include "lib/verbs/mlx5/commands.h"
#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/mlx5/doorbell.h"
#include "lib/verbs/mlx5/fifo_doorbell.h"
#include "lib/verbs/mlx5/queue_layout.h"
#include "lib/verbs/mlx5/queue_pair.h"
#include "tests/fuzz/hostile_queues.h"
#include "tests/fuzz/program.h"
#include "tests/fuzz/shared_reads.h"
#include "tests/lib/nic/harness.h"
#include "tests/lib/nic/loopback_link.h"

namespace baton::fuzz {

// The file of one client, whose objects end with it.
class DirectFile final : public verbs::mlx5::Commands {
 public:
  DirectFile(nic::Owner owner, const nic::Host* host) : context_(owner, host) {}

  // Returns the value of the reply.
  template <typename Message>
  absl::StatusOr<uint32_t> Call(Message message, int passed = -1) {
    message.header = {static_cast<uint16_t>(Message::kOp), sizeof(message), 0};
    return Execute({reinterpret_cast<const uint8_t*>(&message), sizeof(message)}, passed);
  }
  // Returns the descriptor that came with the latest reply.
  FileDescriptor TakeAnswer() { return std::move(answer_); }
  nic::Context& context() { return context_; }

  absl::Status Modify(uint32_t qp_number, verbs::QueuePairState state) override;
  absl::StatusOr<verbs::QueuePairState> Query(uint32_t qp_number) override;
  void DestroyQueuePair(uint32_t) override {}

 private:
  absl::StatusOr<uint32_t> Execute(absl::Span<const uint8_t> message, int passed);

  nic::Context context_;
  FileDescriptor answer_;
};

// The part of a NIC that executes queues, without its sockets: calls are calls, and an input of a
// fuzzer makes no system calls but those of the loop's turns.
class DirectNic {
 public:
  // `complain` is called with the file of a client that does what no correct client does.
  explicit DirectNic(nic::ComplainOf complain);
  DirectNic(const DirectNic&) = delete;
  DirectNic& operator=(const DirectNic&) = delete;

  DirectFile* Open();
  // What nic::Nic::Execute does.
  void Turn();

 private:
  const verbs::soft::SoftDeviceOptions options_ = nic::WithLoopback();
  const FileDescriptor wake_ups_;
  const std::unique_ptr<verbs::soft::EventLoop> loop_;
  nic::Objects objects_{/*seed=*/1};
  const nic::Host host_;
  std::vector<std::unique_ptr<DirectFile>> files_;  // the owner of each is its place, and 1
};

absl::StatusOr<uint32_t> DirectFile::Execute(absl::Span<const uint8_t> message, int passed) {
  nic::Call call;
  call.bytes = message;
  if (passed >= 0) call.passed.Reset(fcntl(passed, F_DUPFD_CLOEXEC, 0));
  const absl::StatusOr<uint32_t> value = context_.Execute(&call);
  answer_ = std::move(call.answer);
  return value;
}

absl::Status DirectFile::Modify(uint32_t qp_number, verbs::QueuePairState state) {
  nic::control::Modify message;
  message.number = qp_number;
  message.state = static_cast<uint32_t>(state);
  return Call(message).status();
}

absl::StatusOr<verbs::QueuePairState> DirectFile::Query(uint32_t qp_number) {
  nic::control::Query message;
  message.number = qp_number;
  const absl::StatusOr<uint32_t> state = Call(message);
  if (!state.ok()) return state.status();
  return static_cast<verbs::QueuePairState>(*state);
}

DirectNic::DirectNic(nic::ComplainOf complain)
    : wake_ups_(epoll_create1(EPOLL_CLOEXEC)),
      loop_(*verbs::soft::EventLoop::Create()),
      host_{&objects_, loop_.get(), &options_, std::move(complain), false, wake_ups_.get()} {}

DirectFile* DirectNic::Open() {
  files_.push_back(std::make_unique<DirectFile>(files_.size() + 1, &host_));
  return files_.back().get();
}

void DirectNic::Turn() {
  loop_->UpdateNow();
  for (const auto& file : files_) (void)file->context().registers().Take();
  (void)loop_->Progress();
}

namespace {

namespace control = nic::control;
using control::Kind;
using verbs::QueuePairState;
using verbs::mlx5::DoorbellPage;
using verbs::mlx5::WholeLines;

constexpr int kMaxSteps = 20;
constexpr uint32_t kRnrTimerUs = 10;
constexpr uint32_t kLongRnrTimerUs = 100'000;
constexpr uint64_t kMaxReadsInTurn = 1'000'000;  // of the hostile client's memory
constexpr uint32_t kAccess = 15;

control::Modify ToReady(uint32_t number, uint32_t peer, uint32_t rnr_timer_us = kRnrTimerUs) {
  return {{},           number, static_cast<uint32_t>(QueuePairState::kReadyToSend), peer, 7,
          rnr_timer_us, 0};
}

// The memory of the correct client, and the objects that lie there.
class HonestFile {
 public:
  explicit HonestFile(DirectFile* file);

  const Victim& victim() const { return victim_; }
  HonestTraffic::Parts TrafficOn(DirectNic* nic);

 private:
  static constexpr verbs::mlx5::CompletionQueueLayout kQueue = {32};
  static constexpr verbs::mlx5::QueuePairLayout kQueuePair = {16, 16, 32};
  static constexpr verbs::mlx5::SendQueueLimits kLimits = {2, 64};
  static constexpr uint64_t kQueueAt = sizeof(DoorbellPage);
  static constexpr uint64_t kPairsAt = kQueueAt + WholeLines(kQueue.bytes());
  static constexpr uint64_t kDataAt = kPairsAt + 2 * WholeLines(kQueuePair.bytes());
  static constexpr uint64_t kAddress = 0x5000'0000;  // what requests call the data

  uint8_t* PairAt(size_t index) const {
    return memory_.begin() + kPairsAt + index * WholeLines(kQueuePair.bytes());
  }
  Victim MakeObjects(DirectFile* file);

  const nic::SharedFile memory_;
  FileDescriptor wake_;
  const Victim victim_;
  verbs::mlx5::FifoDoorbell bell_;
  verbs::mlx5::CompletionQueue queue_;
  verbs::mlx5::QueuePair sender_;
  verbs::mlx5::QueuePair receiver_;
};

HonestFile::HonestFile(DirectFile* file)
    : memory_(kDataAt + HonestTraffic::kDataBytes),
      victim_(MakeObjects(file)),
      bell_(reinterpret_cast<DoorbellPage*>(memory_.begin()), wake_.get()),
      queue_(kQueue.At(memory_.begin() + kQueueAt), victim_.completion_queue, &bell_),
      sender_(kQueuePair.MemoryAt(PairAt(0)), victim_.queue_pairs[0], kLimits, file, &bell_),
      receiver_(kQueuePair.MemoryAt(PairAt(1)), victim_.queue_pairs[1], kLimits, file, &bell_) {
  uint16_t place = 0;
  for (verbs::mlx5::QueuePair* const queue_pair : {&sender_, &receiver_}) {
    queue_.Add(kQueuePair.CompletingAt(PairAt(place), queue_pair->number(), place));
    queue_pair->NoteConnected(true);
    ++place;
  }
}

// Its numbers of files and registers are others than those of the hostile client.
Victim HonestFile::MakeObjects(DirectFile* file) {
  const uint32_t number = *file->Call(control::File(), memory_.fd());
  const auto at = [number](uint64_t offset) { return control::Place{number, 0, offset}; };
  for (int i = 0; i < 8; ++i) BATON_CHECK(file->Call(control::Channel()).ok());
  Victim made;
  made.address = kAddress;
  made.key = *file->Call(
      control::Region{{}, at(kDataAt), HonestTraffic::kDataBytes, kAddress, kAccess, 0});
  const uint32_t reg = *file->Call(control::Register{{}, at(0)});
  wake_ = file->TakeAnswer();
  made.completion_queue = *file->Call(control::CompletionQueue{
      {}, at(kQueueAt + kQueue.kEntries), at(kQueueAt), kQueue.entry_count, 64, reg, 0});
  for (size_t i = 0; i < 2; ++i) {
    const uint64_t begin = static_cast<uint64_t>(PairAt(i) - memory_.begin());
    control::QueuePair message;
    message.sends = at(begin + kQueuePair.kSends);
    message.receives = at(begin + kQueuePair.receives());
    message.records = at(begin);
    message.send_slots = kQueuePair.send_slots;
    message.receive_slots = kQueuePair.receive_slots;
    message.receive_bytes = kQueuePair.receive_bytes;
    message.reg = reg;
    message.send_queue = message.receive_queue = made.completion_queue;
    made.queue_pairs[i] = *file->Call(message);
  }
  for (size_t i = 0; i < 2; ++i) {
    BATON_CHECK(file->Call(ToReady(made.queue_pairs[i], made.queue_pairs[1 - i])).ok());
  }
  return made;
}

HonestTraffic::Parts HonestFile::TrafficOn(DirectNic* nic) {
  return {&sender_, &receiver_, &queue_, memory_.begin() + kDataAt, kAddress, victim_.key, [nic] {
            nic->Turn();
          }};
}

// The hostile client has these in every input: its file, which is mapped once, a region and a
// channel.
struct HostileGround {
  explicit HostileGround(DirectFile* opened) : file(opened) {
    memory_file = *file->Call(control::File(), memory.fd());
    const control::Place data = {memory_file, 0, kDataAt};
    key = *file->Call(control::Region{{}, data, kDataBytes, kDataAddress, kAllAccess, 0});
    channel = *file->Call(control::Channel());
    events = file->TakeAnswer();
  }

  HostileMemory memory;
  DirectFile* const file;
  uint32_t memory_file = 0;
  uint32_t key = 0;
  uint32_t channel = 0;
  FileDescriptor events;
};

// The registers and queues of one input, which leaves none of them.
class HostileShard final : private HostileQueues {
 public:
  // All of them outlive it.
  HostileShard(HostileGround* ground, const Victim& victim, Program* program);
  HostileShard(const HostileShard&) = delete;
  HostileShard& operator=(const HostileShard&) = delete;
  ~HostileShard();

  // Does the next thing of the program.
  void Step();

 private:
  void ModifyAnything();
  void Destroy(Kind kind, uint32_t number) {
    BATON_CHECK(file_->Call(control::Destroy{{}, static_cast<uint32_t>(kind), number}).ok());
  }

  DirectFile* const file_;
  uint32_t second_reg_ = 0;  // 0: there are one register and one completion queue
  uint32_t second_queue_ = 0;
};

// One queue pair may complete in another queue, and have another register, than the other.
HostileShard::HostileShard(HostileGround* ground, const Victim& victim, Program* program)
    : HostileQueues(victim, &ground->memory, program), file_(ground->file) {
  constexpr uint64_t kSecondQueueAt = kQueueAt + 40 * kQueuesBehindRecords;
  memory_->Clear();
  memory_file_ = ground->memory_file;
  key_ = ground->key;
  channel_ = ground->channel;
  reg_ = *file_->Call(control::Register{{}, At(kPageAt)});
  wake_ = file_->TakeAnswer();
  queue_ = *file_->Call(QueueMessage());
  const uint8_t how = program_.Byte();
  if ((how & 12) == 12) {
    second_reg_ = *file_->Call(control::Register{{}, At(kSecondPageAt)});
    control::CompletionQueue second = QueueMessage();
    second.records = At(kSecondQueueAt);
    second.entries = At(kSecondQueueAt + kQueuesBehindRecords);
    second.entry_count = kEntries / 2;
    second.reg = second_reg_;
    second_queue_ = *file_->Call(second);
    numbers_ = {second_reg_, second_queue_};
  }
  shared_ = *file_->Call(SharedMessage());
  LinkShared();
  for (size_t i = 0; i < queue_pairs_.size(); ++i) {
    control::QueuePair message = QueuePairMessage(i, (how >> i & 1) != 0);
    if (i == 1 && second_reg_ != 0) {
      message.receive_queue = second_queue_;
      if ((how & 32) != 0) message.reg = second_reg_;
    }
    if ((how & 16) != 0) message.send_sges = 1 + how % 4;
    queue_pairs_[i] = {*file_->Call(message), 0, 0};
  }
  // Each change of the next timer is a system call, so few inputs have short ones.
  const uint32_t timer_us = how >= 252 ? kRnrTimerUs : kLongRnrTimerUs;
  for (size_t i = 0; i < 2; ++i) {
    const auto connect = ToReady(queue_pairs_[i].number, queue_pairs_[1 - i].number, timer_us);
    BATON_CHECK(file_->Call(connect).ok());
  }
}

HostileShard::~HostileShard() {
  for (const Queues& queues : queue_pairs_) Destroy(Kind::kQueuePair, queues.number);
  Destroy(Kind::kSharedReceiveQueue, shared_);
  Destroy(Kind::kCompletionQueue, queue_);
  Destroy(Kind::kRegister, reg_);
  if (second_reg_ == 0) return;
  Destroy(Kind::kCompletionQueue, second_queue_);
  Destroy(Kind::kRegister, second_reg_);
}

// Refused or not: what is queued then is whatever lies there.
void HostileShard::ModifyAnything() {
  const uint8_t how = program_.Byte();
  Queues& queues = queue_pairs_[how & 1];
  const uint32_t peer = how < 32 ? victim_.queue_pairs[0] : queue_pairs_[~how & 1].number;
  if ((how & 6) == 0) {  // again, as a correct driver does
    std::memset(memory_->At(QueuePairAt(how & 1)), 0, 8);
    queues = {queues.number, 0, 0};
    for (const QueuePairState state : {QueuePairState::kReset, QueuePairState::kInit}) {
      (void)file_->Modify(queues.number, state);
    }
    (void)file_->Call(ToReady(queues.number, peer, kLongRnrTimerUs));
    return;
  }
  (void)file_->Modify(queues.number, static_cast<QueuePairState>(how / 8 % 5));
}

void HostileShard::Step() {
  switch (program_.Below(16)) {
    case 0:
    case 1:
    case 2:
    case 3:
      return PostSend();
    case 4:
    case 5:
    case 6:
      return PostReceive();
    case 7:
    case 8:
      return PostShared();
    case 9:
      return ModifyAnything();
    case 10:
    case 11:
      return RingAnything();
    case 12:
      return WriteBytes();
    case 13:
      return Consume();
    default:
      return SharedReads::Interfere(Interference::Of(program_));
  }
}

// They stay for all inputs: what one leaves there would show in a later one.
struct Stage {
  static constexpr nic::Owner kHonest = 1;

  DirectNic nic{[](nic::Owner file, const std::string&) { BATON_CHECK(file != kHonest); }};
  HonestFile honest{nic.Open()};
  HonestTraffic traffic{honest.TrafficOn(&nic)};
  HostileGround ground{nic.Open()};

  // The NIC does no more in a turn than it may.
  void Turn() {
    const uint64_t before = SharedReads::seen();
    nic.Turn();
    BATON_CHECK(SharedReads::seen() < before + kMaxReadsInTurn);
  }
};

}  // namespace

void NicQueues(const uint8_t* data, size_t size) {
  static Stage stage;
  Program program(data, size);
  stage.ground.memory.Watch();
  {
    HostileShard hostile(&stage.ground, stage.honest.victim(), &program);
    for (int step = 0; step < kMaxSteps && !program.empty(); ++step) {
      const uint8_t what = program.Byte();
      if (what < 232) {
        hostile.Step();
      } else {
        stage.traffic.Send();
      }
      if (what % 4 == 0) stage.Turn();
    }
    stage.traffic.Send();
    stage.Turn();
    stage.traffic.Check();
  }
  stage.ground.memory.Check();
  SharedReads::Forget();
}

}  // namespace baton::fuzz
