#include "tests/fuzz/direct_nic.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include "lib/base/check.h"

namespace baton::fuzz {

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
      engine_(*verbs::soft::Engine::Create()),
      host_{&objects_, engine_.get(), &options_, std::move(complain), false, wake_ups_.get()} {}

DirectFile* DirectNic::Open() {
  files_.push_back(std::make_unique<DirectFile>(files_.size() + 1, &host_));
  return files_.back().get();
}

void DirectNic::Turn() {
  engine_->UpdateNow();
  for (const auto& file : files_) (void)file->context().registers().Take();
  (void)engine_->Progress();
}

}  // namespace baton::fuzz
