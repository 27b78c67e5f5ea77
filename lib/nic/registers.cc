#include "lib/nic/registers.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/nic/queue_pair.h"

namespace baton::nic {

// Clears the places, because the page may have been a register before. Its old rings are void.
Bells::Bells(std::shared_ptr<MappedFile> file, verbs::mlx5::DoorbellPage* page)
    : file_(std::move(file)), page_(page) {
  *page_ = {};
}

// Stores the head before it clears the place, so a driver that sees the place empty also sees the
// new head.
bool Bells::Take(absl::Span<uint64_t> places, std::atomic_ref<uint32_t> shared_head, uint32_t* head,
                 uint64_t* bytes) {
  std::atomic_ref place(places[*head % places.size()]);
  *bytes = place.load(std::memory_order_acquire);
  if (*bytes == 0) return false;
  ++*head;
  shared_head.store(*head, std::memory_order_release);
  place.store(0, std::memory_order_release);
  return true;
}

bool Bells::TakeSend(uint64_t* bytes) {
  return Take(absl::MakeSpan(page_->sends), std::atomic_ref(page_->sq_head), &send_head_, bytes);
}

bool Bells::TakeArm(uint64_t* bytes) {
  return Take(absl::MakeSpan(page_->arms), std::atomic_ref(page_->cq_head), &arm_head_, bytes);
}

uint32_t Bells::TakeAttention() {
  std::atomic_ref attention(page_->attention);
  if (attention.load(std::memory_order_relaxed) == 0) return 0;
  return attention.exchange(0, std::memory_order_seq_cst);
}

size_t Bells::TakeLooks(absl::Span<uint32_t> numbers) {
  size_t count = 0;
  for (uint32_t& look : page_->looks) {
    std::atomic_ref place(look);
    if (count == numbers.size()) break;
    if (place.load(std::memory_order_acquire) == 0) continue;
    numbers[count++] = place.exchange(0, std::memory_order_seq_cst);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return count;
}

void Bells::SetSleeping(bool sleeping) {
  std::atomic_ref(page_->sleeping).store(sleeping ? 1 : 0, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool Bells::empty() const {
  return std::atomic_ref(page_->sends[send_head_ % verbs::mlx5::kSendPlaces])
                 .load(std::memory_order_acquire) == 0 &&
         std::atomic_ref(page_->arms[arm_head_ % verbs::mlx5::kArmPlaces])
                 .load(std::memory_order_acquire) == 0 &&
         std::atomic_ref(page_->attention).load(std::memory_order_acquire) == 0;
}

namespace {

// The two words of a doorbell's value.
struct Words {
  uint32_t first;
  uint32_t second;
};
Words WordsOf(uint64_t bytes) {
  __be32 words[2];
  static_assert(sizeof(words) == sizeof(bytes));
  std::memcpy(words, &bytes, sizeof(words));
  return {be32toh(words[0]), be32toh(words[1])};
}

}  // namespace

Registers::Registers(Owner owner, const Host* host)
    : owner_(owner),
      host_(host),
      behaves_(host->options->behaviour.early > 0 || host->options->behaviour.late > 0 ||
               host->options->behaviour.repeated > 0 || host->options->behaviour.reordered > 0),
      random_(host->options->behaviour.seed + owner) {}

// The client may have a copy of the eventfd, which would keep it in the epoll set.
Registers::Register::~Register() { epoll_ctl(epoll_fd, EPOLL_CTL_DEL, wake.get(), nullptr); }

absl::StatusOr<FileDescriptor> Registers::Add(uint32_t number, Bells bells) {
  FileDescriptor wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  FileDescriptor copy = CopyOf(wake.get());
  // EPOLLET: each write makes an event, even if another process reads the eventfd before the NIC
  // empties it.
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = kRegisterEvent | static_cast<uint32_t>(wake.get());
  if (!wake || !copy || epoll_ctl(host_->epoll_fd, EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return ErrnoStatus(errno, "the eventfd of a register (see the NIC's RLIMIT_NOFILE)");
  }
  registers_[number] =
      std::make_unique<Register>(std::move(bells), std::move(wake), host_->epoll_fd);
  order_.push_back(number);
  return copy;
}

void Registers::Erase(uint32_t number) {
  registers_.erase(number);
  std::erase(order_, number);
}

bool Registers::IsUsed(uint32_t number) const {
  const auto found = registers_.find(number);
  return found != registers_.end() &&
         !(found->second->queue_pairs.empty() && found->second->completion_queues.empty());
}

bool Registers::Take() {
  uint32_t taken = 0;
  for (size_t i = order_.size(); i > 0 && taken < kMaxRingsInTurn; --i) {
    next_ = next_ < order_.size() ? next_ : 0;
    const uint32_t number = order_[next_++];
    taken += TakeFrom(number, registers_.at(number).get());
  }
  return taken > 0;
}

void Registers::OnTransmit() {
  FindUsers();
  FlushOne();
  if (!flushes_.empty() || !overrun_.empty()) host_->loop->MarkDirty(this);
}

// Handles one completion queue in a turn, because all queue pairs of the file may complete in it.
void Registers::FindUsers() {
  if (overrun_.empty()) return;
  const uint32_t cq_number = overrun_.back();
  overrun_.pop_back();
  for (const auto& [number, entry] : registers_) {
    for (const uint32_t qp_number : entry->queue_pairs) {
      const QueuePairParts& parts = FindQueuePair(qp_number)->parts();
      if (parts.send_queue_number != cq_number && parts.receive_queue_number != cq_number) continue;
      failing_.insert(qp_number);
      Queue(qp_number);
    }
  }
}

// A flush that is longer than what one turn may do goes on in another turn.
void Registers::FlushOne() {
  if (flushes_.empty()) return;
  const uint32_t qp_number = flushes_.front();
  flushes_.pop_front();
  flushing_.erase(qp_number);
  const bool fails = failing_.erase(qp_number) > 0;
  QueuePair* const found = FindQueuePair(qp_number);
  if (found == nullptr) return;  // it was destroyed
  if (fails && found->state() != verbs::QueuePairState::kReset) found->SetError();
  if (found->Flush()) Queue(qp_number);
}

void Registers::Queue(uint32_t qp_number) {
  if (flushing_.insert(qp_number).second) flushes_.push_back(qp_number);
  host_->loop->MarkDirty(this);
}

void Registers::Ring(QueuePair* queue_pair) {
  if (queue_pair->state() != verbs::QueuePairState::kError) return queue_pair->Rung();
  Queue(queue_pair->number());
}

bool Registers::Draw(double probability) {
  return probability > 0 && std::uniform_real_distribution<>()(random_) < probability;
}

uint32_t Registers::TakeByBehaviour(uint32_t number, Register* from) {
  const verbs::soft::NicBehaviour& behaviour = host_->options->behaviour;
  std::vector<uint64_t> rings = std::exchange(from->held, {});
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < verbs::mlx5::kSendPlaces && from->bells.TakeSend(&bytes); ++i) {
    rings.push_back(bytes);
  }
  if (Draw(behaviour.reordered)) std::reverse(rings.begin(), rings.end());
  for (const uint64_t ring : rings) {
    const bool late = Draw(behaviour.late);
    if (!late) OnRing(number, ring);
    if (late || Draw(behaviour.repeated)) from->held.push_back(ring);
  }
  if (Draw(behaviour.early)) LookAtAll(number);
  return static_cast<uint32_t>(rings.size());
}

uint32_t Registers::TakeFrom(uint32_t number, Register* from) {
  Bells& bells = from->bells;
  uint64_t bytes = 0;
  uint32_t taken = behaves_ ? TakeByBehaviour(number, from) : 0;
  for (uint32_t i = 0; i < verbs::mlx5::kSendPlaces && !behaves_ && bells.TakeSend(&bytes); ++i) {
    OnRing(number, bytes);
    ++taken;
  }
  for (uint32_t i = 0; i < verbs::mlx5::kArmPlaces && bells.TakeArm(&bytes); ++i) {
    OnArm(number, bytes);
    ++taken;
  }
  const uint32_t attention = bells.TakeAttention();
  if (attention == 0) return taken;
  uint32_t looks[verbs::mlx5::kLookPlaces];
  const size_t count = bells.TakeLooks(absl::MakeSpan(looks));
  for (size_t i = 0; i < count; ++i) OnLook(number, looks[i]);
  taken += 1 + static_cast<uint32_t>(count);
  if ((attention & verbs::mlx5::kOverflow) == 0) return taken;
  LookAtAll(number);
  return taken + static_cast<uint32_t>(from->queue_pairs.size() + from->completion_queues.size());
}

QueuePair* Registers::FindQueuePair(uint32_t number) const {
  QueuePair* const found = host_->objects->FindQueuePair(number);
  return found != nullptr && found->parts().domain.owner == owner_ ? found : nullptr;
}

// A register may ring only objects of its own client that belong to it. A register that rings
// another client's object fails, with all its queue pairs. It is reported once.
void Registers::OnForeign(uint32_t number, absl::string_view what) {
  Register* const rung = registers_.at(number).get();
  if (std::exchange(rung->failed, true)) return;
  Complain(number, absl::StrCat(what, " of another client"));
  for (const uint32_t qp_number : rung->queue_pairs) {
    failing_.insert(qp_number);
    Queue(qp_number);
  }
}

void Registers::Complain(uint32_t number, absl::string_view what) {
  if (std::exchange(registers_.at(number)->complained, true)) return;
  host_->complain(owner_, absl::StrCat("register ", number, " was rung for ", what));
}

// The queue pair may have been destroyed since the ring.
void Registers::OnRing(uint32_t number, uint64_t bytes) {
  const uint32_t qp_number = WordsOf(bytes).second >> 8;
  QueuePair* const found = host_->objects->FindQueuePair(qp_number);
  if (found == nullptr) return;
  if (found->parts().domain.owner != owner_) {
    return OnForeign(number, absl::StrCat("queue pair ", qp_number));
  }
  if (found->parts().reg == number) return Ring(found);
  Complain(number, absl::StrCat("queue pair ", qp_number, " of another one"));
  if (found->state() != verbs::QueuePairState::kReset) found->SetError();
}

void Registers::OnArm(uint32_t number, uint64_t bytes) {
  const Words words = WordsOf(bytes);
  auto& queues = host_->objects->completion_queues;
  const auto found = queues.find(words.second);
  if (found == queues.end()) return;
  if (found->second.owner == owner_ && found->second.reg == number) {
    return found->second.queue->Arm(words.first);
  }
  if (found->second.owner != owner_) {
    return OnForeign(number, absl::StrCat("completion queue ", words.second));
  }
  found->second.queue->Fail(absl::StrCat("register ", number, ", which is not its own, armed it"));
}

void Registers::OnLook(uint32_t number, uint32_t qp_number) {
  QueuePair* const found = FindQueuePair(qp_number);
  if (found != nullptr && found->parts().reg == number) Ring(found);
}

void Registers::LookAtAll(uint32_t number) {
  const Register& looked_at = *registers_.at(number);
  for (const uint32_t qp_number : looked_at.queue_pairs) Ring(FindQueuePair(qp_number));
  for (const uint32_t cq_number : looked_at.completion_queues) {
    host_->objects->completion_queues.at(cq_number).queue->ArmByRecord();
  }
}

void Registers::SetSleeping(bool sleeping) {
  for (auto& [number, entry] : registers_) entry->bells.SetSleeping(sleeping);
}

bool Registers::empty() const {
  for (const auto& [number, entry] : registers_) {
    if (!entry->bells.empty() || !entry->held.empty()) return false;
  }
  return true;
}

}  // namespace baton::nic
