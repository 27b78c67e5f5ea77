#include "lib/nic/registers.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/nic/queue_pair.h"
#include "lib/verbs/mlx5/doorbell_page.h"

namespace baton::nic {
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

// The client may have a copy of the eventfd, which would stay in the set.
Registers::Register::~Register() { epoll_ctl(epoll_fd, EPOLL_CTL_DEL, wake.get(), nullptr); }

absl::StatusOr<FileDescriptor> Registers::Add(uint32_t number, Bells bells) {
  FileDescriptor wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  FileDescriptor copy(fcntl(wake.get(), F_DUPFD_CLOEXEC, 0));
  // Each write is an event, so nobody reads it: another process could have read it before.
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLET;
  if (!wake || !copy || epoll_ctl(host_->epoll_fd, EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return ErrnoStatus(errno, "the eventfd of a register (see the NIC's RLIMIT_NOFILE)");
  }
  registers_[number] =
      std::make_unique<Register>(std::move(bells), std::move(wake), host_->epoll_fd);
  return copy;
}

bool Registers::Take() {
  bool taken = false;
  for (auto& [number, entry] : registers_) taken |= TakeFrom(number, entry.get());
  return taken;
}

bool Registers::Draw(double probability) {
  return probability > 0 && std::uniform_real_distribution<>()(random_) < probability;
}

bool Registers::TakeByBehaviour(uint32_t number, Register* from) {
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
  return !rings.empty();
}

bool Registers::TakeFrom(uint32_t number, Register* from) {
  Bells& bells = from->bells;
  uint64_t bytes = 0;
  bool taken = behaves_ && TakeByBehaviour(number, from);
  for (uint32_t i = 0; i < verbs::mlx5::kSendPlaces && !behaves_ && bells.TakeSend(&bytes); ++i) {
    OnRing(number, bytes);
    taken = true;
  }
  for (uint32_t i = 0; i < verbs::mlx5::kArmPlaces && bells.TakeArm(&bytes); ++i) {
    OnArm(number, bytes);
    taken = true;
  }
  const uint32_t attention = bells.TakeAttention();
  if (attention == 0) return taken;
  uint32_t looks[verbs::mlx5::kLookPlaces];
  const size_t count = bells.TakeLooks(absl::MakeSpan(looks));
  for (size_t i = 0; i < count; ++i) OnLook(number, looks[i]);
  if ((attention & verbs::mlx5::kOverflow) != 0) LookAtAll(number);
  return true;
}

QueuePair* Registers::FindQueuePair(uint32_t number) const {
  QueuePair* const found = host_->objects->FindQueuePair(number);
  return found != nullptr && found->parts().domain.owner == owner_ ? found : nullptr;
}

// The queue pair may have been destroyed since the ring.
void Registers::OnRing(uint32_t number, uint64_t bytes) {
  const uint32_t qp_number = WordsOf(bytes).second >> 8;
  QueuePair* const found = FindQueuePair(qp_number);
  if (found == nullptr) return;
  if (found->parts().reg == number) return found->Rung();
  host_->complain(
      absl::StrCat("register ", number, " was rung for queue pair ", qp_number, " of another one"));
  if (found->state() != verbs::QueuePairState::kReset) found->SetError();
}

void Registers::OnArm(uint32_t number, uint64_t bytes) {
  const Words words = WordsOf(bytes);
  auto& queues = host_->objects->completion_queues;
  const auto found = queues.find(words.second);
  if (found == queues.end() || found->second.owner != owner_) return;
  if (found->second.reg == number) return found->second.queue->Arm(words.first);
  host_->complain(absl::StrCat("register ", number, " armed completion queue ", words.second,
                               " of another one"));
}

void Registers::OnLook(uint32_t number, uint32_t qp_number) {
  QueuePair* const found = FindQueuePair(qp_number);
  if (found != nullptr && found->parts().reg == number) found->Rung();
}

void Registers::LookAtAll(uint32_t number) {
  for (const auto& [qp_number, queue_pair] : host_->objects->queue_pairs) {
    if (queue_pair->parts().domain.owner != owner_ || queue_pair->parts().reg != number) continue;
    queue_pair->Rung();
  }
  for (auto& [cq_number, queue] : host_->objects->completion_queues) {
    if (queue.owner == owner_ && queue.reg == number) queue.queue->ArmByRecord();
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
